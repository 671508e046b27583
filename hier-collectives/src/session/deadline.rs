//! How long to wait: for posts as long as their posters say, for progress as the link allows.

use super::segment::PartState;
use super::*;
use crate::ids::{SegmentIndex, TreeIndex};

/// Nothing may move for this long, whatever the link: longer than a cut of 5 s and what it
/// takes to notice that it is over, shorter than the 15 s after which QUIC gives a silent
/// peer up, so that the error says what was missing.
const STALL_MIN: Span = Span::from_secs(10);
/// Round trips, and segments at the job's part of the link's rate, that must fit.
const STALL_ROUND_TRIPS: u64 = 10;
const STALL_SEGMENTS: u64 = 20;
/// How often to say that something moves, where a collective or a segment takes longer: well within
/// the least that nothing may move for, and too seldom to cost anything.
pub const MOVING_EVERY: Span = Span::from_secs(1);

impl Session {
    /// When to call [`Session::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        let live = self.live.values().filter_map(|collective| self.deadline(collective));
        live.chain(self.commit_expiry()).chain(self.drain_deadline()).min()
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: TimeNs) {
        if self.drain_deadline().is_some_and(|at| now >= at) {
            return self.end_drain(now);
        }
        self.expire_commits(now);
        let due = |(sequence, collective): (&Sequence, &Collective)| {
            self.deadline(collective).is_some_and(|at| now >= at).then_some(*sequence)
        };
        let late: Vec<Sequence> = self.live.iter().filter_map(due).collect();
        for sequence in late {
            let Some(collective) = self.live.get(&sequence) else { continue };
            let failure = match collective.complete {
                None => self.expiry_failure(sequence, collective),
                Some(_) => self.stall_failure(sequence, collective),
            };
            match collective.phase {
                Phase::Waiting | Phase::Running => self.fail(sequence, failure, None, now),
                // The result stands here, so it cannot fail here any more.
                Phase::Ready => self.end_epoch(failure, None, now),
                Phase::Leaving | Phase::Failing | Phase::Failed => {}
            }
        }
    }

    /// Bytes of a segment have arrived, [`MOVING_EVERY`] after it began or after this was last
    /// said of it. On a link that became slow a segment may take longer than nothing may move for,
    /// here and wherever its bytes are waited for.
    pub fn handle_moving(&mut self, lease: LeaseId, now: TimeNs) {
        if !self.core.leases.contains_key(&lease) {
            return;
        }
        self.core.progress = now;
        self.tell_moving(now);
    }

    /// Whoever waits for what is behind something large may see nothing of it for long: so while a
    /// collective takes long, the others are told of whatever moves here.
    pub(super) fn tell_if_moving(&mut self, now: TimeNs) {
        let oldest = self.live.values().find_map(|collective| collective.complete);
        let is_long = oldest.is_some_and(|complete| now >= complete + MOVING_EVERY);
        if self.core.progress == now && is_long {
            self.tell_moving(now);
        }
    }

    fn tell_moving(&mut self, now: TimeNs) {
        // All tell all: among many, less often.
        let every = MOVING_EVERY.ns() * (1 + self.peers.len() as u64 / 16).min(3);
        if self.core.told_moving.is_some_and(|told| now < told + Span::from_ns(every)) {
            return;
        }
        self.core.told_moving = Some(now);
        let epoch = self.epoch;
        for to in self.ready_peers() {
            let message = Message::Moving { epoch };
            self.core.actions.push_back(Action::Message { to, message });
        }
    }

    /// Notes when everybody has posted, as far as is known here: from then on progress has a
    /// deadline, and waiting for posts is over.
    pub(super) fn note_if_complete(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(collective) = self.live.get(&sequence) else { return };
        let complete = matches!(collective.phase, Phase::Running | Phase::Ready)
            && collective.complete.is_none()
            && self.awaited_ranks(collective).is_empty()
            && self.awaited_gateways(collective).is_empty();
        if let Some(collective) = self.live.get_mut(&sequence).filter(|_| complete) {
            collective.complete = Some(now);
        }
    }

    fn deadline(&self, collective: &Collective) -> Option<TimeNs> {
        match (collective.phase, collective.complete) {
            (Phase::Leaving | Phase::Failing | Phase::Failed, _) => None,
            (_, Some(complete)) => {
                let moved = self.core.progress.max(self.core.elsewhere);
                Some(moved.max(complete) + self.stall_span())
            }
            (_, None) => collective.expiry,
        }
    }

    /// How long nothing may move once everybody has posted.
    fn stall_span(&self) -> Span {
        let segment = self.active.as_ref().map_or(0, |active| active.plan.segment.get());
        let links = self.config.fabric.links().iter();
        let spans = links.map(|link| {
            let bits = u128::from(segment * STALL_SEGMENTS) * 8 * 1_000_000_000;
            let bits = bits * u128::from(self.config.one_in.get());
            let segments = bits / u128::from(link.rate.bits_per_second().max(1));
            STALL_ROUND_TRIPS * link.rtt.ns() + u64::try_from(segments).unwrap_or(u64::MAX / 2)
        });
        Span::from_ns(spans.max().unwrap_or(0)).max(STALL_MIN)
    }

    fn stall_failure(&self, sequence: Sequence, collective: &Collective) -> Failure {
        let span = self.stall_span();
        let mut missing = Vec::new();
        for peer in self.peers.keys() {
            missing.extend(self.missing_from(*peer, collective));
        }
        if missing.is_empty() {
            missing.push("work of this gateway itself".to_owned());
        }
        let (text, state) = (missing.join("; "), collective.buffers());
        let text = format!(
            "collective {sequence}: everybody posted, but nothing moved for {span}, the deadline \
             ({STALL_ROUND_TRIPS} round trips and {STALL_SEGMENTS} segments at the job's part of \
             the link, at least \
             {STALL_MIN}); missing on gateway {}: {text}; {state}, see the link",
            self.gateway_name(self.config.me)
        );
        Failure::new(FailureCode::Stalled, text)
    }

    /// What a peer has not sent, and what it has not confirmed, in words.
    fn missing_from(&self, peer: GatewayId, collective: &Collective) -> Vec<String> {
        let (me, name) = (self.config.me, self.gateway_name(peer));
        let mut words = Vec::new();
        let parts = || (0..).map(TreeIndex).zip(&collective.parts);
        let from = parts().filter(|(_, part)| part.expects_from(peer, me));
        let from = from.flat_map(|(tree, part)| {
            let landed = move |index: &u32| {
                let key = (peer, tree, SegmentIndex(*index));
                collective.incoming.get(&key).is_some_and(|incoming| incoming.landed)
            };
            missing(tree, part, move |index| !landed(&index))
        });
        words.extend(count(from).map(|what| format!("{what} from gateway {name}")));
        let to = parts().filter_map(|(tree, part)| Some((tree, part, part.out.get(&peer)?)));
        let to = to.flat_map(|(tree, part, out)| {
            missing(tree, part, move |index| out.due.contains(&index))
        });
        words.extend(count(to).map(|what| format!("receipts of {what} by gateway {name}")));
        words
    }

    fn expiry_failure(&self, sequence: Sequence, collective: &Collective) -> Failure {
        let text = format!(
            "collective {sequence}: the timeout passed waiting for {}; {}",
            self.awaited_names(collective).join(", "),
            collective.buffers()
        );
        Failure::new(FailureCode::TimedOut, text)
    }

    fn awaited_names(&self, collective: &Collective) -> Vec<String> {
        let here = self.awaited_ranks(collective).into_iter();
        let ranks = here.chain(self.awaited_elsewhere(collective));
        ranks.map(|rank| self.rank_name(rank)).collect()
    }
}

/// Tree, number and bytes of the segments that are missing.
fn missing(
    tree: TreeIndex,
    part: &PartState,
    which: impl Fn(u32) -> bool,
) -> impl Iterator<Item = (TreeIndex, u32, u64)> {
    let segments = (0..part.count()).filter(move |index| which(*index));
    segments.map(move |index| {
        let range = part.part.segment(index);
        (tree, index, range.end - range.start)
    })
}

/// "12 segments (3145728 bytes; the first is 4 of tree 0)", or nothing.
fn count(mut segments: impl Iterator<Item = (TreeIndex, u32, u64)>) -> Option<String> {
    let (tree, first, bytes) = segments.next()?;
    let (count, bytes) =
        segments.fold((1u64, bytes), |(count, sum), (_, _, bytes)| (count + 1, sum + bytes));
    Some(format!("{count} segments ({bytes} bytes; the first is {first} of tree {tree})"))
}
