//! The random draws of a link: one set for each packet, dropped or delivered.

use super::delay::{DelayLine, DrawnDelay};
use super::link_spec::LinkSpec;
use super::loss::LossProcess;
use super::packet::packet_fate::{DropReason, PacketOwner};
use crate::random_stream::RandomStream;

/// The random processes that a packet meets.
#[derive(Debug)]
pub(super) struct Chances {
    pub(super) loss: LossProcess,
    pub(super) corrupt: RandomStream,
    pub(super) delay: DelayLine,
}

/// The draws of one packet, whether or not it gets that far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draws {
    pub(super) lost: Option<DropReason>,
    pub(super) corrupt_bit: Option<u32>,
    pub(super) transit: DrawnDelay,
}

impl Chances {
    /// Makes the random processes of a link, each with a stream of its own derived from `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            loss: LossProcess::new(RandomStream::new(seed, "loss")),
            corrupt: RandomStream::new(seed, "corrupt"),
            delay: DelayLine::new(
                RandomStream::new(seed, "jitter"),
                RandomStream::new(seed, "reorder"),
            ),
        }
    }

    /// Draws loss, corruption and delay for the next packet, whether or not the packet gets so far.
    pub(super) fn draw(&mut self, spec: &LinkSpec) -> Draws {
        let corrupt = self.corrupt.random_bool(spec.corrupt());
        let bit = (self.corrupt.next_u64() >> 32) as u32;
        Draws {
            lost: self.loss.draw(&spec.loss()),
            corrupt_bit: corrupt.then_some(bit),
            transit: self.delay.draw(spec),
        }
    }
}

/// The random processes of packets, of their copies and of the cross traffic, so that none of them
/// shifts the draws of another.
#[derive(Debug)]
pub(super) struct PathChances {
    originals: Chances,
    copies: Chances,
    cross: Chances,
}

impl PathChances {
    /// Makes the random processes of a path from its seed.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            originals: Chances::new(seed),
            copies: Chances::new(RandomStream::new(seed, "copies").next_u64()),
            cross: Chances::new(RandomStream::new(seed, "cross").next_u64()),
        }
    }

    /// Returns the random processes that packets of this owner meet.
    pub(super) fn of_owner(&mut self, owner: PacketOwner) -> &mut Chances {
        match owner {
            PacketOwner::Offered(name) if name.copy => &mut self.copies,
            PacketOwner::Offered(_) => &mut self.originals,
            PacketOwner::Cross(_) => &mut self.cross,
        }
    }
}
