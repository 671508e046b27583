//! Credit: grants to peers and to this gateway as a relay, and grants from peers.

use super::super::part::TransferPart;
use super::super::transfer_flow::TransferFlow;
use super::super::transfer_state::Transfer;
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::plan;
use crate::session::context::Context;
use crate::size_class::SizeClass;
use crate::wire::{Message, SegmentKey};
use std::collections::BTreeMap;
use std::ops::Range;

/// The window of one receiver of grants, shared by all collectives, the oldest first.
struct GrantWindow {
    to: GatewayId,
    me: GatewayId,
    /// The segments beyond the last result that may be granted.
    segments: u64,
    /// The segments that older collectives leave to the next one.
    left: u64,
    /// The segments that are granted to no collective.
    free: u64,
    /// Bytes of each class that relays hold outside the window, so that small collectives do not
    /// wait behind large ones. Peers keep an unsolicited window for that.
    reserves: [u64; SizeClass::ALL.len()],
}

/// Segments of a tree that may be sent from now on.
struct RaisedLimit {
    sequence: Sequence,
    tree: TreeIndex,
    segments: Range<u32>,
}

impl Transfer {
    /// Grants credit to a peer or, as a relay of partials, to this gateway itself. Segments that
    /// meet posted memory are granted up to it. Segments that wait here for those of other peers
    /// are granted one window beyond the last result. All collectives share that window, the oldest
    /// first, so that one always advances. Partials of children take memory here until the result
    /// comes, so this gateway grants them to itself.
    pub(in crate::session::transfer) fn grant_credit(
        &mut self,
        to: GatewayId,
        cx: &mut Context<'_>,
    ) {
        let (me, epoch) = (cx.epoch.me(), cx.epoch.number());
        let Some(plans) = cx.epoch.plans() else { return };
        let (plan, fabric) = (plans.plan(), cx.epoch.local().fabric());
        let is_relay = self.is_relay(cx);
        let passes_on = || {
            let mut parts = self.flows.values().flat_map(|flow| &flow.parts);
            parts.any(|part| part.passes_on && part.comes_down_from(to))
        };
        let window = if to == me {
            plans.relay_window()
        } else if is_relay {
            plan::relayed_window_size(fabric, me, plan)
        } else if passes_on() {
            plan::passed_on_window_size(fabric, me, to, plan)
        } else {
            plan::result_window_size(fabric, me, to, plan)
        };
        let window = GrantWindow::new(to, me, window.get() / plan.segment.get());
        self.give_back_relayed();
        let (partials, relayed) = (&mut self.partials, &mut self.relayed);
        let take = |class: SizeClass, bytes: u64, is_needed: bool| {
            if !is_relay {
                return true;
            }
            if is_needed {
                partials.take_beyond(class, bytes);
            } else if !partials.try_take(class, bytes) {
                return false;
            }
            relayed[class as usize] += bytes;
            true
        };
        let mut opened = Vec::new();
        for RaisedLimit { sequence, tree, segments } in window.raise_limits(&mut self.flows, take) {
            if to != me {
                let message = Message::Grant { epoch, sequence, tree, limit: segments.end };
                cx.actions.push_message(to, message);
                continue;
            }
            let key = |segment| SegmentKey { sequence, tree, segment: SegmentIndex(segment) };
            opened.extend(segments.map(key));
        }
        opened.into_iter().for_each(|key| self.advance_segment_tasks(key, cx));
    }

    /// Whether this gateway has no ranks, so that it only passes on what others send.
    pub(in crate::session::transfer) fn is_relay(&self, cx: &Context<'_>) -> bool {
        cx.epoch.local().fabric().gateway(cx.epoch.me()).ranks.is_empty()
    }

    /// Gives back the memory for partials of what this gateway, which has no ranks, has passed on, or
    /// does not pass on any more.
    pub(in crate::session::transfer) fn give_back_relayed(&mut self) {
        if self.relayed.iter().all(|bytes| *bytes == 0) {
            return;
        }
        let mut left = [0; SizeClass::ALL.len()];
        for flow in self.flows.values().filter(|flow| flow.is_moving()) {
            left[flow.size_class() as usize] += flow.passed_on_bytes();
        }
        for class in SizeClass::ALL {
            let (held, left) = (&mut self.relayed[class as usize], left[class as usize]);
            self.partials.give_back(class, held.saturating_sub(left));
            *held = left.min(*held);
        }
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
            self.note_exchange(sequence, cx.actions);
        }
        self.send_ready_segments(from, cx);
    }
}

