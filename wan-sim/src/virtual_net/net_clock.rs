//! The clock that a virtual network lives by.

use crate::{SleepTimer, VirtualExecutor};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use units::TimeNs;

/// The clock of a virtual network.
#[derive(Debug, Clone)]
pub(super) enum NetClock {
    /// The clock of tokio, which a test pauses.
    Tokio { origin: Instant },
    /// The virtual clock of this crate.
    Own(VirtualExecutor),
}

/// The timer of one reader, which is reset for each wait.
#[derive(Debug)]
pub(super) enum NetTimer {
    Tokio { origin: Instant, sleep: Pin<Box<tokio::time::Sleep>> },
    Own(SleepTimer),
}

impl NetClock {
    /// Makes a clock that follows tokio's clock, with now as zero.
    pub(super) fn tokio() -> Self {
        Self::Tokio { origin: Instant::now() }
    }

    /// Returns the time since the zero of the clock.
    pub(super) fn now(&self) -> TimeNs {
        match self {
            Self::Tokio { origin } => {
                let elapsed = Instant::now().duration_since(*origin);
                TimeNs::from_ns(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
            }
            Self::Own(time) => time.now(),
        }
    }

    /// Makes a timer of this clock, for one reader.
    pub(super) fn new_timer(&self) -> NetTimer {
        match self {
            Self::Tokio { origin } => {
                let sleep = Box::pin(tokio::time::sleep_until(*origin));
                NetTimer::Tokio { origin: *origin, sleep }
            }
            Self::Own(time) => NetTimer::Own(time.sleep_until(TimeNs::default())),
        }
    }
}

impl NetTimer {
    /// Polls for the time `at`; wakes the task of `cx` at that time while it is still to come.
    pub(super) fn poll_until(&mut self, at: TimeNs, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tokio { origin, sleep } => {
                let deadline = *origin + Duration::from_nanos(at.ns());
                if sleep.deadline() != deadline {
                    sleep.as_mut().reset(deadline);
                }
                sleep.as_mut().poll(cx)
            }
            Self::Own(sleep) => {
                sleep.move_deadline(at);
                Future::poll(Pin::new(sleep), cx)
            }
        }
    }
}
