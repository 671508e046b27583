//! The clock that a virtual network lives by.

use crate::{Sleep, VirtualTime};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use units::TimeNs;

#[derive(Debug, Clone)]
pub(super) enum NetClock {
    /// The clock of tokio, which a test pauses.
    Tokio { origin: Instant },
    /// The virtual clock of this crate.
    Own(VirtualTime),
}

/// The timer of one reader, which is reset for each wait.
#[derive(Debug)]
pub(super) enum Timer {
    Tokio { origin: Instant, sleep: Pin<Box<tokio::time::Sleep>> },
    Own(Sleep),
}

impl NetClock {
    /// The clock of tokio, with now as zero.
    pub(super) fn tokio() -> Self {
        Self::Tokio { origin: Instant::now() }
    }

    pub(super) fn now(&self) -> TimeNs {
        match self {
            Self::Tokio { origin } => {
                let elapsed = Instant::now().duration_since(*origin);
                TimeNs::from_ns(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
            }
            Self::Own(time) => time.now(),
        }
    }

    pub(super) fn timer(&self) -> Timer {
        match self {
            Self::Tokio { origin } => {
                let sleep = Box::pin(tokio::time::sleep_until(*origin));
                Timer::Tokio { origin: *origin, sleep }
            }
            Self::Own(time) => Timer::Own(time.sleep_until(TimeNs::default())),
        }
    }
}

impl Timer {
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
                sleep.move_to(at);
                Future::poll(Pin::new(sleep), cx)
            }
        }
    }
}
