//! The state of all transfers of a job on this gateway.

use super::partials_pool::{HeldPartials, PartialsPool};
use super::transfer_flow::{FlowStage, TransferFlow};
use super::transfer_handles::TransferHandles;
use super::windows::unsolicited::UnsolicitedUse;
use crate::ids::{Epoch, GatewayId, Sequence, TreeIndex};
use crate::plan::TrafficMix;
use crate::session::action::{Action, LeaseId};
use crate::session::action_queue::ActionQueue;
use crate::size_class::SizeClass;
use crate::wire::Message;
use std::collections::BTreeMap;
use std::ops::Range;
use units::TimeNs;

/// The segments of all collectives of a job, and the memory and windows that they share.
#[derive(Debug)]
pub(in crate::session) struct Transfer {
    pub(super) flows: BTreeMap<Sequence, TransferFlow>,
    pub(super) handles: TransferHandles,
    /// Memory for partials of several local ranks, by size class of the operations. A gateway without
    /// ranks takes what it passes on out of it.
    pub(super) partials: HeldPartials,
    /// The bytes of it that were taken, on a gateway without ranks, for what it passes on, by class.
    pub(super) relayed: [u64; SizeClass::ALL.len()],
    pub(super) unsolicited: UnsolicitedUse,
    /// The time when a segment, receipt or grant last moved something here, or bytes of a long
    /// segment arrived.
    pub(super) moved: TimeNs,
    /// The large operations by which pairs of gateways share ports and links: those under way when the
    /// last of them started.
    pub(super) mix: TrafficMix,
}

impl Transfer {
    /// Creates a transfer without collectives. `partials` is the job's memory for partials of
    /// several local ranks.
    pub fn new(partials: PartialsPool) -> Self {
        Self {
            partials: HeldPartials::new(partials),
            relayed: Default::default(),
            flows: BTreeMap::new(),
            handles: TransferHandles::default(),
            unsolicited: UnsolicitedUse::default(),
            moved: TimeNs::default(),
            mix: TrafficMix::default(),
        }
    }

    /// Returns the large operations by which pairs of gateways share ports and links.
    pub fn traffic_mix(&self) -> &TrafficMix {
        &self.mix
    }

    /// Returns the time when a segment, receipt, grant or task last made progress here.
    pub fn last_progress(&self) -> TimeNs {
        self.moved
    }

    /// Sets the time of the last progress to `now`, so that no stall is counted from before the
    /// epoch.
    pub fn begin_epoch(&mut self, now: TimeNs) {
        self.moved = now;
    }

    /// Frees all unsolicited windows of both directions, because the epoch has ended.
    pub fn end_epoch(&mut self) {
        self.unsolicited.reset();
    }

    /// Records that bytes of a stream still arrive. Returns false when there is no such stream.
    pub fn note_stream_progress(&mut self, lease: LeaseId, now: TimeNs) -> bool {
        let known = self.handles.holds_lease(lease);
        if known {
            self.moved = now;
        }
        known
    }

    /// Whether no task, lease or stream touches a collective's memory any more.
    pub fn is_quiescent(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_none_or(TransferFlow::is_quiescent)
    }

    /// Whether a collective's result is in every local slot, before the collective is marked as
    /// delivered.
    pub fn is_delivered(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_some_and(TransferFlow::is_delivered)
    }

    /// Whether some segment of a collective, sent or still to be sent, has no receipt yet.
    pub fn awaits_receipts(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_some_and(TransferFlow::awaits_receipts)
    }

    /// Whether a delivered result contains contributions of all ranks, so that all must have
    /// posted.
    pub fn proves_all_posted(&self, sequence: Sequence) -> bool {
        self.flows.get(&sequence).is_some_and(TransferFlow::proves_all_posted)
    }

