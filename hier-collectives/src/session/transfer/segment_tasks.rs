//! The way of a segment from partials to result, as far as its inputs allow.

use super::part::SegmentState;
use super::send::send_receipt;
use super::transfer_flow::{FlowStage, TransferFlow};
use super::transfer_handles::ReduceTask;
use super::transfer_state::Transfer;
use crate::ids::{GatewayId, RankId, SegmentIndex, Sequence, TreeIndex};
use crate::plan::TreeUpstream;
use crate::session::action::{Action, BufferView, ReduceInput, TaskId};
use crate::session::context::Context;
use crate::wire::SegmentKey;
use std::collections::{BTreeMap, BTreeSet};

impl Transfer {
    /// Continues the segment whose reduction or copy has ended. Returns its collective; `None` if
    /// that is forgotten.
    pub fn handle_task_done(&mut self, task: TaskId, cx: &mut Context<'_>) -> Option<Sequence> {
        let (key, task) = self.handles.end_task(task)?;
        let flow = self.flows.get_mut(&key.sequence)?;
        flow.busy -= 1;
        if flow.stage == FlowStage::Failed {
            return Some(key.sequence);
        }
        self.moved = cx.now;
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let segment = part.segment_mut(key.segment.0);
        match task {
            ReduceTask::Local => {
                let input = segment.scratch.last().cloned();
                let weight = flow.work.iter().flat_map(|work| work.weights.values()).sum();
                segment.local = input.map(|view| ReduceInput { view, weight });
                self.advance_segment_tasks(key, cx);
                self.send_to_all_peers(cx);
            }
            ReduceTask::Partial => self.handle_partial_task_done(key, cx),
            ReduceTask::Result => {
                segment.combining = false;
                let peers = match part.role.upstream {
                    TreeUpstream::Parent(parent) => vec![parent],
                    TreeUpstream::RootSet(_) => part.remote_operands(cx.epoch.me()),
                };
                self.release_task_inputs(key, &peers, cx);
                self.handle_result_in_place(key, cx);
            }
            ReduceTask::Deliver => {
                part.delivered += 1;
                report_copied_results(flow, key, cx);
            }
        }
        Some(key.sequence)
    }

    /// Frees the inputs of a subtree's partial that a task has made in scratch, and sends the
    /// partial on.
    fn handle_partial_task_done(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let children = part.role.children.clone();
        let weights = children.iter().filter_map(|child| {
            let incoming = flow.incoming.get(&(*child, key.tree, key.segment));
            incoming.map(|incoming| incoming.weight)
        });
        let segment = part.segment_mut(key.segment.0);
        let own = segment.local.as_ref().map_or(0.0, |input| input.weight);
        let weight = weights.sum::<f64>() + own;
        segment.combining = false;
        segment.partial =
            segment.scratch.last().map(|view| ReduceInput { view: view.clone(), weight });
        self.release_task_inputs(key, &children, cx);
        self.advance_segment_tasks(key, cx);
        self.send_to_all_peers(cx);
    }

    /// Starts the next reduction, send or copy of a segment for which all inputs are here.
    pub(super) fn advance_segment_tasks(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let me = cx.epoch.me();
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let Some(part) = flow.parts.get_mut(usize::from(key.tree.0)) else { return };
        let index = key.segment.0;
        if !part.phases.up {
            return self.take_parent_result_task(key, cx);
        }
        if part.segment_mut(index).partial.is_none() {
            if part.needs_partial_task() {
                // Its memory is held until the result is here.
                let open = flow.grants_out.get(&(me, key.tree)).copied().unwrap_or(0);
                if index >= open {
                    return;
                }
                let children = part.role.children.clone();
                return self.start_reduce_task(key, ReduceTask::Partial, &children, cx);
            }
            part.segment_mut(index).partial = part.segment_mut(index).local.clone();
        }
        while part.local_prefix < part.segment_count()
            && part.segments[part.local_prefix as usize].partial.is_some()
        {
            part.local_prefix += 1;
        }
        let operands = part.remote_operands(me);
        let from_above = match part.role.upstream {
            TreeUpstream::Parent(parent) => {
                flow.incoming.get(&(parent, key.tree, key.segment)).is_some_and(|i| i.landed)
            }
            TreeUpstream::RootSet(_) => false,
        };
        let streamed = operands.iter().any(|peer| {
            let incoming = flow.incoming.get(&(*peer, key.tree, key.segment));
            incoming.is_some_and(|i| i.landed && i.landed_in.is_none())
        });
        if from_above || streamed {
            self.handle_result_in_place(key, cx);
        } else if !matches!(part.role.upstream, TreeUpstream::Parent(_)) {
            self.start_reduce_task(key, ReduceTask::Result, &operands, cx);
        }
    }

