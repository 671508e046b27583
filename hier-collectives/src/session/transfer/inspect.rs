//! Views of the transfer for tests.

use super::transfer_flow::TransferFlow;
use super::transfer_state::Transfer;
use super::windows::unsolicited::UnsolicitedWindow;
use crate::ids::GatewayId;
use crate::session::action::{Buffer, BufferView};
use crate::session::epoch::epoch_state::EpochState;

impl Transfer {
    /// Asserts that no memory, task, lease or window is in use.
    pub fn inspect_at_rest(&self) {
        assert!(self.flows.is_empty(), "{:?}", self.flows);
        assert_eq!(self.partials.held(), 0);
        assert!(self.handles.are_free(), "{:?}", self.handles);
        assert!(self.unsolicited.is_empty(), "{:?}", self.unsolicited);
    }

    /// Returns the bytes sent to a peer beyond its grants that have no receipt.
    pub fn inspect_unsolicited_bytes_to(&self, to: GatewayId) -> u64 {
        self.unsolicited.sent_bytes(to)
    }

    /// Returns two windows for unsolicited segments with parity, in bytes: the one kept here for
    /// the peer, and the one the peer keeps for this gateway.
    pub fn inspect_tail_windows(&self, epoch: &EpochState, peer: GatewayId) -> (u64, u64) {
        let kept = UnsolicitedWindow::kept_for(epoch, peer);
        (kept.tail_bytes, UnsolicitedWindow::kept_by(epoch, peer).tail_bytes)
    }

    /// Returns the granted bytes from a peer that wait in scratch; `exists` tells which buffers
    /// still exist.
    pub fn inspect_scratch_bytes_from(
        &self,
        from: GatewayId,
        exists: impl Fn(&Buffer) -> bool,
    ) -> u64 {
        let incoming = self.flows.values().flat_map(|flow| &flow.incoming);
        let waiting = incoming.filter(|((of, ..), incoming)| {
            let in_scratch = |view: &&BufferView| matches!(view.buffer, Buffer::Scratch(_));
            let landed = incoming.landed_in.as_ref().filter(in_scratch);
            // Segments that were added have given back their scratch.
            let held = landed.is_some_and(|view| exists(&view.buffer));
            *of == from && held && incoming.unsolicited_bytes == 0
        });
        waiting.map(|(_, incoming)| u64::from(incoming.bytes)).sum()
    }

    /// Returns the most parts that a collective under way has. Each of them may round a window up to a
    /// segment.
    pub fn inspect_most_parts(&self) -> usize {
        self.flows.values().map(|flow| flow.parts.len()).max().unwrap_or(0)
    }

    /// Returns the bytes that this gateway relays: partials that it reduced from those of its children
    /// in the tree and sent to its parent.
    pub fn inspect_relayed_bytes(&self) -> u64 {
        let of_flow = |flow: &TransferFlow| -> u64 {
            let own = usize::from(flow.has_partials());
            let parts = flow.parts.iter().filter(|part| part.needs_partial_task());
            let segments = parts.flat_map(|part| &part.segments);
            let made = segments.flat_map(|segment| segment.scratch.iter().skip(own));
            made.map(|view| view.range.end - view.range.start).sum()
        };
        self.flows.values().map(of_flow).sum()
    }
}