impl GrantWindow {
    /// Makes a window of so many segments, of which none are granted.
    fn new(to: GatewayId, me: GatewayId, segments: u64) -> Self {
        let reserves = SizeClass::ALL.map(SizeClass::reserved_bytes);
        Self { to, me, segments, left: segments, free: segments, reserves }
    }

    /// Raises the limits of collectives as far as the window allows, and for what is passed on as far
    /// as `take` gives memory. Returns the segments that are granted now.
    ///
    /// The oldest collective always gets a segment. Gateways in a row learn of collectives in different
    /// orders. If each held what another one waits for, nothing would move.
    fn raise_limits(
        mut self,
        flows: &mut BTreeMap<Sequence, TransferFlow>,
        mut take: impl FnMut(SizeClass, u64, bool) -> bool,
    ) -> Vec<RaisedLimit> {
        // Partials that were passed on are held until their receipts are in, also when the result
        // is ready here.
        flows.values().filter(|flow| flow.is_moving()).for_each(|flow| self.take_granted(flow));
        let (mut raised, mut is_oldest) = (Vec::new(), true);
        for (sequence, flow) in flows.iter_mut().filter(|(_, flow)| flow.is_moving()) {
            let limits = self.raised_limits(flow);
            let is_first = is_oldest && self.passes_on(flow);
            is_oldest &= !is_first;
            for (tree, limit) in limits {
                let limit = self.limit_within_memory(flow, tree, (limit, is_first), &mut take);
                let granted = flow.grants_out.entry((self.to, tree)).or_default();
                let segments = std::mem::replace(granted, limit.max(*granted))..limit;
                if !segments.is_empty() {
                    raised.push(RaisedLimit { sequence: *sequence, tree, segments });
                }
            }
        }
        raised
    }

    /// Lowers the new limit of a tree to the segments for which `take` gives memory, which it must for
    /// the next segment of the first collective. Those that do not wait here for other peers need none.
    fn limit_within_memory(
        &self,
        flow: &TransferFlow,
        tree: TreeIndex,
        (limit, is_first): (u32, bool),
        take: &mut impl FnMut(SizeClass, u64, bool) -> bool,
    ) -> u32 {
        let part = &flow.parts[usize::from(tree.0)];
        if !part.passes_on {
            return limit;
        }
        let granted = flow.grants_out.get(&(self.to, tree)).copied().unwrap_or(0);
        let unreleased = part.first_unreleased_segment(self.to, self.me);
        let first = granted.max(unreleased).min(limit);
        let class = flow.size_class();
        let is_needed = |index: u32| is_first && index == unreleased;
        let refused = (first..limit)
            .find(|index| !take(class, part.segment_bytes(*index), is_needed(*index)));
        refused.unwrap_or(limit)
    }

    /// Whether a collective still has segments that this gateway passes on from the other one.
    fn passes_on(&self, flow: &TransferFlow) -> bool {
        let is_open = |part: &TransferPart| {
            let is_done = part.first_unreleased_segment(self.to, self.me) == part.segment_count();
            part.passes_on && part.comes_down_from(self.to) && !is_done
        };
        flow.parts.iter().any(is_open)
    }

    /// Takes out of the window, or of the reserve, what a collective was granted before.
    fn take_granted(&mut self, flow: &TransferFlow) {
        if self.holds_reserve(flow) {
            let reserve = &mut self.reserves[flow.size_class() as usize];
            *reserve = reserve.saturating_sub(flow.relayed_bytes(self.me));
            return;
        }
        let parts = (0..).map(TreeIndex).zip(&flow.parts);
        let granted = parts.map(|(tree, part)| {
            let granted = flow.grants_out.get(&(self.to, tree)).copied().unwrap_or(0);
            let held = granted.saturating_sub(part.first_unreleased_segment(self.to, self.me));
            if held > 0 && part.is_buffered_here(self.to, self.me) { held } else { 0 }
        });
        self.free = self.free.saturating_sub(granted.map(u64::from).sum());
    }