    /// Places a result that came down the tree. Copies it into the slot if it landed in scratch
    /// before the local ranks had posted.
    fn take_parent_result_task(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let Some(work) = &flow.work else { return };
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let TreeUpstream::Parent(parent) = part.role.upstream else { return };
        let incoming = flow.incoming.get(&(parent, key.tree, key.segment));
        let Some(from) = incoming.filter(|i| i.landed).and_then(|i| i.landed_in.clone()) else {
            return;
        };
        if part.passes_on {
            part.segment_mut(key.segment.0).moved = Some(from);
            return self.handle_result_in_place(key, cx);
        }
        let slot = work.result_view(part, key.segment.0, key.sequence);
        if from.buffer == slot.buffer {
            return self.handle_result_in_place(key, cx);
        }
        let to = vec![slot];
        let segment = part.segment_mut(key.segment.0);
        if !segment.result && !std::mem::replace(&mut segment.combining, true) {
            flow.busy += 1;
            let task = self.handles.begin_task(key, ReduceTask::Result);
            cx.actions.push(Action::Copy { task, from, to });
        }
    }

    /// Starts the task `purpose` of a segment, which reduces our operand and those of `peers` in
    /// gateway order. Does nothing while an operand is missing or a task runs, or if the result is
    /// here.
    fn start_reduce_task(
        &mut self,
        key: SegmentKey,
        purpose: ReduceTask,
        peers: &[GatewayId],
        cx: &mut Context<'_>,
    ) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let TransferFlow { work: Some(work), parts, incoming, busy, .. } = flow else { return };
        let part = &mut parts[usize::from(key.tree.0)];
        let segment = &part.segments[key.segment.0 as usize];
        let own = if purpose == ReduceTask::Partial { &segment.local } else { &segment.partial };
        let Some(own) = own.clone() else { return };
        if segment.combining || segment.result {
            return;
        }
        let mut operands = BTreeMap::from([(cx.epoch.me(), own)]);
        for peer in peers {
            let incoming = incoming.get(&(*peer, key.tree, key.segment)).filter(|i| i.landed);
            let Some(incoming) = incoming else { return };
            let Some(view) = incoming.landed_in.clone() else { return };
            operands.insert(*peer, ReduceInput { view, weight: incoming.weight });
        }
        let out = if purpose == ReduceTask::Partial {
            let out = self.handles.new_scratch(part.segment_bytes(key.segment.0));
            part.segment_mut(key.segment.0).scratch.push(out.clone());
            out
        } else {
            work.result_view(part, key.segment.0, key.sequence)
        };
        part.segment_mut(key.segment.0).combining = true;
        *busy += 1;
        let task = self.handles.begin_task(key, purpose);
        let (op, dtype) = (work.descriptor.op, work.descriptor.dtype);
        let inputs = operands.into_values().collect();
        cx.actions.push(Action::Reduce { task, op, dtype, inputs, out });
    }

    /// Frees the landed inputs of a finished task and sends their receipts to `peers`.
    fn release_task_inputs(&mut self, key: SegmentKey, peers: &[GatewayId], cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let mut receipts = Vec::new();
        for from in peers {
            let incoming = flow.incoming.get_mut(&(*from, key.tree, key.segment));
            let Some(incoming) = incoming else { continue };
            if let Some(view) = &incoming.landed_in {
                cx.actions.release_scratch(view);
            }
            self.unsolicited.refund_peer(*from, std::mem::take(&mut incoming.unsolicited_bytes));
            if !std::mem::replace(&mut incoming.receipted, true) {
                receipts.push(*from);
            }
        }
        for from in receipts {
            send_receipt(from, key, cx.epoch, cx.actions);
        }
    }

    /// Marks the result of a segment as in place, copies it to the other local ranks, and sends
    /// segments that are ready now.
    pub(super) fn handle_result_in_place(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        self.place_task_result(key, cx);
        self.send_to_all_peers(cx);
    }

    /// Marks a segment's result as in place, in the first result slot or in a contribution here.
    /// Copies it to the other local ranks that get it, and frees partials. Where no result is due
    /// along this tree, the parent has receipted the partial instead. A separate tree for results
    /// has the result then, too.
    pub(super) fn place_task_result(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let Some(work) = &flow.work else { return };
        let part = &mut flow.parts[usize::from(key.tree.0)];
        if std::mem::replace(&mut part.segment_mut(key.segment.0).result, true) {
            return;
        }
        while part.result_prefix < part.segment_count()
            && part.segments[part.result_prefix as usize].result
        {
            part.result_prefix += 1;
        }
        // Results along a tree of their own are in place here as those of the tree before it are.
        let elsewhere = part.only_sends_partial() || part.follows && part.is_at_root();
        let slot = |rank: RankId| part.result_view(key.segment.0, key.sequence, rank);
        let mut receivers =
            work.local_ranks_of(part.receivers(key.segment.0)).filter(|_| !elsewhere);
        let moved = part.segments[key.segment.0 as usize].moved.clone();
        let made_for = if moved.is_none() { receivers.next() } else { None };
        let (from, to) = (moved.or(made_for.map(slot)), receivers.map(slot));
        let to = to.collect::<Vec<BufferView>>();
        if let Some(rank) = made_for {
            report_result_to(rank, slot(rank), &flow.reports_to, key, cx);
        }
        match from {
            Some(from) if !to.is_empty() => {
                flow.busy += 1;
                let task = self.handles.begin_task(key, ReduceTask::Deliver);
                cx.actions.push(Action::Copy { task, from, to });
            }
            _ => part.delivered += 1,
        }
        let made = part.phases.up && part.is_at_root();
        let behind = TreeIndex(key.tree.0 + 1);
        let follows = flow.parts.get(usize::from(behind.0)).is_some_and(|part| part.follows);
        self.release_partials_after_task(key, cx);
        if made && follows {
            self.place_task_result(SegmentKey { tree: behind, ..key }, cx);
        }
    }

    /// Frees a segment's partials once its result is here and their receivers have receipted them.
    pub(super) fn release_partials_after_task(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let (several, class) = (flow.has_partials(), flow.size_class());
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let scratch = part.take_scratch_if_done(key.segment.0);
        for view in &scratch {
            cx.actions.release_scratch(view);
        }
        if several && let Some(local) = scratch.first() {
            self.partials.give_back(class, local.range.end);
            self.start_local_reductions(cx);
        }
        self.release_passed_on_after_task(key, cx);
    }

    /// Frees a segment that this gateway has passed on, and receipts it to the gateway above. A
    /// withheld receipt goes out with the last of the other segments.
    fn release_passed_on_after_task(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get(&key.sequence) else { return };
        let part = &flow.parts[usize::from(key.tree.0)];
        let TreeUpstream::Parent(above) = part.role.upstream else { return };
        let is_done = |index: u32| {
            let state = part.segments.get(index as usize);
            state.is_some_and(SegmentState::is_done) && !flow.withholds_receipt(part, index)
        };
        let last = part.segment_count().saturating_sub(1);
        let withheld = flow.incoming.get(&(above, key.tree, SegmentIndex(last)));
        let is_withheld = withheld.is_some_and(|last| !last.receipted) && last != key.segment.0;
        let done = [key.segment.0].into_iter().chain(is_withheld.then_some(last));
        let done: Vec<u32> = done.filter(|index| part.passes_on && is_done(*index)).collect();
        for index in done {
            let key = SegmentKey { segment: SegmentIndex(index), ..key };
            self.release_task_inputs(key, &[above], cx);
        }
    }
}

/// Reports a segment of a result to the local ranks to which it has been copied: all that get it,
/// but the first where the result was made in its slot.
fn report_copied_results(flow: &TransferFlow, key: SegmentKey, cx: &mut Context<'_>) {
    let Some(work) = &flow.work else { return };
    let (part, index) = (&flow.parts[usize::from(key.tree.0)], key.segment.0);
    let made_for_first = part.segments[index as usize].moved.is_none();
    let receivers = work.local_ranks_of(part.receivers(index));
    for rank in receivers.skip(usize::from(made_for_first)) {
        let view = part.result_view(index, key.sequence, rank);
        report_result_to(rank, view, &flow.reports_to, key, cx);
    }
}

/// Reports bytes of a result that are in place, if the rank is one of those that hear of them.
fn report_result_to(
    rank: RankId,
    view: BufferView,
    reports_to: &BTreeSet<RankId>,
    key: SegmentKey,
    cx: &mut Context<'_>,
) {
    if reports_to.contains(&rank) && !view.range.is_empty() {
        let (sequence, range) = (key.sequence, view.range);
        cx.actions.push(Action::ResultPlaced { rank, sequence, range });
    }
}
