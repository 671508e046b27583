//! The average of a queue's length by which RED drops or marks.

use super::discipline::Red;
use crate::portable_math::portable_power;
use crate::random_stream::RandomStream;
use units::{Span, TimeNs};

/// The average length of a queue, and the count of packets since the last drop or mark.
#[derive(Debug)]
pub(in crate::link) struct RedAverage {
    average_bytes: f64,
    /// Packets since the last drop or mark, while the average is above the lower threshold.
    since_last: u64,
    stream: RandomStream,
}

/// The decision of RED about one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::link) enum RedVerdict {
    /// The packet passes.
    Pass,
    /// The packet is marked, or dropped if it cannot be.
    Notify,
    /// The packet is dropped: the average is twice the upper threshold.
    Drop,
}

/// Since when the bottleneck has been idle, and how long it takes to send a packet of full length.
#[derive(Debug, Clone, Copy)]
pub(in crate::link) struct Idleness {
    pub(in crate::link) since: TimeNs,
    pub(in crate::link) packet_time: Span,
}

impl RedAverage {
    /// Makes the average of an empty queue, which draws from `stream`.
    pub(in crate::link) fn new(stream: RandomStream) -> Self {
        Self { average_bytes: 0.0, since_last: 0, stream }
    }

    /// Decides about a packet that comes at `now`, while `waiting_bytes` wait. `idleness` is
    /// [`None`] while the bottleneck sends.
    ///
    /// The gap between two drops is uniform rather than geometric, as in the paper.
    pub(in crate::link) fn decide(
        &mut self,
        red: &Red,
        now: TimeNs,
        waiting_bytes: u64,
        idleness: Option<Idleness>,
    ) -> RedVerdict {
        let drawn = self.stream.uniform();
        let weight = red.weight.as_f64();
        match idleness {
            Some(idle) => {
                let packets = now.since(idle.since).ns() / idle.packet_time.ns().max(1);
                self.average_bytes *= portable_power(1.0 - weight, packets);
            }
            None => self.average_bytes += weight * (waiting_bytes as f64 - self.average_bytes),
        }
        let base = red.probability_at(self.average_bytes);
        if base >= 1.0 {
            self.since_last = 0;
            return RedVerdict::Drop;
        }
        if base <= 0.0 {
            self.since_last = 0;
            return RedVerdict::Pass;
        }
        let rest = 1.0 - self.since_last as f64 * base;
        if rest <= 0.0 || drawn < base / rest {
            self.since_last = 0;
            return RedVerdict::Notify;
        }
        self.since_last += 1;
        RedVerdict::Pass
    }
}

impl Red {
    /// Returns the probability of a drop or mark at this average length of the queue, in bytes.
    pub fn probability_at(&self, average_bytes: f64) -> f64 {
        let (min, max) = (self.min.get() as f64, self.max.get() as f64);
        let most = self.probability.as_f64();
        if average_bytes < min {
            0.0
        } else if average_bytes < max {
            most * (average_bytes - min) / (max - min)
        } else if average_bytes < 2.0 * max {
            most + (1.0 - most) * (average_bytes - max) / max
        } else {
            1.0
        }
    }
}
