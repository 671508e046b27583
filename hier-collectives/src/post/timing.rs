//! Instants of one collective.

use units::{Span, TimeNs};

/// Instants of one collective on the gateway's clock.
///
/// All gateways and ranks of one host read the same monotonic clock, so these are comparable there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Instant at which the last local rank posted.
    pub posted: TimeNs,
    /// Instant at which the first segment was ready to be sent.
    pub wan_begin: TimeNs,
    /// Instant at which the last segment arrived.
    pub wan_end: TimeNs,
    /// Instant at which every local rank had the result.
    pub ready: TimeNs,
}

impl Timing {
    /// Returns the time from the last local post to the last local result.
    pub fn took(&self) -> Span {
        self.ready.since(self.posted)
    }
}
