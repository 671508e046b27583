//! The state of all transfers of a group on this gateway.

use super::flow::{Flow, Stage, parts_of};
use super::unsolicited::UnsolicitedUse;
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::mutant::{self, Mutant};
use crate::session::action::{Action, Buffer, LeaseId, ScratchId, TaskId, View};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::state::EpochState;
use crate::size_class::SizeClass;
use crate::wire::{Message, SegmentKey};
use std::collections::BTreeMap;
use std::ops::Range;
use units::{ByteCount, TimeNs};

/// The segments of all collectives of a group, and the memory and windows that they share.
#[derive(Debug)]
pub(in crate::session) struct Transfer {
    /// Memory for partials of several local ranks, of all classes together.
    pub(super) partials: ByteCount,
    pub(super) flows: BTreeMap<Sequence, Flow>,
    pub(super) handles: Handles,
    /// Bytes of partials of several local ranks, of each class of operations.
    pub(super) partial_bytes: [u64; SizeClass::ALL.len()],
    pub(super) unsolicited: UnsolicitedUse,
    /// The time when a segment, receipt or grant last moved something here, or bytes of a long
    /// segment arrived.
    pub(super) moved: TimeNs,
}

/// Names given to the shell: tasks, leases and scratch.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: u64,
    tasks: BTreeMap<TaskId, (SegmentKey, ReduceTask)>,
    leases: BTreeMap<LeaseId, (GatewayId, SegmentKey)>,
}

/// The purpose of a task that the shell carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReduceTask {
    /// Makes the partial of several local ranks.
    Local,
    /// Makes the partial of a subtree.
    Partial,
    /// Makes the result in the first local rank's slot.
    Result,
    /// Copies the result to the other local ranks.
    Deliver,
}

impl Transfer {
    /// No transfer. `partials` is the memory for partials of several local ranks.
    pub fn new(partials: ByteCount) -> Self {
        Self {
            partials,
            flows: BTreeMap::new(),
            handles: Handles::default(),
            partial_bytes: [0; SizeClass::ALL.len()],
            unsolicited: UnsolicitedUse::default(),
            moved: TimeNs::default(),
        }
    }

    /// The time when something last moved here.
    pub fn moved(&self) -> TimeNs {
        self.moved
    }

    /// An epoch begins: nothing is late yet.
    pub fn begin_epoch(&mut self, now: TimeNs) {
        self.moved = now;
    }

    /// An epoch ended: windows are whole again on both sides.
    pub fn end_epoch(&mut self) {
        self.unsolicited.reset();
    }

    /// Bytes of a stream still arrive; false when there is no such stream.
    pub fn note_moving(&mut self, lease: LeaseId, now: TimeNs) -> bool {
        let known = self.handles.leases.contains_key(&lease);
        if known {
            self.moved = now;
        }
        known
    }

    /// Whether nothing touches a collective's memory any more.
    pub fn is_still(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_none_or(Flow::is_still)
    }

    /// Whether a collective's result is in every local slot, and was not before.
    pub fn is_delivered(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_some_and(Flow::is_delivered)
    }

    pub fn receipts_due(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_some_and(Flow::receipts_due)
    }

    /// Whether a delivered result contains the parts of all ranks, so that all have posted.
    pub fn proves_all_posted(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_some_and(Flow::proves_all_posted)
    }

    /// The time from the first segment that was ready to leave to the last one that arrived. Both
    /// are zero where there was none.
    pub fn wan_times(&self, sequence: Sequence) -> Range<TimeNs> {
        let flow = self.flows.get(&sequence);
        flow.map_or(TimeNs::default()..TimeNs::default(), |flow| flow.wan_begin..flow.wan_end)
    }

    /// The grants and receipts of a collective that a peer needs.
    pub fn facts_for(&self, peer: GatewayId, epoch: Epoch, sequence: Sequence) -> Vec<Message> {
        let flow = self.flows.get(&sequence);
        flow.map_or_else(Vec::new, |flow| flow.facts_for(peer, epoch, sequence))
    }

    /// A collective's result is in every local slot. Its segments are sent on.
    pub fn set_delivered(&mut self, sequence: Sequence) {
        self.set_stage(sequence, Stage::Delivered);
    }

    /// The epoch of a delivered collective is over: nothing of it moves any more.
    pub fn set_abandoned(&mut self, sequence: Sequence) {
        self.set_stage(sequence, Stage::Abandoned);
    }

    /// A collective failed: nothing of it moves any more, and nothing that arrives counts.
    pub fn set_failed(&mut self, sequence: Sequence) {
        self.set_stage(sequence, Stage::Failed);
    }

