//! The start of a collective's transfer, once every local rank has posted, and of its segments.
//!
//! The bytes of a trainer without shared memory come from the first to the last. A segment starts
//! here once its bytes of every local contribution have come.

use super::transfer_flow::{FlowStage, TransferFlow, TransferFlowWork, flow_parts_of_collective};
use super::transfer_state::Transfer;
use crate::ids::{GatewayId, RankId, SegmentIndex, Sequence, TreeIndex};
use crate::plan::{Operation, TrafficMix};
use crate::session::action::{Action, PostTransport};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::topology::Fabric;
use crate::wire::SegmentKey;
use units::TimeNs;

impl Transfer {
    /// Starts the transfer of a collective that every local rank has posted.
    ///
    /// # Errors
    /// A peer that sent, under our descriptor, a segment that the plan does not have. No segment
    /// has been sent or reduced then.
    pub fn start_collective(
        &mut self,
        sequence: Sequence,
        work: TransferFlowWork,
        cx: &mut Context<'_>,
    ) -> Result<(), GatewayId> {
        let parts = flow_parts_of_collective(cx.epoch, sequence, &work.descriptor, &work.counts);
        let digest = work.descriptor.digest();
        let flow = self.flow_or_new(sequence);
        flow.parts = parts;
        flow.stage = FlowStage::Moving;
        flow.work = Some(work);
        (flow.wan_begin, flow.wan_end) = (TimeNs::default(), TimeNs::default());
        self.drop_other_segments_at_start(sequence, digest, cx.actions);
        if let Some(from) = self.flow_or_new(sequence).sender_of_invalid_segment(cx.epoch.me()) {
            return Err(from);
        }
        self.note_traffic_mix(sequence, cx);
        self.start_moves(sequence, cx);
        self.start_local_reductions(cx);
        let arrived = self.flow_or_new(sequence).incoming.iter().filter(|(_, i)| i.landed);
        let key = |tree, segment| SegmentKey { sequence, tree, segment };
        let arrived: Vec<_> = arrived.map(|((_, tree, segment), _)| key(*tree, *segment)).collect();
        for key in arrived {
            self.advance_segment_tasks(key, cx);
        }
        self.send_to_all_peers(cx);
        Ok(())
    }

    /// Asks for other shares of ports and links if the collective that starts is large.
    fn note_traffic_mix(&mut self, sequence: Sequence, cx: &mut Context<'_>) {
        if !self.flows.get(&sequence).is_some_and(TransferFlow::is_large) {
            return;
        }
        let under_way = self.large_operations(cx.epoch.local().fabric(), |_| true);
        if let Some(mix) = TrafficMix::of_operations(under_way) {
            self.mix = mix;
        }
        cx.actions.push(Action::ShareTraffic);
    }

    /// Notes that a peer has sent or granted segments of a collective, which has its part of ports from
    /// now on if it is large.
    pub(super) fn note_exchange(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        let flow = self.flow_or_new(sequence);
        if !std::mem::replace(&mut flow.has_exchanged, true) && flow.is_large() {
            actions.push(Action::ShareTraffic);
        }
    }

    /// Returns the large operations under way whose peers have sent or granted segments, each with the
    /// bytes of its buffer.
    pub fn moving_operations(&self, fabric: &Fabric) -> impl Iterator<Item = (Operation, u64)> {
        self.large_operations(fabric, |flow| flow.has_exchanged)
    }

    /// Returns the large operations under way that are `wanted`, each with the bytes of its buffer.
    fn large_operations(
        &self,
        fabric: &Fabric,
        wanted: impl Fn(&TransferFlow) -> bool,
    ) -> impl Iterator<Item = (Operation, u64)> {
        let is_large =
            move |flow: &&TransferFlow| flow.is_moving() && flow.is_large() && wanted(flow);
        let works = self.flows.values().filter(is_large).filter_map(|flow| flow.work.as_ref());
        works
            .filter_map(|work| Some((work.descriptor.pattern.over_gateways(fabric)?, work.bytes())))
    }

