//! The time that packets spend in flight: the delay line, which draws jitter and reordering.

use super::jitter::{NORMAL_REACH, Order, Shape};
use super::spec::LinkSpec;
use crate::rng::Stream;
use units::{Span, TimeNs};

#[derive(Debug)]
pub(super) struct DelayLine {
    jitter: Stream,
    reorder: Stream,
    delayed_in_a_row: u32,
}

impl DelayLine {
    pub(super) fn new(jitter: Stream, reorder: Stream) -> Self {
        Self { jitter, reorder, delayed_in_a_row: 0 }
    }

    /// The next packet's draws; made for every packet, so that none depends on other fates.
    pub(super) fn draw(&mut self, spec: &LinkSpec) -> Transit {
        let jitter = spec.jitter();
        let spread_ns = jitter.spread.ns();
        let from_least_ns = match jitter.shape {
            Shape::Uniform => self.jitter.below(2 * spread_ns + 1),
            Shape::Normal => {
                let units = self.jitter.normal_within(NORMAL_REACH as f64) + NORMAL_REACH as f64;
                (units * spread_ns as f64) as u64
            }
        };
        Transit {
            delay: Span::from_ns(spec.delay().ns() - jitter.reach().ns() + from_least_ns),
            may_skip: spec.reorder().is_some_and(|r| self.reorder.happens(r.probability)),
        }
    }

    /// How a packet arrives once it is sent; `latest` is the latest arrival so far of packets that
    /// keep order.
    pub(super) fn arrival(&mut self, spec: &LinkSpec, transit: Transit, latest: TimeNs) -> Arrival {
        if let Some(reorder) = spec.reorder() {
            if transit.may_skip && self.delayed_in_a_row + 1 >= reorder.gap.get() {
                self.delayed_in_a_row = 0;
                return Arrival::default();
            }
            self.delayed_in_a_row = self.delayed_in_a_row.saturating_add(1);
        }
        let not_before = match spec.jitter().order {
            Order::Free => None,
            Order::Kept => Some(latest),
        };
        Arrival { delay: transit.delay, not_before }
    }
}

/// How a packet arrives once it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    delay: Span,
    /// The arrival of those before it, where it keeps order.
    not_before: Option<TimeNs>,
}

impl Arrival {
    /// When it arrives, sent at `sent`.
    pub(super) fn at(&self, sent: TimeNs) -> TimeNs {
        (sent + self.delay).max(self.not_before.unwrap_or_default())
    }

    /// Whether it keeps order.
    pub(super) fn keeps_order(&self) -> bool {
        self.not_before.is_some()
    }

    /// The arrival behind a packet that arrives at `latest`.
    pub(super) fn behind(self, latest: TimeNs) -> Self {
        Self { not_before: self.not_before.map(|_| latest), ..self }
    }

    /// The arrival of its predecessor, where it keeps order.
    pub(super) fn not_before(&self) -> Option<TimeNs> {
        self.not_before
    }
}

/// The delay and the chance to skip it, as drawn for one packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transit {
    delay: Span,
    may_skip: bool,
}
