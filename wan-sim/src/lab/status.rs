//! The state of one link of a lab, as it is reported.

use crate::FateCounters;
use units::ByteCount;

/// One direction of a link of a lab, or of a site's port, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The sending site; `None` where this is the port of the receiving one.
    pub from: Option<String>,
    /// The receiving site; `None` where this is the port of the sending one.
    pub to: Option<String>,
    /// Packets and drops so far.
    pub counters: FateCounters,
    /// Bytes that wait.
    pub queue: ByteCount,
    /// The most that ever waited.
    pub queue_peak: ByteCount,
}
