//! The way of a segment from partials to result, as far as its inputs allow.

use super::flow::{Flow, Stage};
use super::state::{ReduceTask, Transfer, send_receipt};
use crate::ids::{GatewayId, RankId, Sequence, TreeIndex};
use crate::plan::Upstream;
use crate::session::action::{Action, Buffer, Input, TaskId, View};
use crate::session::context::Context;
use crate::wire::SegmentKey;
use std::collections::BTreeMap;

impl Transfer {
    /// A task is done. Returns its collective, while that is known.
    pub fn handle_task_done(&mut self, task: TaskId, cx: &mut Context<'_>) -> Option<Sequence> {
        let (key, task) = self.handles.end_task(task)?;
        let flow = self.flows.get_mut(&key.sequence)?;
        flow.busy -= 1;
        if flow.stage == Stage::Failed {
            return Some(key.sequence);
        }
        self.moved = cx.now;
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let segment = part.segment(key.segment.0);
        match task {
            ReduceTask::Local => {
                let input = segment.scratch.last().cloned();
                let weight = flow.work.iter().flat_map(|work| work.weights.values()).sum();
                segment.local = input.map(|view| Input { view, weight });
                self.advance(key, cx);
                self.send_everywhere(cx);
            }
            ReduceTask::Partial => self.partial_made(key, cx),
            ReduceTask::Result => {
                segment.combining = false;
                let peers = match part.role.upstream {
                    Upstream::Parent(parent) => vec![parent],
                    Upstream::RootSet(_) => part.remote_operands(cx.epoch.me()),
                };
                self.consume_inputs(key, &peers, cx);
                self.result_in_place(key, cx);
            }
            ReduceTask::Deliver => part.delivered += 1,
        }
        Some(key.sequence)
    }

    /// The partial of a subtree is in our scratch.
    fn partial_made(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let children = part.role.children.clone();
        let weights = children.iter().filter_map(|child| {
            let incoming = flow.incoming.get(&(*child, key.tree, key.segment));
            incoming.map(|incoming| incoming.weight)
        });
        let segment = part.segment(key.segment.0);
        let own = segment.local.as_ref().map_or(0.0, |input| input.weight);
        let weight = weights.sum::<f64>() + own;
        segment.combining = false;
        segment.partial = segment.scratch.last().map(|view| Input { view: view.clone(), weight });
        self.consume_inputs(key, &children, cx);
        self.advance(key, cx);
        self.send_everywhere(cx);
    }

    /// Takes a segment as far as it can go.
    pub(super) fn advance(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let me = cx.epoch.me();
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let Some(part) = flow.parts.get_mut(usize::from(key.tree.0)) else { return };
        let index = key.segment.0;
        if !part.phases.up {
            return self.take_result(key, cx);
        }
        if part.segment(index).partial.is_none() {
            if part.needs_partial_task() {
                // Its memory is held until the result is here.
                let open = flow.grants_out.get(&(me, key.tree)).copied().unwrap_or(0);
                if index >= open {
                    return;
                }
                let children = part.role.children.clone();
                return self.combine(key, ReduceTask::Partial, &children, cx);
            }
            part.segment(index).partial = part.segment(index).local.clone();
        }
        while part.local_prefix < part.count()
            && part.segments[part.local_prefix as usize].partial.is_some()
        {
            part.local_prefix += 1;
        }
        let operands = part.remote_operands(me);
        let from_above = match part.role.upstream {
            Upstream::Parent(parent) => {
                flow.incoming.get(&(parent, key.tree, key.segment)).is_some_and(|i| i.landed)
            }
            Upstream::RootSet(_) => false,
        };
        let streamed = operands.iter().any(|peer| {
            let incoming = flow.incoming.get(&(*peer, key.tree, key.segment));
            incoming.is_some_and(|i| i.landed && i.landed_in.is_none())
        });
        if from_above || streamed {
            self.result_in_place(key, cx);
        } else if !matches!(part.role.upstream, Upstream::Parent(_)) {
            self.combine(key, ReduceTask::Result, &operands, cx);
        }
    }

