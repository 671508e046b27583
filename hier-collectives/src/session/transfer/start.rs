//! The start of a collective's transfer, once every local rank has posted.

use super::transfer_flow::{FlowStage, TransferFlowWork, flow_parts_of_collective};
use super::transfer_state::Transfer;
use crate::ids::{GatewayId, SegmentIndex, Sequence, TreeIndex};
use crate::session::action::Action;
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
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

    /// Begins the parts of a collective whose bytes are in a contribution here: they can leave, and
    /// are copied to the local ranks that get them.
    fn start_moves(&mut self, sequence: Sequence, cx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(&sequence) else { return };
        let Some(work) = &flow.work else { return };
        let mut begun = Vec::new();
        for (tree, part) in (0..).map(TreeIndex).zip(&mut flow.parts) {
            for index in 0..if part.is_source() { part.segment_count() } else { 0 } {
                let Some(rank) = work.local_ranks_of(part.contributors(index)).next() else {
                    continue;
                };
                let view = part.contribution_view(index, sequence, rank);
                part.segment_mut(index).moved = Some(view);
                begun.push(SegmentKey { sequence, tree, segment: SegmentIndex(index) });
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
}