    /// Returns the times when a collective's first segment was ready to leave and its last one
    /// arrived. Both are zero where there was none.
    pub fn wan_times(&self, sequence: Sequence) -> Range<TimeNs> {
        let flow = self.flows.get(&sequence);
        flow.map_or(TimeNs::default()..TimeNs::default(), |flow| flow.wan_begin..flow.wan_end)
    }

    /// Builds the grants and receipts of a collective that bring a peer up to date.
    pub fn catch_up_messages(
        &self,
        peer: GatewayId,
        epoch: Epoch,
        sequence: Sequence,
    ) -> Vec<Message> {
        let flow = self.flows.get(&sequence);
        flow.map_or_else(Vec::new, |flow| flow.catch_up_messages(peer, epoch, sequence))
    }

    /// Marks a collective's result as in every local slot. Its segments are still sent on.
    pub fn set_delivered(&mut self, sequence: Sequence) {
        self.set_stage(sequence, FlowStage::Delivered);
    }

    /// Marks a delivered collective whose epoch is over: none of its segments moves any more.
    pub fn set_abandoned(&mut self, sequence: Sequence) {
        self.set_stage(sequence, FlowStage::Abandoned);
    }

    /// Marks a collective as failed: its segments do not move any more, and arriving ones do not
    /// count.
    pub fn set_failed(&mut self, sequence: Sequence) {
        self.set_stage(sequence, FlowStage::Failed);
    }

    /// Returns the state of one collective's transfer (its flow), and creates it if this is the first
    /// that is heard of the collective: a peer's grant or segment.
    pub(super) fn flow_or_new(&mut self, sequence: Sequence) -> &mut TransferFlow {
        self.flows.entry(sequence).or_default()
    }

    /// Sets the stage of a collective that has a flow.
    fn set_stage(&mut self, sequence: Sequence, stage: FlowStage) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            flow.stage = stage;
        }
    }

    /// Stops the streams of a collective. Until the engine says that they have stopped, they may
    /// read the slots. Bytes sent after a slot changes might arrive whole, and wrong.
    pub fn cancel_streams(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            flow.cancelling = flow.has_unreceipted_sends();
        }
        actions.push(Action::Cancel(sequence));
    }

    /// Notes that all streams of a collective have stopped, as [`Action::Cancel`] asked.
    pub fn handle_streams_cancelled(&mut self, sequence: Sequence) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            flow.cancelling = false;
        }
    }

    /// Gives back the gateway memory of a collective and the unsolicited windows that it uses.
    pub fn release_memory(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        if let Some(flow) = self.flows.get_mut(&sequence) {
            if flow.is_large() {
                // Others have its part of ports and links once it has ended.
                actions.push(Action::ShareTraffic);
            }
            let (several, class) = (flow.has_partials(), flow.size_class());
            for segment in flow.parts.iter_mut().flat_map(|part| &mut part.segments) {
                let scratch = std::mem::take(&mut segment.scratch);
                if several && let Some(first) = scratch.first() {
                    self.partials.give_back(class, first.range.end);
                }
                scratch.iter().for_each(|view| actions.release_scratch(view));
            }
            for ((from, _, _), incoming) in &mut flow.incoming {
                self.unsolicited
                    .refund_peer(*from, std::mem::take(&mut incoming.unsolicited_bytes));
                if let Some(view) = incoming.landed_in.take() {
                    actions.release_scratch(&view);
                }
            }
        }
        self.unsolicited.forget_collective(sequence);
        self.give_back_relayed();
    }

    /// Forgets a collective, after [`Transfer::release_memory`].
    pub fn forget_collective(&mut self, sequence: Sequence) {
        self.flows.remove(&sequence);
    }

    /// Returns the segments that peers sent for a collective, by peer and part. Once it is complete
    /// here, all of them have receipts.
    pub fn expected_segments(
        &self,
        sequence: Sequence,
        me: GatewayId,
    ) -> Vec<(GatewayId, TreeIndex, u32)> {
        self.flows.get(&sequence).map_or_else(Vec::new, |flow| flow.expected_segments(me))
    }
}
