//! Shutting down in order: what is posted is finished, nothing new is taken, peers are told.

use super::*;

impl Session {
    /// Finishes what all local ranks have posted and the commits that wait, within `bound`,
    /// and leaves the epoch for good. New posts fail at once, here and, for what the ranks of
    /// this gateway have not posted, everywhere. Done when [`Session::is_drained`].
    pub fn handle_drain(&mut self, bound: Span, now: TimeNs) {
        let until = now + bound;
        if let Some(before) = self.draining {
            self.draining = Some(before.min(until));
            return;
        }
        self.draining = Some(until);
        if self.active.is_none() {
            return;
        }
        let from = self.oldest();
        for to in self.ready_peers() {
            let message = Message::Drain { epoch: self.epoch, from };
            self.core.actions.push_back(Action::Message { to, message });
        }
        self.close(self.config.me, from, now);
    }

    /// Whether nothing is left to do, so that the process may end.
    pub fn is_drained(&self) -> bool {
        self.draining.is_some() && self.active.is_none() && self.live.is_empty()
    }

    /// No rank of `gateway` posts anything from `from` on: it would be awaited for nothing.
    pub(super) fn close(&mut self, gateway: GatewayId, from: Sequence, now: TimeNs) {
        let text = format!(
            "gateway {} is shutting down and takes no collective from {from} on; contributions \
             intact, post again in the next epoch",
            self.gateway_name(gateway)
        );
        let failure = Failure::new(FailureCode::ShuttingDown, text);
        let Some(active) = &mut self.active else { return };
        if active.closed.as_ref().is_some_and(|(first, _)| *first <= from) {
            return;
        }
        active.closed = Some((from, failure.clone()));
        let open: Vec<Sequence> = self.live.range(from..).map(|(sequence, _)| *sequence).collect();
        for sequence in open {
            self.fail(sequence, failure.clone(), None, now);
        }
    }

    /// Why a collective cannot be posted any more.
    pub(super) fn closed_for(&self, sequence: Sequence) -> Option<Failure> {
        let (from, failure) = self.active.as_ref()?.closed.as_ref()?;
        (sequence >= *from).then(|| failure.clone())
    }

    pub(super) fn drain_fact(&self) -> Option<Message> {
        let (from, _) = self.active.as_ref()?.closed.as_ref()?;
        self.draining?;
        Some(Message::Drain { epoch: self.epoch, from: *from })
    }

    /// When a drain ends: at once when everything is finished, otherwise with its bound.
    pub(super) fn drain_deadline(&self) -> Option<TimeNs> {
        let until = self.draining?;
        self.active.as_ref()?;
        let done = self.unfinished().next().is_none()
            && self.ranks.values().all(|rank| rank.commits.is_empty() && !self.owes_commit(rank));
        Some(if done { TimeNs::default() } else { until })
    }

    pub(super) fn drain_status(&self) -> Option<DrainStatus> {
        let until = self.draining?;
        let owing = self.ranks.iter().filter(|(_, rank)| self.owes_commit(rank));
        let uncommitted = owing.map(|(rank, _)| *rank).collect();
        Some(DrainStatus { until, collectives: self.unfinished().collect(), uncommitted })
    }

    fn unfinished(&self) -> impl Iterator<Item = Sequence> {
        let unfinished = self.live.iter().filter(|(_, c)| c.phase != Phase::Failed);
        unfinished.map(|(sequence, _)| *sequence)
    }

    pub(super) fn end_drain(&mut self, now: TimeNs) {
        let left = self.unfinished().count();
        let what = if left == 0 {
            "what was posted is finished".to_owned()
        } else {
            format!("{left} collectives could not be finished in time")
        };
        let text = format!("gateway {} shut down; {what}", self.gateway_name(self.config.me));
        self.end_epoch(Failure::new(FailureCode::ShuttingDown, text), None, now);
    }

    /// A rank that commits its steps and has results that it has not committed yet: it will.
    fn owes_commit(&self, rank: &LocalRank) -> bool {
        let mut failed = self.failures.range(rank.covered..rank.next);
        rank.attached && rank.commits_here && rank.covered < rank.next && failed.next().is_none()
    }
}
