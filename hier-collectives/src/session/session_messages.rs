//! Control messages from peers, each handled by the part of the session that it concerns.

use super::action::PeerError;
use super::collective::check_post::check_relayed_post;
use super::epoch::epoch_boundary::EpochBoundary;
use super::epoch::epoch_membership::{EpochStart, FIRST_GATEWAY, JoinRequest};
use super::epoch::epoch_state::JoinReply;
use super::epoch::plan_schedule::PlanSwitch;
use super::in_doubt::commit_steps::RankCommit;
use super::session_events::Session;
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, GatewayId, RankId, Sequence, TreeIndex};
use crate::post::{Failure, FailureCode};
use crate::topology::LinkState;
use crate::wire::Message;
use std::sync::Arc;
use units::TimeNs;

impl Session {
    /// Checks and handles a control message of the gateway `from`.
    ///
    /// # Errors
    /// [`PeerError`]: the message is against the protocol.
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.epoch.members().contains(from) {
            return Err(PeerError::UnknownPeer(from));
        }
        let result = self.handle_checked_message(from, message, now);
        self.report_progress_if_slow(now);
        result
    }

    /// Handles a message of a known peer that opens an epoch or asks for repeats. Passes all others
    /// to `handle_message_in_epoch`.
    fn handle_checked_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            Message::Join { boot, last, next, committed, prepared } => {
                let join = JoinRequest { boot, last, next, committed, prepared };
                self.handle_join_message(from, join, now)
            }
            Message::Begin { epoch, next, boots, plan, committed } => self.handle_begin_message(
                from,
                EpochStart { epoch, next, boots, plan, committed },
                now,
            ),
            Message::Ready { epoch, link } => {
                self.handle_ready_message(from, epoch, link, now);
                Ok(())
            }
            Message::Repeat => {
                self.repeat_epoch_to(from);
                Ok(())
            }
            of_epoch => self.handle_message_in_epoch(from, of_epoch, now),
        }
    }

    /// Handles messages about the epoch under way, its plan, links and commits. Passes all others
    /// to `handle_collective_message`.
    fn handle_message_in_epoch(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            Message::End { epoch, failure } if self.epoch.is_current(epoch) => {
                self.end_epoch(failure, Some(from), now);
            }
            Message::Moving { epoch } if self.epoch.is_current(epoch) => {
                self.deadlines.note_remote_progress(now);
            }
            Message::Pause { epoch, change } if self.epoch.is_current(epoch) => {
                let oldest = self.collectives.oldest_unposted();
                self.epoch.handle_replanning_pause(from, change, oldest, &mut self.actions)?;
            }
            Message::Paused { epoch, change, from: held } if self.epoch.is_current(epoch) => {
                if let Some(switch) =
                    self.epoch.handle_replanning_paused(from, change, held, &mut self.actions)?
                {
                    self.switch_epoch_plan(switch, now);
                }
            }
            Message::Change { epoch, change, from: start, plan }
                if self.epoch.is_current(epoch) =>
            {
                let switch = PlanSwitch { from: start, plan };
                if let Some(switch) = self.epoch.handle_replanning_change(from, change, switch)? {
                    self.switch_epoch_plan(switch, now);
                }
            }
            Message::Link { epoch, to, state } if self.epoch.is_current(epoch) => {
                self.epoch.replan_by_link_report(from, to, state)?;
            }
            Message::Done { epoch, from: start, below } if self.epoch.is_current(epoch) => {
                let oldest = self.collectives.oldest_unposted();
                let (commits, mut cx) = self.commits_and_context(now);
                commits.handle_done(from, start..below, oldest, &mut cx)?;
            }
            Message::Ask { epoch, from: start, below, rank, step }
                if self.epoch.is_current(epoch) =>
            {
                let oldest = self.collectives.oldest_unposted();
                let (commits, mut cx) = self.commits_and_context(now);
                let commit = RankCommit { rank, step, range: start..below };
                if let Some(failure) = commits.handle_ask(from, commit, oldest, &mut cx)? {
                    self.end_epoch(failure, None, now);
                }
            }
            Message::Drain { epoch, from: start } if self.epoch.is_current(epoch) => {
                self.close_epoch_collectives_from(from, start, now);
            }
            Message::Boundary { epoch, from: start, ends_step, failure } => {
                if from != FIRST_GATEWAY || failure.code != FailureCode::MembershipChanged {
                    return Err(PeerError::NotYours("a boundary"));
                }
                if self.epoch.is_current(epoch) {
                    self.set_boundary(EpochBoundary { from: start, ends_step, failure }, now);
                }
            }
            of_collective => return self.handle_collective_message(from, of_collective, now),
        }
        Ok(())
    }

    /// Handles messages about one collective. Messages of an epoch that is over have no effect.
    fn handle_collective_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            Message::Announce { epoch, sequence, rank, descriptor, all, sent } => {
                if self.admits_message(epoch, sequence)? {
                    let (collectives, mut cx) = self.collectives_and_context(now);
                    collectives.record_announcement(from, sequence, rank, all, &mut cx);
                    self.handle_announce_message(sequence, rank, descriptor, sent.as_ref(), now);
                } else if epoch == self.epoch.number() {
                    let receipts = self.collectives.repeated_receipts(from, epoch, sequence);
                    self.actions.push_messages(from, receipts);
                }
            }
            Message::Grant { epoch, sequence, tree, limit } => {
                let is_admitted = self.admits_message(epoch, sequence)?;
                if is_admitted {
                    self.handle_grant_message(from, sequence, tree, limit, now)?;
                }
            }
            Message::Receipt { epoch, sequence, tree, segments }
                if self.epoch.is_current(epoch) =>
            {
                let (transfer, mut cx) = self.transfer_and_context(now);
                transfer.handle_receipts(from, sequence, tree, segments, &mut cx);
                self.settle_collective(sequence, now);
            }
            Message::Receipt { .. } => {}
            // The boundary says so here, too.
            Message::Fail { epoch, sequence, .. }
                if self.epoch.is_current(epoch) && self.boundary_failure(sequence).is_some() => {}
            Message::Fail { epoch, sequence, failure } => {
                if self.epoch.is_current(epoch) && self.collectives.has_result(sequence) {
                    // Ranks here go on to the next collective, and the peer never sends the
                    // missing receipts. So the epoch ends, with the same text for all.
                    self.end_epoch(failure, None, now);
                } else if self.admits_message(epoch, sequence)? {
                    // The first gateway decides on a proposal: its sender waits for that.
                    let is_proposal =
                        self.epoch.me() == FIRST_GATEWAY && failure.code.is_fault_of_posts();
                    let except = (!is_proposal).then_some(from);
                    self.fail_collective(sequence, failure, except, now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a message about a collective has effect: it is of the current epoch, and the
    /// collective is neither over here nor left from an earlier epoch.
    ///
    /// # Errors
    /// [`PeerError::TooFarAhead`]: the collective is too far beyond the oldest unposted one.
    fn admits_message(&self, epoch: Epoch, sequence: Sequence) -> Result<bool, PeerError> {
        self.collectives.admits_message(epoch, sequence, &self.epoch)
    }

    /// Handles a peer's request to enter the next epoch (Join). Repeats Begin to a member that has
    /// missed it. A member that has left the epoch ends it. Keeps the request otherwise, and begins
    /// the next epoch once all have asked.
    fn handle_join_message(
        &mut self,
        from: GatewayId,
        join: JoinRequest,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match self.epoch.check_join(from, &join)? {
            JoinReply::RepeatBegin => {
                let begin = self.epoch.begin_message(self.commits.committed());
                self.actions.push_messages(from, begin);
                return Ok(());
            }
            JoinReply::EndEpoch(failure) => self.end_epoch(failure, Some(from), now),
            JoinReply::Keep => {}
        }
        self.epoch.members_mut().note_join(from, join);
        self.open_epoch_if_all_joined(now);
        Ok(())
    }

    /// Handles Begin of the first gateway: leaves the epoch under way and enters the one that
    /// begins. An epoch that would use numbers of collectives again is skipped, and the next one
    /// requested.
    fn handle_begin_message(
        &mut self,
        from: GatewayId,
        start: EpochStart,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.epoch.check_begin(from, &start)? {
            return Ok(());
        }
        let text = format!("epoch {} began", start.epoch);
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), Some(from), now);
        if start.next < self.collectives.next_sequence() {
            // Begin answers an old request of ours. No sequence is used twice, since its memory may
            // still be in use. So this epoch ends before it began, and the next is requested.
            self.epoch.skip_epoch(start.epoch);
            self.request_epoch_entry();
            return Ok(());
        }
        self.enter_epoch(start, now);
        Ok(())
    }

    /// Handles a peer's Ready, sent when it entered an epoch or repeated after a lost lane. Sends
    /// all messages of this epoch that the peer may lack.
    fn handle_ready_message(
        &mut self,
        from: GatewayId,
        epoch: Epoch,
        link: Option<LinkState>,
        now: TimeNs,
    ) {
        let news = self.epoch.members_mut().note_ready(from, epoch, link);
        if !news || epoch != self.epoch.number() {
            return;
        }
        if !self.epoch.is_active() {
            // The peer entered an epoch that we have left since, and was not ready for our End.
            self.actions.push_messages(from, self.epoch.end_message());
            return;
        }
        self.decide_commits_in_doubt();
        self.send_epoch_catch_up(from);
        let (transfer, mut cx) = self.transfer_and_context(now);
        transfer.send_to_all_peers(&mut cx);
    }

    /// Handles a peer's announcement of a post: compares the descriptor and counts, and fails the
    /// collective if it awaits a lost rank. Counts may be what the collective waits for, or on a
    /// gateway without ranks the post itself.
    fn handle_announce_message(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        sent: Option<&Arc<[u64]>>,
        now: TimeNs,
    ) {
        if !self.agree_on_collective_descriptor(sequence, rank, descriptor, now) {
            return;
        }
        if self.collectives.is_relay()
            && let Err(failure) = check_relayed_post(sequence, &descriptor, &self.epoch)
        {
            return self.refuse_collective_posts(sequence, failure, now);
        }
        if let Some(sent) = sent {
            let ranks = self.epoch.local().fabric().world_size();
            self.collectives.record_announced_counts(sequence, rank, sent, ranks);
            if !self.agree_on_collective_counts(sequence, rank, now) {
                return;
            }
        }
        self.start_collective_if_posted(sequence, now);
        self.fail_collective_if_rank_lost(sequence, now);
    }

    /// Handles a peer's grant: the peer's ranks have posted, and the first `limit` segments of the
    /// tree may be sent.
    ///
    /// # Errors
    /// [`PeerError::NoSuchTree`]: the collective's plan has no such tree.
    fn handle_grant_message(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        tree: TreeIndex,
        limit: u32,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.epoch.may_have_tree(sequence, tree) {
            return Err(PeerError::NoSuchTree(tree));
        }
        // Nobody grants before all its ranks have posted.
        let (collectives, cx) = self.collectives_and_context(now);
        collectives.note_gateways_posted(sequence, [from], &cx);
        let (transfer, mut cx) = self.transfer_and_context(now);
        transfer.handle_grant(from, sequence, tree, limit, &mut cx);
        Ok(())
    }
}
