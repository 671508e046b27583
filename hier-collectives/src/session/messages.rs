//! Control messages from peers: each goes to the part that it concerns.

use super::action::PeerError;
use super::context::Context;
use super::dispatcher::Session;
use super::epoch::membership::{EpochStart, Join};
use super::epoch::plan_schedule::PlanSwitch;
use super::epoch::state::JoinReply;
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, GatewayId, RankId, Sequence, TreeIndex};
use crate::post::{Failure, FailureCode};
use crate::topology::LinkState;
use crate::wire::Message;
use units::TimeNs;

impl Session {
    /// A control message arrived from a peer.
    ///
    /// # Errors
    /// [`PeerError`]: the message is against the protocol and had no effect.
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.epoch.members().contains(from) {
            return Err(PeerError::UnknownPeer(from));
        }
        let result = self.dispatch(from, message, now);
        self.report_progress_if_slow(now);
        result
    }

    /// Messages that open an epoch or repeat, whatever epoch is under way.
    fn dispatch(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            Message::Join { boot, last, next, committed } => {
                self.on_join(from, Join { boot, last, next, committed }, now)
            }
            Message::Begin { epoch, next, boots, plan, committed } => {
                self.on_begin(from, EpochStart { epoch, next, boots, plan, committed }, now)
            }
            Message::Ready { epoch, link } => {
                self.on_ready(from, epoch, link, now);
                Ok(())
            }
            Message::Repeat => {
                let distant = self.epoch.members().distant();
                distant.into_iter().for_each(|peer| self.repeat_to(peer));
                Ok(())
            }
            of_epoch => self.dispatch_in_epoch(from, of_epoch, now),
        }
    }

    /// Messages about the epoch under way, its plan, links and commits.
    fn dispatch_in_epoch(
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
                self.deadlines.note_elsewhere(now);
            }
            Message::Pause { epoch, change } if self.epoch.is_current(epoch) => {
                let oldest = self.collectives.oldest();
                self.epoch.handle_pause(from, change, oldest, &mut self.actions)?;
            }
            Message::Paused { epoch, change, from: held } if self.epoch.is_current(epoch) => {
                if let Some(switch) =
                    self.epoch.handle_paused(from, change, held, &mut self.actions)?
                {
                    self.switch_plan(switch, now);
                }
            }
            Message::Change { epoch, change, from: start, plan }
                if self.epoch.is_current(epoch) =>
            {
                let switch = PlanSwitch { from: start, plan };
                if let Some(switch) = self.epoch.handle_change(from, change, switch)? {
                    self.switch_plan(switch, now);
                }
            }
            Message::Link { epoch, to, state } if self.epoch.is_current(epoch) => {
                self.epoch.handle_report(from, to, state)?;
            }
            Message::Done { epoch, from: start, below } if self.epoch.is_current(epoch) => {
                let oldest = self.collectives.oldest();
                let (commits, mut cx) = self.commits_at(now);
                commits.handle_done(from, start..below, oldest, &mut cx)?;
            }
            Message::Ask { epoch, from: start, below } if self.epoch.is_current(epoch) => {
                let oldest = self.collectives.oldest();
                let (commits, mut cx) = self.commits_at(now);
                commits.handle_ask(from, start..below, oldest, &mut cx)?;
            }
            Message::Drain { epoch, from: start } if self.epoch.is_current(epoch) => {
                self.close(from, start, now);
            }
            of_collective => return self.dispatch_to_collective(from, of_collective, now),
        }
        Ok(())
    }

    /// Messages about one collective. Others are of an epoch that is over, and have no effect.
    fn dispatch_to_collective(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            Message::Announce { epoch, sequence, rank, descriptor, all } => {
                if self.admits(epoch, sequence)? {
                    let (collectives, mut cx) = self.collectives_at(now);
                    collectives.record_announcement(from, sequence, rank, all, &mut cx);
                    self.on_announced(sequence, rank, descriptor, now);
                } else if epoch == self.epoch.number() {
                    self.repeat_receipts(from, sequence, now);
                }
            }
            Message::Grant { epoch, sequence, tree, limit } => {
                let is_admitted = self.admits(epoch, sequence)?;
                if is_admitted {
                    self.on_grant(from, sequence, tree, limit, now)?;
                }
            }
            Message::Receipt { epoch, sequence, tree, segments }
                if self.epoch.is_current(epoch) =>
            {
                let (transfer, mut cx) = self.transfer_at(now);
                transfer.handle_receipts(from, sequence, tree, segments, &mut cx);
                self.settle(sequence, now);
            }
            Message::Receipt { .. } => {}
            Message::Fail { epoch, sequence, failure } => {
                if self.epoch.is_current(epoch) && self.collectives.is_good(sequence) {
                    self.end_over_divergence(from, sequence, now);
                } else if self.admits(epoch, sequence)? {
                    self.fail(sequence, failure, Some(from), now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn admits(&self, epoch: Epoch, sequence: Sequence) -> Result<bool, PeerError> {
        self.collectives.admits(epoch, sequence, &self.epoch)
    }

    fn on_join(&mut self, from: GatewayId, join: Join, now: TimeNs) -> Result<(), PeerError> {
        match self.epoch.check_join(from, &join)? {
            JoinReply::RepeatBegin => {
                let begin = self.epoch.begin_message(self.commits.committed());
                self.actions.messages(from, begin);
                return Ok(());
            }
            JoinReply::EndEpoch(failure) => self.end_epoch(failure, Some(from), now),
            JoinReply::Keep => {}
        }
        self.epoch.members_mut().note_join(from, join);
        self.open_epoch_if_all_joined(now);
        Ok(())
    }

    fn on_begin(
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
        if start.next < self.collectives.next() {
            // It answers an old request of ours. No number is given out twice, since memory may
            // still be in use by it. So this epoch ends before it began, and the next is requested.
            self.epoch.skip(start.epoch);
            self.request_entry();
            return Ok(());
        }
        self.enter_epoch(start, now);
        Ok(())
    }

    /// A peer entered an epoch, or repeats that: a lane was lost over there, and with it perhaps
    /// our last messages.
    fn on_ready(&mut self, from: GatewayId, epoch: Epoch, link: Option<LinkState>, now: TimeNs) {
        let news = self.epoch.members_mut().note_ready(from, epoch, link);
        if !news || epoch != self.epoch.number() {
            return;
        }
        if !self.epoch.is_active() {
            // It entered an epoch that we have left since: it was not ready for our End then.
            self.actions.messages(from, self.epoch.end_message());
            return;
        }
        self.send_facts(from);
        let (transfer, mut cx) = self.transfer_at(now);
        transfer.send_everywhere(&mut cx);
    }

    fn on_announced(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        now: TimeNs,
    ) {
        if self.agree(sequence, rank, descriptor, now) {
            self.fail_if_rank_lost(sequence, now);
        }
    }

    fn on_grant(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        tree: TreeIndex,
        limit: u32,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.epoch.may_have(sequence, tree) {
            return Err(PeerError::NoSuchTree(tree));
        }
        // Nobody grants before all its ranks have posted.
        let (collectives, cx) = self.collectives_at(now);
        collectives.note_posted(sequence, [from], &cx);
        let (transfer, mut cx) = self.transfer_at(now);
        transfer.handle_grant(from, sequence, tree, limit, &mut cx);
        Ok(())
    }

    /// A peer sends messages about a collective that is complete here: it lacks our receipts.
    fn repeat_receipts(&mut self, to: GatewayId, sequence: Sequence, now: TimeNs) {
        let Some(descriptor) = self.collectives.finished(sequence) else { return };
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.transfer.repeat_receipts(to, sequence, descriptor, cx);
    }
}
