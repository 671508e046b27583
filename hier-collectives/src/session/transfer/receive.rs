//! Segments in: the place for their bytes, and the next step once they are whole.

use super::flow::{Flow, Stage, fits};
use super::segment::{Incoming, PartState};
use super::state::{Transfer, send_receipt};
use super::unsolicited::UnsolicitedBound;
use crate::ids::{GatewayId, Sequence};
#[cfg(feature = "mutants")]
use crate::mutant::{self, Mutant};
use crate::session::action::{Action, Arrival, Discard, Input, LeaseId, PeerError, View};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::state::EpochState;
use crate::wire::{SegmentHeader, SegmentKey};
use std::collections::btree_map::Entry;

/// A stream that ended.
#[derive(Debug)]
pub(in crate::session) struct StreamEnd {
    pub sequence: Sequence,
    /// The segment that landed by it, if it was the first to end whole.
    pub landed: Option<Landed>,
}

/// A segment that is here whole.
#[derive(Debug)]
pub(in crate::session) struct Landed {
    pub from: GatewayId,
    /// It is part of a result that contains the parts of all ranks.
    pub of_all_ranks: bool,
}

impl Transfer {
    /// The header of a segment arrived, of a collective that this gateway takes part in. Returns
    /// the place for its bytes.
    ///
    /// # Errors
    /// [`PeerError`]: the plan has no such segment, or the peer exceeded its unsolicited window.
    pub fn handle_header(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
        epoch: &EpochState,
        actions: &mut ActionQueue,
    ) -> Result<Arrival, PeerError> {
        let key = header.key;
        let no_such = PeerError::NoSuchSegment { key, bytes: header.bytes };
        let Some(bound) = UnsolicitedBound::of(epoch, from) else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        let flow = self.flow(key.sequence);
        let part = flow.parts.get(usize::from(key.tree.0));
        if part.is_some_and(|part| !fits(part, from, epoch.me(), key.segment, header.bytes)) {
            return Err(no_such);
        }
        let shape = (header.bytes, header.digest, header.parity > 0);
        let (bytes, digest, parity) = shape;
        let incoming = match flow.incoming.entry((from, key.tree, key.segment)) {
            Entry::Vacant(entry) => {
                entry.insert(Incoming { bytes, digest, parity, ..Incoming::default() })
            }
            // The first header may have reserved memory, and parity decides where it goes.
            Entry::Occupied(entry) if entry.get().shape() != shape => return Err(no_such),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if incoming.landed {
            if incoming.receipted {
                send_receipt(from, key, epoch, actions);
            }
            return Ok(Arrival::Discard(Discard::Duplicate));
        }
        incoming.weight = header.weight;
        self.place(from, key, &bound, epoch)
    }

    /// Decides where an arriving segment goes, and registers the lease.
    fn place(
        &mut self,
        from: GatewayId,
        key: SegmentKey,
        bound: &UnsolicitedBound,
        epoch: &EpochState,
    ) -> Result<Arrival, PeerError> {
        let lease = self.handles.lease_id();
        let Some(flow) = self.flows.get_mut(&key.sequence) else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        let granted = flow.grants_out.get(&(from, key.tree)).copied().unwrap_or(0);
        let slot = flow.result_slot(key.sequence);
        let Flow { work, parts, incoming, busy, .. } = flow;
        let Some(incoming) = incoming.get_mut(&(from, key.tree, key.segment)) else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        let part = parts.get(usize::from(key.tree.0));
        let result = |part: &PartState| part.view(key.segment.0, slot);
        let local = part
            .filter(|part| part.streams_from(epoch.me()) == Some(from))
            .and_then(|part| part.streaming_operand(key.segment.0));
        let arrival = match (part, local, work) {
            // A stream that began while the operand was missing goes on into scratch.
            (Some(part), Some(local), Some(work))
                if incoming.landed_in.is_none() && !incoming.parity =>
            {
                Arrival::Combine {
                    lease,
                    op: work.descriptor.op,
                    dtype: work.descriptor.dtype,
                    local: operand(local, result(part), incoming),
                    net_weight: incoming.weight,
                    net_first: from < epoch.me(),
                    out: result(part),
                }
            }
            (Some(part), _, _) if part.comes_down_from(from) => {
                // A segment that began before the post goes on where it began.
                let into = incoming.landed_in.get_or_insert_with(|| result(part)).clone();
                Arrival::Land { lease, into }
            }
            _ => {
                let into = match incoming.landed_in.clone() {
                    Some(view) => view,
                    None => self.handles.landing(u64::from(incoming.bytes)),
                };
                let is_new = incoming.landed_in.replace(into.clone()).is_none();
                let unsolicited = key.segment.0 >= granted || incoming.parity;
                if is_new && unsolicited {
                    incoming.unsolicited_bytes = bound.charge(incoming.bytes);
                    let used = self.unsolicited.hold(from, incoming.unsolicited_bytes);
                    if used > bound.limit() {
                        return Err(PeerError::UnsolicitedOverrun { used, room: bound.limit() });
                    }
                }
                Arrival::Land { lease, into }
            }
        };
        incoming.leases.insert(lease);
        *busy += 1;
        self.handles.hold_lease(lease, from, key);
        Ok(arrival)
    }

    /// A stream ended: whole, or cut off. None when its collective is not known any more.
    pub fn handle_stream_end(
        &mut self,
        lease: LeaseId,
        whole: bool,
        cx: &mut Context<'_>,
    ) -> Option<StreamEnd> {
        let (from, key) = self.handles.end_lease(lease)?;
        let flow = self.flows.get_mut(&key.sequence)?;
        flow.busy -= 1;
        let mut end = StreamEnd { sequence: key.sequence, landed: None };
        let healthy = flow.stage != Stage::Failed;
        let Some(incoming) = flow.incoming.get_mut(&(from, key.tree, key.segment)) else {
            return Some(end);
        };
        // A lease that it does not know was of another shape, and wrote elsewhere.
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
        let receipt = incoming.unsolicited_bytes == 0 && !incoming.receipted;
        incoming.receipted |= receipt;
        flow.wan_end = cx.now;
        self.moved = cx.now;
        let part = flow.parts.get(usize::from(key.tree.0));
        let sums = |part: &PartState| part.phases.up || part.follows;
        let of_all_ranks = part.is_some_and(|part| sums(part) && part.comes_down_from(from));
        end.landed = Some(Landed { from, of_all_ranks });
        if receipt {
            send_receipt(from, key, cx.epoch, cx.actions);
        }
        self.advance(key, cx);
        Some(end)
    }
}

/// The local operand of a combined stream. A mutant takes the sum when the stream is repeated.
#[cfg(feature = "mutants")]
fn operand(local: &Input, result: View, incoming: &mut Incoming) -> Input {
    let again = std::mem::replace(&mut incoming.tried, true);
    if again && mutant::is(Mutant::Accumulate) {
        return Input { view: result, weight: local.weight };
    }
    local.clone()
}

/// The local operand of a combined stream.
#[cfg(not(feature = "mutants"))]
fn operand(local: &Input, _: View, _: &mut Incoming) -> Input {
    local.clone()
}