    /// Begins the parts of a collective whose bytes are in a contribution here, as far as these have
    /// come: they can leave, and are copied to the local ranks that get them.
    pub(super) fn start_moves(&mut self, sequence: Sequence, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&sequence) else { return };
        let TransferFlow { work: Some(work), parts, arriving, .. } = flow else { return };
        let mut begun = Vec::new();
        let sources = (0..).map(TreeIndex).zip(parts).filter(|(_, part)| part.is_source());
        for (tree, part) in sources {
            for index in part.next_moved..part.segment_count() {
                if let Some(rank) = work.local_ranks_of(part.contributors(index)).next() {
                    let view = part.contribution_view(index, sequence, rank);
                    // They leave in order.
                    if !arriving.has_contribution_bytes(rank, &view.range) {
                        break;
                    }
                    part.segment_mut(index).moved = Some(view);
                    begun.push(SegmentKey { sequence, tree, segment: SegmentIndex(index) });
                }
                part.next_moved = index + 1;
            }
        }
        begun.into_iter().for_each(|key| self.place_task_result(key, cx));
    }

    /// Forgets segments that came before the local posts and whose digest of the descriptor is not
    /// `digest`, that of these posts. The peer's
    /// announcement, which fails the collective, is on its way.
    fn drop_other_segments_at_start(
        &mut self,
        sequence: Sequence,
        digest: u64,
        actions: &mut ActionQueue,
    ) {
        let Some(flow) = self.flows.get_mut(&sequence) else { return };
        for ((from, _, _), incoming) in
            flow.incoming.extract_if(.., |_, incoming| incoming.digest != digest)
        {
            for lease in incoming.leases {
                actions.push(Action::CancelLease(lease));
            }
            if let Some(view) = &incoming.landed_in {
                actions.release_scratch(view);
            }
            self.unsolicited.refund_peer(from, incoming.unsolicited_bytes);
        }
    }

    /// Notes which bytes of a rank's contribution are still to come, and whether the rank hears of the
    /// parts of its result.
    pub fn note_post_transport(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        transport: PostTransport,
        now: TimeNs,
    ) {
        let flow = self.flow_or_new(sequence);
        if let Some(missing_from) = transport.missing_from {
            flow.arriving.0.insert(rank, (missing_from, now));
        }
        if transport.reports_result {
            flow.reports_to.insert(rank);
        }
    }

    /// Begins the segments whose bytes have come: those before `missing_from`, or all if it is `None`.
    /// Returns false for a contribution that is not awaited, as after a failure.
    pub fn handle_contribution_bytes(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        missing_from: Option<u64>,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&sequence) else { return false };
        if flow.stage == FlowStage::Failed {
            return false;
        }
        let Some(awaited) = flow.arriving.0.get_mut(&rank) else { return false };
        match missing_from {
            Some(missing_from) => *awaited = (missing_from, cx.now),
            None => drop(flow.arriving.0.remove(&rank)),
        }
        self.moved = cx.now;
        if flow.stage == FlowStage::Moving {
            self.start_moves(sequence, cx);
            self.start_local_reductions(cx);
            self.send_to_all_peers(cx);
        }
        true
    }

    /// Returns the time since when bytes of a local contribution have not come; `None` if all are
    /// here.
    pub fn contribution_awaited_since(&self, sequence: Sequence) -> Option<TimeNs> {
        self.flows.get(&sequence)?.arriving.oldest_contribution_arrival()
    }

    /// Returns the collectives for which bytes of a rank's contribution are still to come.
    pub fn awaited_contributions_of(&self, rank: RankId) -> Vec<Sequence> {
        let is_awaited = |flow: &TransferFlow| flow.arriving.0.contains_key(&rank);
        let awaited = self.flows.iter().filter(|(_, flow)| is_awaited(flow));
        awaited.map(|(sequence, _)| *sequence).collect()
    }
}
