//! The random draws of a link: one set for each packet, whatever becomes of it.

use super::delay::{DelayLine, Transit};
use super::loss::LossProcess;
use super::spec::LinkSpec;
use crate::rng::Stream;

/// The random processes that a packet meets.
#[derive(Debug)]
pub(super) struct Chances {
    pub(super) loss: LossProcess,
    pub(super) corrupt: Stream,
    pub(super) delay: DelayLine,
}

/// The draws of one packet, whether or not it gets that far.
pub(super) struct Draws {
    pub(super) lost: bool,
    pub(super) corrupt_bit: Option<u32>,
    pub(super) transit: Transit,
}

impl Chances {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            loss: LossProcess::new(Stream::new(seed, "loss")),
            corrupt: Stream::new(seed, "corrupt"),
            delay: DelayLine::new(Stream::new(seed, "jitter"), Stream::new(seed, "reorder")),
        }
    }

    pub(super) fn draw(&mut self, spec: &LinkSpec) -> Draws {
        let corrupt = self.corrupt.happens(spec.corrupt());
        let bit = (self.corrupt.next() >> 32) as u32;
        Draws {
            lost: self.loss.draw(&spec.loss()),
            corrupt_bit: corrupt.then_some(bit),
            transit: self.delay.draw(spec),
        }
    }
}
