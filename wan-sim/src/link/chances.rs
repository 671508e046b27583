//! The random draws of a link: one set for each packet, dropped or delivered.

use super::delay::{DelayLine, DrawnDelay};
use super::link_spec::LinkSpec;
use super::loss::LossProcess;
use super::packet_fate::DropReason;
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
