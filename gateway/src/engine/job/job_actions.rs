//! Performs the actions that the sessions of a job's groups and its store ask for.
//!
//! Messages and segments go to peers, events to trainers' tasks. Long reductions and copies run on
//! the compute threads, short ones here. Plans over measured links are made on a blocking thread.
//! Each of them reports back with an event (`group_session`). Actions that concern the whole job
//! are done here.

use super::Job;
use super::engine_shared::EngineShared;
use super::group_session::JobAction;
use hier_collectives::ids::GroupId;
use hier_collectives::plan::PayloadFlows;
use hier_collectives::post::RankEvent;
use hier_collectives::session::SessionNote;
use hier_collectives::store::{StoreAction, StoreCaller};
use hier_collectives::wire::Message;

impl Job {
    /// Performs every action that the store and the sessions of the job and of its touched groups
    /// ask for, and frees groups that all have left.
    pub fn perform_actions(&mut self, shared: &EngineShared) {
        self.touched.insert(self.world.id);
        while let Some(id) = self.touched.pop_first() {
            while self.perform_next_action(id, shared) {}
            self.note_pair_of_actions(id);
            self.free_group_if_left(id, shared.host.now());
            self.free_term_world_if_over(id);
            self.note_deadline(id);
            if self.untouched_group(id).is_none() {
                shared.peers.note_moving_flows(id, PayloadFlows::new());
            }
        }
        self.perform_store_actions(shared);
    }

    /// Notes whether a pair of ranks has sends under way, now that its session has acted.
    fn note_pair_of_actions(&mut self, id: GroupId) {
        let share = self.link_share();
        if let Some(group) = self.untouched_group(id) {
            group.session.set_link_share(share);
        }
        if let Some(group) = self.groups.get(&id) {
            let is_idle = group.session.is_idle();
            self.pairs.note_pair(id, is_idle);
        }
    }

    /// Performs every action that the job's store asks for: messages to gateways, answers to ranks.
    fn perform_store_actions(&mut self, shared: &EngineShared) {
        while let Some(action) = self.store.poll_action() {
            match action {
                StoreAction::Message { to, message } => {
                    let message = Message::Store(Box::new(message));
                    shared.peers.send_job_message(to, self.world.id, &message);
                }
                StoreAction::Answer { caller, answer } => {
                    let StoreCaller { attachment, number } = caller;
                    let event = RankEvent::StoreAnswered { number, answer };
                    self.ranks.notify_attachment(attachment, event);
                }
            }
        }
    }

    /// Performs the next action of a group's session; returns whether there was one.
    fn perform_next_action(&mut self, id: GroupId, shared: &EngineShared) -> bool {
        let Some(group) = self.untouched_group(id) else { return false };
        let action = group.session.poll_action();
        let is_any = action.is_some();
        let of_job = action.and_then(|action| group.perform_action(action, shared));
        let now = group.buffers.scratch_bytes();
        let before = std::mem::replace(&mut group.counted_scratch_bytes, now);
        self.scratch_bytes = self.scratch_bytes + now - before;
        self.metrics.set_scratch_bytes(self.scratch_bytes);
        match of_job {
            Some(JobAction::Introduce(to)) => self.introduce_group(id, to, shared),
            Some(JobAction::Notify(rank, event)) => self.ranks.notify(rank, id, event),
            Some(JobAction::PlaceResult(rank, sequence, range)) => {
                self.ranks.place_result(rank, id, sequence, range);
            }
            Some(JobAction::ShareTraffic) => self.share_traffic(id, shared),
            Some(JobAction::Note(note)) => self.perform_session_note_action(id, note, shared),
            None => {}
        }
        is_any
    }

    /// Divides ports and links among pairs of gateways: by plan for the large operations of all ranks,
    /// and by what moves for those of groups and of the world of some ranks.
    fn share_traffic(&mut self, id: GroupId, shared: &EngineShared) {
        if let Some(flows) = self.world.session.traffic_flows().filter(|_| id == self.world.id) {
            shared.peers.divide_port_rates(id, flows);
        }
        if let Some(group) = self.untouched_group(id) {
            shared.peers.note_moving_flows(id, group.moving_flows());
        }
    }

    /// Acts on a fact that a group's session noted: ends counted groups, divides link rates by a
    /// new plan, and logs.
    fn perform_session_note_action(
        &mut self,
        id: GroupId,
        note: SessionNote,
        shared: &EngineShared,
    ) {
        let now = shared.host.now();
        if matches!(note, SessionNote::EpochBegan { .. } | SessionNote::EpochEnded { .. }) {
            self.end_counted_groups(id, shared, now);
        }
        self.offer_span(id, &note, shared, now);
        if !self.is_world(id) {
            return self.report_group_note(id, note, now);
        }
        let another =
            matches!(note, SessionNote::EpochBegan { .. } | SessionNote::PlanChanged { .. });
        if another {
            self.share_traffic(id, shared);
        }
        let bound = shared.bound.get().filter(|_| id == self.world.id);
        self.report_note(note, bound, now);
    }
}
