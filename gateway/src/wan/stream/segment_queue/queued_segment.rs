//! Segments as the send queue holds them.

use crate::memory::mem_slice::MemSlice;
use hier_collectives::ids::{GroupId, Sequence};
use hier_collectives::session::SegmentPriority;
use hier_collectives::size_class::SizeClass;
use hier_collectives::tail_fec::TailParity;
use hier_collectives::wire::{SegmentHeader, SegmentKey};
use tokio_util::sync::CancellationToken;

/// The name of a segment in a send queue: its group and its key.
pub type SegmentId = (GroupId, SegmentKey);

/// The order within a group: the smaller class first, then the lower collective, then the segment that is
/// less far into its tree. Sequences grow through all epochs.
pub(super) type SendOrder = (SizeClass, Sequence, u32, SegmentKey);

/// A segment to push.
#[derive(Debug)]
pub struct NewSegment {
    /// The job, whose share of the link it uses.
    pub job: GroupId,
    /// The group: the job itself, or a group of its ranks.
    pub group: GroupId,
    /// The header that goes before the payload.
    pub header: SegmentHeader,
    /// The priority among the segments of its group.
    pub priority: SegmentPriority,
    /// The parity that it has if few enough bytes follow it.
    pub tail: TailParity,
    /// The payload.
    pub payload: MemSlice,
}

/// A segment that waits, or that a lane has pulled.
#[derive(Debug, Clone)]
pub struct QueuedSegment {
    /// The job, whose share of the link it uses.
    pub job: GroupId,
    /// The group: the job itself, or a group of its ranks.
    pub group: GroupId,
    /// The header that goes before the payload.
    pub header: SegmentHeader,
    /// The payload.
    pub payload: MemSlice,
    /// The priority among the segments of its group.
    pub priority: SegmentPriority,
    /// The parity that it has if few enough bytes follow it.
    pub tail: TailParity,
    /// Its order at the pacer: `RELEASE_ORDER_FIRST` if small, else
    /// the number of its pull.
    pub order: u64,
    /// Whether a lane had it before and was lost.
    pub requeued: bool,
    /// Stops the stream.
    pub cancel: CancellationToken,
    /// Fires when the sender no longer reads the payload: it is handed over, reset, or lost.
    pub released: CancellationToken,
}

/// The two kinds of traffic, each with a sender task of its own on every lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueuedSegmentClass {
    /// Segments of small operations, which do not wait behind others.
    Small,
    /// Segments of all other operations.
    Bulk,
}

impl QueuedSegmentClass {
    /// Returns the class, small or bulk, in which a segment of this priority is queued.
    pub(super) fn of(priority: SegmentPriority) -> Self {
        if priority.class == SizeClass::Small { Self::Small } else { Self::Bulk }
    }
}

impl QueuedSegment {
    /// Returns the segment's group and key, which name it in the send queue.
    pub(super) fn segment_id(&self) -> SegmentId {
        (self.group, self.header.key)
    }

    /// Returns the segment's place in the order of its group's segments.
    pub(super) fn send_order(&self) -> SendOrder {
        let key = self.header.key;
        (self.priority.class, key.sequence, self.priority.depth, key)
    }

    /// Returns the segment for another lane, after its lane was lost. It has new cancellation
    /// tokens.
    pub(super) fn into_requeued(self) -> Self {
        let (cancel, released) = (CancellationToken::new(), CancellationToken::new());
        Self { requeued: true, cancel, released, ..self }
    }
}
