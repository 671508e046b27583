//! The knowledge that an acknowledgement brings to a congestion controller.

use units::{Span, TimeNs};

/// The knowledge that one acknowledgement brings.
#[derive(Debug, Clone, Copy)]
pub(super) struct AckSample {
    pub(super) now: TimeNs,
    /// The round trip of the acknowledged packet.
    pub(super) rtt: Span,
    /// Packets in flight after it.
    pub(super) in_flight: u64,
    /// Packets acknowledged so far, itself included.
    pub(super) delivered: u64,
    /// Packets that had been acknowledged when it was sent.
    pub(super) delivered_before: u64,
    /// Packets a second that were delivered while it was in flight; `None` where no time passed.
    pub(super) rate: Option<f64>,
    /// Whether packets were found lost by it.
    pub(super) found_losses: bool,
    /// Whether the flow repairs a loss: the window must not grow.
    pub(super) in_recovery: bool,
}