    /// The flow of a collective, which begins with the first thing that a peer sends for it.
    pub(super) fn flow(&mut self, sequence: Sequence) -> &mut Flow {
        self.flows.entry(sequence).or_default()
    }

    fn set_stage(&mut self, sequence: Sequence, stage: Stage) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            flow.stage = stage;
        }
    }

    /// Stops the streams of a collective. Until the shell says that they have stopped, they may
    /// read the slots: bytes that they sent after a change might be whole at the receiver, and
    /// wrong.
    pub fn cancel(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            flow.cancelling = flow.sends_due();
        }
        actions.push(Action::Cancel(sequence));
    }

    /// The streams of a collective have stopped, as [`Action::Cancel`] asked.
    pub fn handle_cancelled(&mut self, sequence: Sequence) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            flow.cancelling = false;
        }
    }

    /// Gives back the gateway memory of a collective and the windows that it uses.
    pub fn release(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            let (several, class) = (flow.has_partials(), flow.class());
            for segment in flow.parts.iter_mut().flat_map(|part| &mut part.segments) {
                let scratch = std::mem::take(&mut segment.scratch);
                if several && let Some(first) = scratch.first() {
                    self.partial_bytes[class as usize] -= first.range.end;
                }
                scratch.iter().for_each(|view| actions.release(view));
            }
            for ((from, _, _), incoming) in &mut flow.incoming {
                self.unsolicited.give_back(*from, std::mem::take(&mut incoming.unsolicited_bytes));
                if let Some(view) = incoming.landed_in.take() {
                    actions.release(&view);
                }
            }
        }
        self.unsolicited.forget(sequence);
    }

    /// Forgets a collective; [`Transfer::release`] came before.
    pub fn forget(&mut self, sequence: Sequence) {
        self.flows.remove(&sequence);
    }

    /// Repeats all receipts of a collective that is complete here, to a peer that still sends
    /// messages about it: the receipts that would end it there were lost.
    pub fn repeat_receipts(
        &self,
        to: GatewayId,
        sequence: Sequence,
        descriptor: &Descriptor,
        cx: &mut Context<'_>,
    ) {
        let (me, epoch) = (cx.epoch.me(), cx.epoch.number());
        for (tree, part) in (0..).map(TreeIndex).zip(parts_of(cx.epoch, sequence, descriptor)) {
            if part.expects_from(to, me) && part.count() > 0 {
                let segments = 0..part.count();
                cx.actions.message(to, Message::Receipt { epoch, sequence, tree, segments });
            }
        }
    }
}

impl Handles {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn lease_id(&mut self) -> LeaseId {
        LeaseId(self.next())
    }

    /// Whether no task and no lease is held.
    #[cfg(test)]
    pub fn are_free(&self) -> bool {
        self.tasks.is_empty() && self.leases.is_empty()
    }

    pub fn hold_lease(&mut self, lease: LeaseId, from: GatewayId, key: SegmentKey) {
        self.leases.insert(lease, (from, key));
    }

    pub fn end_lease(&mut self, lease: LeaseId) -> Option<(GatewayId, SegmentKey)> {
        self.leases.remove(&lease)
    }

    pub fn begin_task(&mut self, key: SegmentKey, task: ReduceTask) -> TaskId {
        let id = TaskId(self.next());
        self.tasks.insert(id, (key, task));
        id
    }

    pub fn end_task(&mut self, id: TaskId) -> Option<(SegmentKey, ReduceTask)> {
        self.tasks.remove(&id)
    }

    pub fn scratch(&mut self, bytes: u64) -> View {
        View { buffer: Buffer::Scratch(ScratchId(self.next())), range: 0..bytes }
    }

    /// The memory in which a segment lands before it is added.
    pub fn landing(&mut self, bytes: u64) -> View {
        if mutant::is(Mutant::ShareLanding) {
            let shared = Buffer::Scratch(ScratchId(u64::MAX - bytes));
            return View { buffer: shared, range: 0..bytes };
        }
        self.scratch(bytes)
    }
}

/// Sends the receipt of one segment.
pub(in crate::session) fn send_receipt(
    to: GatewayId,
    key: SegmentKey,
    epoch: &EpochState,
    actions: &mut ActionQueue,
) {
    let SegmentKey { sequence, tree, segment: SegmentIndex(segment) } = key;
    let (epoch, segments) = (epoch.number(), segment..segment.saturating_add(1));
    actions.message(to, Message::Receipt { epoch, sequence, tree, segments });
}
