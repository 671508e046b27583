//! Credit: grants to peers and to this gateway as a relay, and grants and receipts from peers.

use super::flow::TransferFlow;
use super::part::{SegmentPayload, TransferPart};
use super::transfer_state::Transfer;
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::plan::{self, TreeUpstream};
use crate::session::action::Action;
use crate::session::context::Context;
use crate::size_class::SizeClass;
use crate::wire::{Message, SegmentKey};
use std::collections::BTreeSet;
use std::ops::Range;

/// The window of one receiver of grants, shared by all collectives, the oldest first.
struct GrantWindow {
    to: GatewayId,
    me: GatewayId,
    /// Segments beyond the last result that may still be granted.
    left: u64,
    /// Bytes of each class that relays hold outside the window, so that small collectives do not
    /// wait behind large ones. Peers keep an unsolicited window for that.
    reserves: [u64; SizeClass::ALL.len()],
}

impl Transfer {
    /// Grants credit to a peer or, as a relay of partials, to this gateway itself. Segments that
    /// meet posted memory are granted up to it. Segments that wait here for those of other peers
    /// are granted one window beyond the last result. All collectives share that window, the oldest
    /// first, so that one always advances. Partials of children take memory here until the result
    /// comes, so this gateway grants them to itself.
    pub(super) fn grant_credit(&mut self, to: GatewayId, cx: &mut Context<'_>) {
        let (me, epoch) = (cx.epoch.me(), cx.epoch.number());
        let Some(plans) = cx.epoch.plans() else { return };
        let plan = plans.plan();
        let window = if to == me {
            plans.relay_window()
        } else {
            plan::result_window(cx.epoch.local().fabric(), me, to, plan)
        };
        let left = window.get() / plan.segment.get();
        let reserves = SizeClass::ALL.map(SizeClass::reserved_bytes);
        let mut window = GrantWindow { to, me, left, reserves };
        let mut opened = Vec::new();
        // Partials that were passed on are held until their receipts are in, also when the result
        // is ready here.
        for (sequence, flow) in self.flows.iter_mut().filter(|(_, flow)| flow.is_moving()) {
            for (tree, limit) in window.raised_limits(flow) {
                let granted = flow.grants_out.insert((to, tree), limit).unwrap_or(0);
                if to != me {
                    let message = Message::Grant { epoch, sequence: *sequence, tree, limit };
                    cx.actions.push_message(to, message);
                    continue;
                }
                opened.extend((granted..limit).map(|segment| SegmentKey {
                    sequence: *sequence,
                    tree,
                    segment: SegmentIndex(segment),
                }));
            }
        }
        opened.into_iter().for_each(|key| self.advance_segment(key, cx));
    }

    /// Records that a peer accepts the first `limit` segments of a tree, and sends those that are
    /// ready.
    pub fn handle_grant(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        tree: TreeIndex,
        limit: u32,
        cx: &mut Context<'_>,
    ) {
        let granted = self.flow_or_new(sequence).grants_in.entry((from, tree)).or_default();
        // A repeated grant moves nothing.
        if limit > *granted {
            *granted = limit;
            self.moved = cx.now;
        }
        self.send_ready_segments(from, cx);
    }

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
        freed.into_iter().for_each(|to| self.grant_credit(to, cx));
        self.send_ready_segments(from, cx);
    }

    /// Records the first receipt of a segment that was sent. Returns the gateway that may have more
    /// credit by it, since memory here became free: this one, for partials of subtrees, or the one
    /// above, for what is passed on.
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
            self.release_partials_if_done(key, cx);
        }
        relay.filter(|_| is_held)
    }
}

impl GrantWindow {
    /// Returns the trees of a collective for which more may be granted, with their new limits in
    /// segments.
    fn raised_limits(&mut self, flow: &TransferFlow) -> Vec<(TreeIndex, u32)> {
        let (to, me, window) = (self.to, self.me, self.left);
        let reserve = &mut self.reserves[flow.size_class() as usize];
        let relayed = (to == me && *reserve > 0).then(|| flow.relayed_bytes(me));
        let reserved = relayed.filter(|relayed| relayed <= reserve);
        *reserve -= reserved.unwrap_or(0);
        let waiting = flow.parts.iter().filter(|part| part.is_buffered_here(to, me));
        let all: u64 = waiting.map(|part| u64::from(part.segment_count())).sum();
        let mut limits = Vec::new();
        for (tree, part) in flow.parts.iter().enumerate() {
            let tree = TreeIndex(u16::try_from(tree).unwrap_or(u16::MAX));
            let granted = flow.grants_out.get(&(to, tree)).copied().unwrap_or(0);
            let spared = reserved.is_some() && part.is_buffered_here(to, me);
            let limit = if part.lands_in_slot(to) || spared {
                part.segment_count()
            } else if part.streaming_peer(me) == Some(to) {
                part.local_prefix
            } else if part.is_buffered_here(to, me) {
                let all = if part.passes_on { None } else { Some(all) };
                self.take_tree_share(part, window, all, granted)
            } else {
                continue;
            };
            if limit > granted {
                limits.push((tree, limit));
            }
        }
        limits
    }

    /// Takes one tree's share out of the window, and returns the tree's new limit in segments.
    /// Each tree gets `window` in proportion to its segments among `all` of the collective, or
    /// without `all` what trees before it left; `granted` is its limit so far.
    fn take_tree_share(
        &mut self,
        part: &TransferPart,
        window: u64,
        all: Option<u64>,
        granted: u32,
    ) -> u32 {
        let in_proportion =
            |all: u64| (window * u64::from(part.segment_count())).div_ceil(all.max(1));
        let share = all.map_or(self.left, in_proportion);
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let first_unreleased_segment = part.first_unreleased_segment(self.to, self.me);
        let limit = part.segment_count().min(first_unreleased_segment.saturating_add(share));
        let taken = limit.max(granted).saturating_sub(first_unreleased_segment);
        self.left = self.left.saturating_sub(u64::from(taken));
        limit
    }
}
