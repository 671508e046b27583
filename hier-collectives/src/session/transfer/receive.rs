//! Segments in: the place for their bytes, and the next step once they are whole.

use super::part::{IncomingSegmentState, TransferPart};
use super::send::send_receipt;
use super::transfer_flow::{FlowStage, TransferFlow, TransferFlowWork, flow_expects_segment};
use super::transfer_state::Transfer;
use super::windows::unsolicited::UnsolicitedBound;
use crate::descriptor::AgreedCounts;
use crate::ids::{GatewayId, Sequence};
#[cfg(feature = "mutants")]
use crate::mutant::{self, Mutant};
use crate::session::action::{
    Action, ArrivalPlace, BufferView, Discard, LeaseId, PeerError, ReduceInput,
};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::epoch_state::EpochState;
use crate::wire::{SegmentHeader, SegmentKey};
use std::collections::btree_map::Entry;

/// A stream that ended.
#[derive(Debug)]
pub(in crate::session) struct StreamEnd {
    pub sequence: Sequence,
    /// The segment that arrived by this stream, if no stream before brought all its bytes.
    pub landed: Option<Landed>,
}

/// A segment of which all bytes have arrived.
#[derive(Debug)]
pub(in crate::session) struct Landed {
    pub from: GatewayId,
    /// Whether the segment is of a result that contains contributions of all ranks.
    pub of_all_ranks: bool,
}