    /// Takes a result that came down the tree: it is in place, or is copied from where it landed
    /// before the local ranks had posted.
    fn take_result(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let slot = flow.result_slot(key.sequence);
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let Upstream::Parent(parent) = part.role.upstream else { return };
        let incoming = flow.incoming.get(&(parent, key.tree, key.segment));
        let Some(from) = incoming.filter(|i| i.landed).and_then(|i| i.landed_in.clone()) else {
            return;
        };
        if from.buffer == slot {
            return self.result_in_place(key, cx);
        }
        let to = vec![part.view(key.segment.0, slot)];
        let segment = part.segment(key.segment.0);
        if !segment.result && !std::mem::replace(&mut segment.combining, true) {
            flow.busy += 1;
            let task = self.handles.begin_task(key, ReduceTask::Result);
            cx.actions.push(Action::Copy { task, from, to });
        }
    }

    /// Reduces our operand and the landed ones of `peers` in gateway order, once all are here.
    fn combine(
        &mut self,
        key: SegmentKey,
        purpose: ReduceTask,
        peers: &[GatewayId],
        cx: &mut Context<'_>,
    ) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let slot = flow.result_slot(key.sequence);
        let Flow { work: Some(work), parts, incoming, busy, .. } = flow else { return };
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
            operands.insert(*peer, Input { view, weight: incoming.weight });
        }
        let out = if purpose == ReduceTask::Partial {
            let range = part.part.segment(key.segment.0);
            let out = self.handles.scratch(range.end - range.start);
            part.segment(key.segment.0).scratch.push(out.clone());
            out
        } else {
            part.view(key.segment.0, slot)
        };
        part.segment(key.segment.0).combining = true;
        *busy += 1;
        let task = self.handles.begin_task(key, purpose);
        let (op, dtype) = (work.descriptor.op, work.descriptor.dtype);
        let inputs = operands.into_values().collect();
        cx.actions.push(Action::Reduce { task, op, dtype, inputs, out });
    }

    /// Frees the landed inputs of a finished task and sends their receipts.
    fn consume_inputs(&mut self, key: SegmentKey, peers: &[GatewayId], cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let mut receipts = Vec::new();
        for from in peers {
            let incoming = flow.incoming.get_mut(&(*from, key.tree, key.segment));
            let Some(incoming) = incoming else { continue };
            if let Some(view) = &incoming.landed_in {
                cx.actions.release(view);
            }
            self.unsolicited.give_back(*from, std::mem::take(&mut incoming.unsolicited_bytes));
            if !std::mem::replace(&mut incoming.receipted, true) {
                receipts.push(*from);
            }
        }
        for from in receipts {
            send_receipt(from, key, cx.epoch, cx.actions);
        }
    }

    /// A segment's result is in the first slot for it; or none is due here along this tree, and
    /// the parent has the partial.
    pub(super) fn result_in_place(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let ranks = flow.result_ranks();
        let part = &mut flow.parts[usize::from(key.tree.0)];
        if std::mem::replace(&mut part.segment(key.segment.0).result, true) {
            return;
        }
        while part.result_prefix < part.count() && part.segments[part.result_prefix as usize].result
        {
            part.result_prefix += 1;
        }
        // Results along a tree of their own are in place here as those of the tree before it are.
        let elsewhere = part.only_hands_up() || part.follows && part.is_top();
        let slot = |rank: RankId| part.view(key.segment.0, Buffer::Result(key.sequence, rank));
        let mut views = ranks.into_iter().filter(|_| !elsewhere).map(slot);
        let (from, to) = (views.next(), views.collect::<Vec<View>>());
        match from {
            Some(from) if !to.is_empty() => {
                flow.busy += 1;
                let task = self.handles.begin_task(key, ReduceTask::Deliver);
                cx.actions.push(Action::Copy { task, from, to });
            }
            _ => part.delivered += 1,
        }
        let made = part.phases.up && part.is_top();
        let behind = TreeIndex(key.tree.0 + 1);
        let follows = flow.parts.get(usize::from(behind.0)).is_some_and(|part| part.follows);
        self.release_if_done(key, cx);
        if made && follows {
            return self.result_in_place(SegmentKey { tree: behind, ..key }, cx);
        }
        self.send_everywhere(cx);
    }

    /// Frees a segment's partials once its result is in and their receivers have receipted them.
    pub(super) fn release_if_done(&mut self, key: SegmentKey, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&key.sequence) else { return };
        let (several, class) = (flow.has_partials(), flow.class());
        let part = &mut flow.parts[usize::from(key.tree.0)];
        let scratch = part.take_done(key.segment.0);
        for view in &scratch {
            cx.actions.release(view);
        }
        if several && let Some(local) = scratch.first() {
            self.partial_bytes[class as usize] -= local.range.end;
            self.start_locals(cx);
        }
    }
}
