//! Receipts of segments: they release memory and windows, and let more segments go.

use super::super::part::SegmentPayload;
use super::super::transfer_state::Transfer;
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::plan::TreeUpstream;
use crate::session::action::Action;
use crate::session::context::Context;
use crate::wire::SegmentKey;
use std::collections::BTreeSet;
use std::ops::Range;

impl Transfer {
    /// Records a peer's receipts for some segments of a tree. Frees the memory and the window space
    /// of the segments, and sends what waited for space.
    pub fn handle_receipts(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        tree: TreeIndex,
        segments: Range<u32>,
        cx: &mut Context<'_>,
    ) {
        let key = |segment| SegmentKey { sequence, tree, segment: SegmentIndex(segment) };
        self.unsolicited.release_receipted(from, key(segments.start)..key(segments.end));
        let part = self.flows.get(&sequence).and_then(|f| f.parts.get(usize::from(tree.0)));
        let out = part.and_then(|part| part.out.get(&from));
        let due = out.into_iter().flat_map(|out| out.due.range(segments.clone()));
        let due: Vec<SegmentKey> = due.copied().map(key).collect();
        let freed: BTreeSet<GatewayId> =
            due.into_iter().filter_map(|key| self.handle_receipt(from, key, cx)).collect();
        if !freed.is_empty() && self.is_relay(cx) {
            // What one peer's segments held may be what another waits for, so others go first.
            for peer in cx.epoch.ready_peers().into_iter().filter(|peer| !freed.contains(peer)) {
                self.grant_credit(peer, cx);
            }
        }
        freed.into_iter().for_each(|to| self.grant_credit(to, cx));
        self.send_ready_segments(from, cx);
    }

    /// Records the first receipt of a segment that was sent. Returns the gateway that may have more
    /// credit, since memory here became free. It is this one for partials of subtrees, or the one
    /// above for what is passed on. `None` where nothing became free.
    fn handle_receipt(
        &mut self,
        from: GatewayId,
        key: SegmentKey,
        cx: &mut Context<'_>,
    ) -> Option<GatewayId> {
        let flow = self.flows.get_mut(&key.sequence)?;
        let part = flow.parts.get_mut(usize::from(key.tree.0))?;
        let outbound = part.out.get_mut(&from)?;
        outbound.due.remove(&key.segment.0);
        cx.actions.push(Action::Receipted { from, key });
        self.moved = cx.now;
        let is_held = outbound.payload == SegmentPayload::Partial || part.passes_on;
        let relay = match part.role.upstream {
            TreeUpstream::Parent(parent) if part.passes_on => Some(parent),
            _ if part.needs_partial_task() => Some(cx.epoch.me()),
            _ => None,
        };
        let hands_up = part.only_sends_partial();
        let segment = part.segment_mut(key.segment.0);
        segment.receipts_due -= 1;
        segment.held_due -= u16::from(is_held);
        if hands_up {
            self.handle_result_in_place(key, cx);
        } else if is_held {
            self.release_partials_after_task(key, cx);
        }
        relay.filter(|_| is_held)
    }
}
