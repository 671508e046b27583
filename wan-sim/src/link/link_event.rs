//! The truth about each drop and each mark of a link, as a stream of events.

use super::packet::PacketFlow;
use super::packet::packet_fate::{DropReason, Fate, MarkReason, PacketName};
use std::fmt;
use units::TimeNs;

/// A packet that a link dropped or marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEvent {
    /// When it was decided.
    pub at: TimeNs,
    /// The flow of the packet.
    pub flow: PacketFlow,
    /// The packet; `None` for one of the cross traffic.
    pub packet: Option<PacketName>,
    /// Length of the IP packet in bytes.
    pub ip_bytes: u32,
    /// The true cause.
    pub label: LinkEventLabel,
}

/// The true cause of a drop or a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkEventLabel {
    /// The packet was dropped.
    Dropped(DropReason),
    /// The packet was marked.
    Marked(MarkReason),
}

impl LinkEventLabel {
    /// Returns the label of a fate; `None` of a delivery without a mark, and of a packet whose fate
    /// is open.
    pub fn of(fate: &Fate) -> Option<Self> {
        match fate {
            Fate::Drop(reason) => Some(Self::Dropped(*reason)),
            Fate::Deliver(delivery) => delivery.marked.map(Self::Marked),
            Fate::Queued => None,
        }
    }
}

impl fmt::Display for LinkEventLabel {
    /// Writes `drop:` or `mark:` with the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped(reason) => write!(f, "drop:{}", reason.word()),
            Self::Marked(reason) => write!(f, "mark:{}", reason.word()),
        }
    }
}

/// A function that gets every event of a link.
type TakeEvent = Box<dyn FnMut(&LinkEvent) + Send>;

/// The function that gets every event of a link; none at first.
#[derive(Default)]
pub(super) struct LinkEventSink(Option<TakeEvent>);

impl LinkEventSink {
    /// Makes a sink that calls `sink`.
    pub(super) fn new(sink: impl FnMut(&LinkEvent) + Send + 'static) -> Self {
        Self(Some(Box::new(sink)))
    }

    /// Passes an event to the function of the sink, if there is one.
    pub(super) fn emit(&mut self, event: &LinkEvent) {
        if let Some(sink) = &mut self.0 {
            sink(event);
        }
    }
}

impl fmt::Debug for LinkEventSink {
    /// Prints whether there is a sink, for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LinkEventSink").field(&self.0.is_some()).finish()
    }
}
