//! The end of the time of a call, in which waits for room count as well as those for other ranks.

use std::future::Future;
use tokio::time::Instant;
use units::Span;

/// The moment at which the time of a call is over.
#[derive(Debug, Clone, Copy)]
pub(in crate::client) struct CallDeadline(Instant);

impl CallDeadline {
    /// Returns the deadline of a call that begins now and may take `timeout`.
    pub fn after(timeout: Span) -> Self {
        Self(Instant::now() + timeout.duration())
    }

    /// Returns the time that is left, for which a gateway waits for other ranks; 0 after the
    /// deadline.
    pub fn left(self) -> Span {
        let left = self.0.saturating_duration_since(Instant::now());
        Span::from_ns(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Waits for a future until the deadline. Returns `None` if it has no output then, and drops it.
    /// A future that is ready needs no timer.
    pub async fn wait<F: Future>(self, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(self.0, future).await.ok()
    }
}