    /// Returns the trees of a collective for which more may be granted, with their new limits in
    /// segments.
    fn raised_limits(&mut self, flow: &mut TransferFlow) -> Vec<(TreeIndex, u32)> {
        let (to, me, window) = (self.to, self.me, self.left);
        self.take_reserve(flow);
        let waiting = flow.parts.iter().filter(|part| part.is_buffered_here(to, me));
        let all: u64 = waiting.map(|part| u64::from(part.segment_count())).sum();
        let mut limits = Vec::new();
        for (tree, part) in flow.parts.iter().enumerate() {
            let tree = TreeIndex(u16::try_from(tree).unwrap_or(u16::MAX));
            let granted = flow.grants_out.get(&(to, tree)).copied().unwrap_or(0);
            let is_spared = self.holds_reserve(flow) && part.is_buffered_here(to, me);
            let limit = if part.lands_in_slot(to) || is_spared {
                part.segment_count()
            } else if part.streaming_peer(me) == Some(to) {
                part.local_prefix
            } else if part.is_buffered_here(to, me) {
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

    /// Whether the partials of a collective lie in the bytes that relays keep for its size class,
    /// outside this window. Only the window that a relay grants itself (`to == me`) has such bytes.
    fn holds_reserve(&self, flow: &TransferFlow) -> bool {
        self.to == self.me && flow.has_reserve
    }

    /// Gives a collective its part of the reserve of its size class, if this gateway is a relay and
    /// all that it may come to hold fits. The collective keeps it.
    fn take_reserve(&mut self, flow: &mut TransferFlow) {
        let reserve = &mut self.reserves[flow.size_class() as usize];
        if self.to != self.me || flow.has_reserve || *reserve == 0 {
            return;
        }
        let relayed = flow.relayed_bytes(self.me);
        flow.has_reserve = relayed <= *reserve;
        *reserve -= if flow.has_reserve { relayed } else { 0 };
    }

    /// Takes one tree's share out of the window, and returns the tree's new limit in segments.
    /// Each tree gets `window` in proportion to its segments among `all` of the collective; `granted` is
    /// its limit so far. So what is passed on to several gateways goes to all of them at once.
    ///
    /// Shares are rounded up, so that each tree of the oldest collective advances. Trees of blocks that
    /// are passed on may be many: they get no more than trees before them left, and go on once those are
    /// done. Later collectives get no more than what is free, since older ones could round up by more
    /// once they get more.
    fn take_tree_share(&mut self, part: &TransferPart, window: u64, all: u64, granted: u32) -> u32 {
        let share = (window * u64::from(part.segment_count())).div_ceil(all.max(1));
        let share = if part.passes_on { share.min(self.left) } else { share };
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let first_unreleased_segment = part.first_unreleased_segment(self.to, self.me);
        let before = granted.max(first_unreleased_segment);
        let limit = part.segment_count().min(first_unreleased_segment.saturating_add(share));
        let is_oldest = window == self.segments;
        let free = u32::try_from(self.free).unwrap_or(u32::MAX);
        let limit = if is_oldest { limit } else { limit.min(before.saturating_add(free)) };
        self.free = self.free.saturating_sub(u64::from(limit.saturating_sub(before)));
        let taken = limit.max(granted).saturating_sub(first_unreleased_segment);
        self.left = self.left.saturating_sub(u64::from(taken));
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer_part::{BufferPart, CUT_BYTES};
    use crate::descriptor::{
        AgreedCounts, ArrayShape, Descriptor, Dtype, KnownCounts, Pattern, ReduceOp,
    };
    use crate::parts::{Block, BlockRanks, OperationPart};
    use crate::plan::{OperationPhases, Plan, PlanAlgorithm, Tree, TreeDirection};
    use crate::session::transfer::transfer_flow::{FlowStage, TransferFlowWork};
    use crate::testing::SplitMix64;
    use std::borrow::Cow;
    use units::ByteCount;

    const ME: GatewayId = GatewayId(0);
    const CHILD: GatewayId = GatewayId(1);
    const PARENT: GatewayId = GatewayId(2);

    /// Makes a collective with so many segments along each tree, in all of which this gateway passes on
    /// the partials of a child.
    fn relayed_collective(counts: &[u64]) -> TransferFlow {
        let segment = ByteCount::new(CUT_BYTES);
        let (reason, express_bytes) = (String::new(), ByteCount::default());
        let algorithm = PlanAlgorithm::Relay;
        let plan = Plan {
            algorithm,
            reason,
            segment,
            express_bytes,
            trees: vec![],
            block_trees: vec![],
            block_bytes_min: ByteCount::default(),
        };
        let parents = BTreeMap::from([(ME, PARENT), (CHILD, ME)]);
        let tree = Tree { share: 1, direction: TreeDirection::Both, roots: vec![PARENT], parents };
        let part = |count: &u64| {
            let part = BufferPart::of_block(0..count * CUT_BYTES, &plan);
            let (contributors, receivers) = (BlockRanks::All, BlockRanks::All);
            let blocks = vec![Block { part, result_start: 0, contributors, receivers }];
            let phases = OperationPhases { up: true, down: true };
            let tree = Cow::Borrowed(&tree);
            TransferPart::new(OperationPart { tree, phases, follows: false, blocks }, ME, &(0..1))
        };
        let descriptor = Descriptor {
            op: ReduceOp::Sum,
            dtype: Dtype::U8,
            elements: counts.iter().sum::<u64>() * CUT_BYTES,
            layout_hash: 0,
            shape: ArrayShape::FLAT,
            pattern: Pattern::AllReduce,
            counts: AgreedCounts::Even,
        };
        let (counts_known, weights) = (KnownCounts::default(), BTreeMap::new());
        let work = TransferFlowWork { descriptor, counts: counts_known, weights };
        let parts = counts.iter().map(part).collect();
        let stage = FlowStage::Moving;
        TransferFlow { stage, work: Some(work), parts, ..TransferFlow::default() }
    }

    /// Returns the segments that a collective was granted along a tree and that are not released.
    fn granted_segments(flow: &TransferFlow, to: GatewayId, tree: usize) -> u32 {
        let key = (to, TreeIndex(u16::try_from(tree).expect("few")));
        let granted = flow.grants_out.get(&key).copied().unwrap_or(0);
        granted.saturating_sub(flow.parts[tree].done_prefix)
    }

    /// Releases up to `count` granted segments along a tree.
    fn release_segments(flow: &mut TransferFlow, to: GatewayId, tree: usize, count: u32) {
        let count = count.min(granted_segments(flow, to, tree));
        let part = &mut flow.parts[tree];
        part.done_prefix += count;
        (part.result_prefix, part.local_prefix) = (part.done_prefix, part.done_prefix);
    }

    fn is_done(flow: &TransferFlow) -> bool {
        flow.parts.iter().all(is_released)
    }

    fn is_released(part: &TransferPart) -> bool {
        part.done_prefix == part.segment_count()
    }

    /// Makes and advances collectives at random, and checks the sum of all that is granted.
    fn check_random_grants(to: GatewayId, dice: &mut SplitMix64) {
        let trees = dice.range(1, 6);
        let segments = dice.range(1, 24);
        let kept: u64 = SizeClass::ALL.into_iter().map(SizeClass::reserved_bytes).sum();
        let kept = if to == ME { kept / CUT_BYTES } else { 0 };
        let longest = [4, 16, 64][dice.range(0, 2) as usize];
        let mut flows: BTreeMap<Sequence, TransferFlow> = BTreeMap::new();
        let mut posted = 0;
        while posted < 30 || !flows.is_empty() {
            if posted < 30 && flows.len() < 8 && dice.chance(30) {
                let count = |_| if dice.chance(20) { 0 } else { dice.range(1, longest) };
                let counts: Vec<u64> = (0..trees).map(count).collect();
                flows.insert(Sequence(posted), relayed_collective(&counts));
                posted += 1;
            }
            GrantWindow::new(to, ME, segments).raise_limits(&mut flows, |_, _, _| true);
            let granted_of = |flow: &TransferFlow| -> u32 {
                (0..flow.parts.len()).map(|tree| granted_segments(flow, to, tree)).sum()
            };
            let granted: u32 = flows.values().map(granted_of).sum();
            let most = segments + trees + kept;
            assert!(u64::from(granted) <= most, "{granted} segments granted, above {most}");
            if let Some((sequence, oldest)) = flows.first_key_value() {
                let waits = |tree: &usize| granted_segments(oldest, to, *tree) == 0;
                let mut open =
                    (0..oldest.parts.len()).filter(|tree| !is_released(&oldest.parts[*tree]));
                assert_eq!(open.find(waits), None, "a tree of the oldest, {sequence}, waits");
            }
            for flow in flows.values_mut() {
                for tree in 0..flow.parts.len() {
                    let count = if dice.chance(40) { dice.range(0, 3) } else { 0 };
                    release_segments(flow, to, tree, u32::try_from(count).expect("few"));
                }
            }
            flows.retain(|_, flow| !is_done(flow));
        }
    }

    #[test]
    fn grants_of_all_collectives_stay_within_their_window() {
        for seed in 0..1500 {
            for to in [CHILD, ME] {
                println!("seed {seed}, grants to {to}");
                check_random_grants(to, &mut SplitMix64(seed));
            }
        }
    }
}
