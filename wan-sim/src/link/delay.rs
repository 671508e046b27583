//! The time that packets spend in flight: the delay line, which draws jitter and reordering.

use super::jitter::{NORMAL_REACH_DEVIATIONS, Order, Shape};
use super::link_spec::LinkSpec;
use crate::random_stream::RandomStream;
use units::{Span, TimeNs};

#[derive(Debug)]
pub(super) struct DelayLine {
    jitter: RandomStream,
    reorder: RandomStream,
    delayed_in_a_row: u32,
}

impl DelayLine {
    /// Makes a delay line that draws jitter and reordering from these streams.
    pub(super) fn new(jitter: RandomStream, reorder: RandomStream) -> Self {
        Self { jitter, reorder, delayed_in_a_row: 0 }
    }

    /// Draws delay and reordering for the next packet. Every packet draws, so that no draw depends
    /// on the fate of another packet.
    pub(super) fn draw(&mut self, spec: &LinkSpec) -> DrawnDelay {
        let jitter = spec.jitter();
        let spread_ns = jitter.spread.ns();
        let from_least_ns = match jitter.shape {
            Shape::Uniform => self.jitter.random_below(2 * spread_ns + 1),
            Shape::Normal => {
                let units = self.jitter.normal_within(NORMAL_REACH_DEVIATIONS as f64)
                    + NORMAL_REACH_DEVIATIONS as f64;
                (units * spread_ns as f64) as u64
            }
        };
        DrawnDelay {
            delay: Span::from_ns(spec.delay().ns() - jitter.reach().ns() + from_least_ns),
            may_skip: spec.reorder().is_some_and(|r| self.reorder.random_bool(r.probability)),
        }
    }

    /// Decides how a packet arrives after it is sent. `latest` is the latest arrival so far of
    /// packets that keep order.
    pub(super) fn decide_arrival(
        &mut self,
        spec: &LinkSpec,
        transit: DrawnDelay,
        latest: TimeNs,
    ) -> DelayedArrival {
        if let Some(reorder) = spec.reorder() {
            if transit.may_skip && self.delayed_in_a_row + 1 >= reorder.gap.get() {
                self.delayed_in_a_row = 0;
                return DelayedArrival::default();
            }
            self.delayed_in_a_row = self.delayed_in_a_row.saturating_add(1);
        }
        let not_before = match spec.jitter().order {
            Order::Free => None,
            Order::Kept => Some(latest),
        };
        DelayedArrival { delay: transit.delay, not_before }
    }
}

/// How a packet arrives after it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DelayedArrival {
    delay: Span,
    /// The arrival of those before it, where it keeps order.
    not_before: Option<TimeNs>,
}

impl DelayedArrival {
    /// Returns when the packet arrives if its last bit is sent at `sent`.
    pub(super) fn arrival_time(&self, sent: TimeNs) -> TimeNs {
        (sent + self.delay).max(self.not_before.unwrap_or_default())
    }

    /// Returns whether the packet must not arrive before the packets ahead of it.
    pub(super) fn keeps_order(&self) -> bool {
        self.not_before.is_some()
    }

    /// Returns this arrival behind a packet that arrives at `latest`; unchanged where the packet
    /// may overtake.
    pub(super) fn with_predecessor_at(self, latest: TimeNs) -> Self {
        Self { not_before: self.not_before.map(|_| latest), ..self }
    }

    /// Returns the arrival time of the packet ahead; `None` where the packet may overtake.
    pub(super) fn not_before(&self) -> Option<TimeNs> {
        self.not_before
    }
}

/// The delay and the chance to skip it, as drawn for one packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrawnDelay {
    delay: Span,
    may_skip: bool,
}