impl Transfer {
    /// Finds a place for an arriving segment of a collective of this gateway, by its header.
    ///
    /// # Errors
    /// [`PeerError`]: the plan has no such segment, or the peer exceeded its unsolicited window.
    pub fn receive_header(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
        epoch: &EpochState,
        actions: &mut ActionQueue,
    ) -> Result<ArrivalPlace, PeerError> {
        let key = header.key;
        let no_such = PeerError::NoSuchSegment { key, bytes: header.bytes };
        let Some(bound) = UnsolicitedBound::for_peer(epoch, from) else {
            return Ok(ArrivalPlace::Discard(Discard::Epoch));
        };
        let flow = self.flow_or_new(key.sequence);
        let part = flow.parts.get(usize::from(key.tree.0));
        let is_due = |part: &TransferPart| {
            flow_expects_segment(part, from, epoch.me(), key.segment, header.bytes)
        };
        if let Some(work) = &flow.work
            && !part.is_some_and(is_due)
        {
            // Ranks give counts by pair at both ends. Their posts name the two that differ.
            return if work.descriptor.counts == AgreedCounts::ByPair {
                Ok(ArrivalPlace::Discard(Discard::Disagreement))
            } else {
                Err(no_such)
            };
        }
        let shape = (header.bytes, header.digest, header.parity > 0);
        let (bytes, digest, parity) = shape;
        let incoming = match flow.incoming.entry((from, key.tree, key.segment)) {
            Entry::Vacant(entry) => entry.insert(IncomingSegmentState {
                bytes,
                digest,
                parity,
                ..IncomingSegmentState::default()
            }),
            // The first header may have reserved memory, and parity decides where it goes.
            Entry::Occupied(entry) if entry.get().shape() != shape => return Err(no_such),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if incoming.landed {
            if incoming.receipted {
                send_receipt(from, key, epoch, actions);
            }
            return Ok(ArrivalPlace::Discard(Discard::Duplicate));
        }
        incoming.weight = header.weight;
        self.note_exchange(key.sequence, actions);
        self.place_received_segment(from, key, &bound, epoch)
    }

    /// Decides where the bytes of an arriving segment go, and registers the lease of its stream.
    fn place_received_segment(
        &mut self,
        from: GatewayId,
        key: SegmentKey,
        bound: &UnsolicitedBound,
        epoch: &EpochState,
    ) -> Result<ArrivalPlace, PeerError> {
        let lease = self.handles.new_lease_id();
        let Some(flow) = self.flows.get_mut(&key.sequence) else {
            return Ok(ArrivalPlace::Discard(Discard::Epoch));
        };
        let granted = flow.grants_out.get(&(from, key.tree)).copied().unwrap_or(0);
        let TransferFlow { work, parts, incoming, busy, .. } = flow;
        let Some(incoming) = incoming.get_mut(&(from, key.tree, key.segment)) else {
            return Ok(ArrivalPlace::Discard(Discard::Epoch));
        };
        let part = parts.get(usize::from(key.tree.0));
        let local = part
            .filter(|part| part.streaming_peer(epoch.me()) == Some(from))
            .and_then(|part| part.streaming_operand(key.segment.0));
        let result = |part: &TransferPart, work: &TransferFlowWork| {
            work.result_view(part, key.segment.0, key.sequence)
        };
        let arrival = match (part, local, work) {
            // A stream that began while the operand was missing goes on into scratch.
            (Some(part), Some(local), Some(work))
                if incoming.landed_in.is_none() && !incoming.parity =>
            {
                ArrivalPlace::Combine {
                    lease,
                    op: work.descriptor.op,
                    dtype: work.descriptor.dtype,
                    local: local_input_of_received_segment(local, result(part, work), incoming),
                    net_weight: incoming.weight,
                    net_first: from < epoch.me(),
                    out: result(part, work),
                }
            }
            (Some(part), _, Some(work)) if part.lands_in_slot(from) => {
                // A segment that began before the post goes on where it began.
                let into = incoming.landed_in.get_or_insert_with(|| result(part, work)).clone();
                ArrivalPlace::Land { lease, into }
            }
            _ => {
                let into = match incoming.landed_in.clone() {
                    Some(view) => view,
                    None => self.handles.new_landing_scratch(u64::from(incoming.bytes)),
                };
                let is_new = incoming.landed_in.replace(into.clone()).is_none();
                let unsolicited = key.segment.0 >= granted || incoming.parity;
                if is_new && unsolicited {
                    incoming.unsolicited_bytes = bound.charged_bytes(incoming.bytes);
                    let used = self.unsolicited.charge_peer(from, incoming.unsolicited_bytes);
                    if used > bound.max_bytes() {
                        return Err(PeerError::UnsolicitedOverrun {
                            used,
                            room: bound.max_bytes(),
                        });
                    }
                }
                ArrivalPlace::Land { lease, into }
            }
        };
        incoming.leases.insert(lease);
        *busy += 1;
        self.handles.hold_lease(lease, from, key);
        Ok(arrival)
    }

    /// Ends the lease of a stream, which has ended whole or was cut off. Returns none when its
    /// collective is not known any more.
    pub fn handle_received_stream_end(
        &mut self,
        lease: LeaseId,
        whole: bool,
        cx: &mut Context<'_>,
    ) -> Option<StreamEnd> {
        let (from, key) = self.handles.end_lease(lease)?;
        let flow = self.flows.get_mut(&key.sequence)?;
        flow.busy -= 1;
        let mut end = StreamEnd { sequence: key.sequence, landed: None };
        let healthy = flow.stage != FlowStage::Failed;
        let part = flow.parts.get(usize::from(key.tree.0));
        let is_withheld = part.is_some_and(|part| flow.withholds_receipt(part, key.segment.0));
        let Some(incoming) = flow.incoming.get_mut(&(from, key.tree, key.segment)) else {
            return Some(end);
        };
        // An unknown lease was of a segment with another descriptor, and wrote elsewhere.
        let known = incoming.leases.remove(&lease);
        if !known || !whole || !healthy || incoming.landed {
            return Some(end);
        }
        incoming.landed = true;
        for other in &incoming.leases {
            cx.actions.push(Action::CancelLease(*other));
        }
        // Segments without a grant keep their room until a reduction consumes them, and so does
        // the receipt that gives the room back.
        let receipt = incoming.unsolicited_bytes == 0 && !incoming.receipted && !is_withheld;
        incoming.receipted |= receipt;
        flow.wan_end = cx.now;
        self.moved = cx.now;
        let part = flow.parts.get(usize::from(key.tree.0));
        let sums = |part: &TransferPart| part.phases.up || part.follows;
        let of_all_ranks = part.is_some_and(|part| sums(part) && part.comes_down_from(from));
        end.landed = Some(Landed { from, of_all_ranks });
        if receipt {
            send_receipt(from, key, cx.epoch, cx.actions);
        }
        self.advance_segment_tasks(key, cx);
        Some(end)
    }
}

/// Returns the local input to which an arriving segment is added. Only `Mutant::Accumulate` differs:
/// for a second stream it returns the result of the first, so that those bytes count twice.
#[cfg(feature = "mutants")]
fn local_input_of_received_segment(
    local: &ReduceInput,
    result: BufferView,
    incoming: &mut IncomingSegmentState,
) -> ReduceInput {
    let again = std::mem::replace(&mut incoming.tried, true);
    if again && mutant::is_mutant_active(Mutant::Accumulate) {
        return ReduceInput { view: result, weight: local.weight };
    }
    local.clone()
}

/// Returns the local operand for an arriving stream.
#[cfg(not(feature = "mutants"))]
fn local_input_of_received_segment(
    local: &ReduceInput,
    _: BufferView,
    _: &mut IncomingSegmentState,
) -> ReduceInput {
    local.clone()
}
