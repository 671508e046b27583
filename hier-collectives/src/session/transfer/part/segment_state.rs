//! The state of one segment: its partial, result and receipts, and its way to and from peers.

use crate::session::action::{BufferView, LeaseId, ReduceInput};
use std::collections::BTreeSet;

/// The state of one segment. `None` means that it is not there yet.
#[derive(Debug, Default, Clone)]
pub(in crate::session::transfer) struct SegmentState {
    /// The local ranks' partial.
    pub local: Option<ReduceInput>,
    /// The partial of the whole subtree, which goes to the parent or to the other roots.
    pub partial: Option<ReduceInput>,
    /// The result is in the first slot for it, or the partial is handed over where none is due.
    pub result: bool,
    /// A task that makes the partial or the result is under way.
    pub combining: bool,
    /// Receipts that are missing.
    pub receipts_due: u16,
    /// Receipts that are missing for bytes in gateway memory: the partial, or a block that is passed
    /// on.
    pub held_due: u16,
    /// The bytes to send on, where they are not in the result slot of a local rank: the
    /// contribution of a rank here, or gateway memory.
    pub moved: Option<BufferView>,
    /// Scratch to release once the result and the receipts for the partial are in.
    pub scratch: Vec<BufferView>,
}

/// The segments that go to one peer.
#[derive(Debug)]
pub(in crate::session::transfer) struct OutboundSegments {
    pub payload: SegmentPayload,
    /// The next segment to send.
    pub next: u32,
    /// Segments that were sent and have no receipt yet.
    pub due: BTreeSet<u32>,
}

/// The bytes that a segment carries to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session::transfer) enum SegmentPayload {
    Partial,
    Result,
}

/// A segment that has arrived from one peer, or is arriving.
#[derive(Debug, Default)]
pub(in crate::session::transfer) struct IncomingSegmentState {
    /// Streams that may write now.
    pub leases: BTreeSet<LeaseId>,
    /// The place of the bytes; `None` when they were combined straight into the result.
    pub landed_in: Option<BufferView>,
    /// All bytes are here.
    pub landed: bool,
    pub receipted: bool,
    /// Bytes charged to the peer's unsolicited window.
    pub unsolicited_bytes: u64,
    pub bytes: u32,
    pub digest: u64,
    pub weight: f64,
    /// FEC may restore the payload, so the bytes must land unchanged.
    pub parity: bool,
    /// A stream of this segment has been combined before.
    #[cfg(feature = "mutants")]
    pub tried: bool,
}

impl IncomingSegmentState {
    /// Returns the values that every header of this segment repeats: payload bytes, digest, and
    /// whether it has parity.
    pub fn shape(&self) -> (u32, u64, bool) {
        (self.bytes, self.digest, self.parity)
    }
}

impl SegmentState {
    /// Whether the segment needs no memory of this gateway any more.
    pub fn is_done(&self) -> bool {
        self.result && self.held_due == 0
    }
}
