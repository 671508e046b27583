//! Deadlines: for posts the posters' timeouts, for progress a multiple of the link's round trip.

use super::live_collective::{LiveCollective, Phase};
use crate::ids::{GatewayId, RankId, Sequence};
use crate::post::{Failure, FailureCode};
use crate::session::context::Context;
use crate::session::epoch::epoch_state::EpochState;
use crate::session::local_gateway::LocalGateway;
use crate::topology::{SLOW_ROUND_TRIPS, STALLED_SEGMENTS};
use crate::wire::Message;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use units::{ByteCount, Span, TimeNs};

/// 1 s: while a collective lasts longer, a gateway where bytes move reports progress to its peers
/// at most once a second. Each report defers the peers' stall deadlines. 1 s is a tenth of the
/// least stall deadline of the usual patience, 10 s.
/// Tested by `arriving_bytes_defer_a_stall_everywhere`.
pub const PROGRESS_REPORT_INTERVAL: Span = Span::from_secs(1);
/// 1 s: the error of a stall names a peer that has acknowledged nothing for this time, since that peer
/// or its link stands still. Acknowledgements come within round trips; the time is chosen.
/// Tested by `the_error_of_a_stall_names_silent_peers`.
const SILENCE_NAMED_MIN: Span = Span::from_secs(1);
/// 16 peers: each 16 peers of a gateway add 1 s to the 1 s between two of its progress reports, up
/// to 3 s. All gateways report to all.
const PEERS_PER_INTERVAL_STEP: u64 = 16;
/// 3: the time between two progress reports of a gateway is at most 3 times 1 s, however many peers
/// it has.
const PROGRESS_INTERVAL_FACTOR_MAX: u64 = 3;
/// 3 progress reports fit into the least stall deadline, at least, however short the patience is. So
/// one that is late fails nothing.
const PROGRESS_REPORTS_MIN: u64 = 3;

/// The progress of other gateways, and the deadlines that follow from progress.
#[derive(Debug)]
pub(in crate::session) struct Deadlines {
    /// The job's share of a link while all jobs use it is 1 / `one_in`.
    one_in: NonZeroU64,
    /// The time when another gateway last reported progress.
    elsewhere: TimeNs,
    /// The time when this gateway last reported progress.
    reported: Option<TimeNs>,
    /// The time when this gateway last went on after it had not run.
    resumed: TimeNs,
    /// How long each peer that is silent has acknowledged nothing.
    silences: BTreeMap<GatewayId, Span>,
}

impl Deadlines {
    /// Creates the deadlines of a job whose share of a link is 1 / `one_in` while all jobs use that
    /// link.
    pub fn new(one_in: NonZeroU64) -> Self {
        let (elsewhere, resumed) = (TimeNs::default(), TimeNs::default());
        Self { one_in, elsewhere, reported: None, resumed, silences: BTreeMap::new() }
    }

    /// Sets the job's share of a link to 1 / `one_in`.
    pub fn set_share(&mut self, one_in: NonZeroU64) {
        self.one_in = one_in;
    }

    /// Records that another gateway reported progress, which defers the stall deadline.
    pub fn note_remote_progress(&mut self, now: TimeNs) {
        self.elsewhere = now;
    }

    /// Records that this gateway goes on after it did not run. What came meanwhile is not handled yet,
    /// so that no stall is counted from before.
    pub fn note_scheduling_delay(&mut self, now: TimeNs) {
        self.resumed = now;
    }

    /// Records how long a peer has acknowledged nothing, zero if it is heard.
    pub fn note_silence(&mut self, peer: GatewayId, silence: Span) {
        if silence < SILENCE_NAMED_MIN {
            self.silences.remove(&peer);
        } else {
            self.silences.insert(peer, silence);
        }
    }

    /// Sends a progress report (Moving) to all peers in the epoch, at most once in 1 to 3 s. The
    /// interval grows with the number of peers.
    pub fn report_progress(&mut self, cx: &mut Context<'_>) {
        let every = report_interval(cx.epoch);
        if self.reported.is_some_and(|reported| cx.now < reported + every) {
            return;
        }
        self.reported = Some(cx.now);
        let message = Message::Moving { epoch: cx.epoch.number() };
        cx.actions.broadcast(cx.epoch.ready_peers(), &message);
    }

    /// Returns when progress of a collective that awaits bytes of a local contribution `since` then is
    /// reported once more, an interval later; `None` if that is done. So if no more bytes come, this
    /// gateway's stall deadline is the first, and its failure names the rank.
    pub fn repeated_report(&self, since: TimeNs, epoch: &EpochState) -> Option<TimeNs> {
        let every = report_interval(epoch);
        let due = since + every;
        match self.reported {
            Some(reported) if reported >= due => None,
            Some(reported) => Some(due.max(reported + every)),
            None => Some(due),
        }
    }

    /// Returns the time of the last progress on any gateway; `here` is that on this one.
    pub fn last_progress(&self, here: TimeNs) -> TimeNs {
        here.max(self.elsewhere)
    }

    /// Returns the time at which a collective fails: by stall once all ranks have posted, before
    /// that by the posters' timeouts. `moved` is the time of the collective's last progress.
    /// `None` for a collective that fails, has failed, or whose epoch is over.
    pub fn deadline_of(
        &self,
        collective: &LiveCollective,
        moved: TimeNs,
        epoch: &EpochState,
    ) -> Option<TimeNs> {
        match (collective.phase, collective.all_posted_at) {
            (Phase::Leaving | Phase::Failing | Phase::Failed, _) => None,
            (_, Some(all_posted_at)) => {
                Some(moved.max(all_posted_at).max(self.resumed) + self.stall_span(epoch))
            }
            (_, None) => collective.expiry,
        }
    }

    /// Returns the stall deadline: the time without progress, after the last post, that fails a
    /// collective, by the patience of the fabric.
    fn stall_span(&self, epoch: &EpochState) -> Span {
        let segment = epoch.plan().map_or_else(ByteCount::default, |plan| plan.segment);
        let fabric = epoch.local().fabric();
        fabric.patience().stalled_after(fabric.links(), segment, self.one_in)
    }

    /// Builds the failure of a collective that reached its stall deadline. `missing` names the
    /// segments and receipts that did not come.
    pub fn stall_failure(
        &self,
        sequence: Sequence,
        collective: &LiveCollective,
        missing: &[String],
        epoch: &EpochState,
    ) -> Failure {
        let span = self.stall_span(epoch);
        let missing = match missing {
            [] => "work of this gateway itself".to_owned(),
            missing => missing.join("; "),
        };
        let silences = self.silences.iter().map(|(peer, silence)| {
            let name = epoch.local().gateway_name(*peer);
            format!("; gateway {name} has acknowledged nothing for {}", silence.rounded())
        });
        let silences: String = silences.collect();
        let text = format!(
            "collective {sequence}: everybody posted, but nothing moved for {span}, the deadline \
             ({SLOW_ROUND_TRIPS} round trips and {STALLED_SEGMENTS} segments at the job's part of \
             the link, at least {}); \
             missing on gateway {}: {missing}{silences}; {}, see the link",
            epoch.local().fabric().patience().stalled_after_least(),
            epoch.local().own_name(),
            collective.buffer_state_text()
        );
        Failure::new(FailureCode::Stalled, text)
    }
}

/// Returns the least time between two progress reports of a gateway.
fn report_interval(epoch: &EpochState) -> Span {
    let peers = epoch.members().peer_count() as u64;
    let factor = (1 + peers / PEERS_PER_INTERVAL_STEP).min(PROGRESS_INTERVAL_FACTOR_MAX);
    let stall_ns = epoch.local().fabric().patience().stalled_after_least().ns();
    Span::from_ns(PROGRESS_REPORT_INTERVAL.ns() * factor)
        .min(Span::from_ns(stall_ns / PROGRESS_REPORTS_MIN))
}

/// Builds the failure of a collective that some ranks, named in `awaited`, did not post within the
/// posters' timeout.
pub(in crate::session) fn deadline_failure(
    sequence: Sequence,
    collective: &LiveCollective,
    awaited: &[String],
) -> Failure {
    let text = format!(
        "collective {sequence}: the timeout passed waiting for {}; {}",
        awaited.join(", "),
        collective.buffer_state_text()
    );
    Failure::new(FailureCode::TimedOut, text)
}

/// Returns the failure that a rank hears whose end of a send comes when the other end has expired; for
/// all others the failure that all ranks hear.
pub(super) fn late_send_failure(
    sequence: Sequence,
    rank: RankId,
    failure: &Failure,
    local: &LocalGateway,
) -> Failure {
    let Some(series) = sequence.series().filter(|_| failure.code == FailureCode::TimedOut) else {
        return failure.clone();
    };
    let (own, other) = if series.from == rank { ("send", "receive") } else { ("receive", "send") };
    let text = format!(
        "collective {sequence}: the {other} that matches this {own} expired on {} before this rank \
         posted the {own}; contribution intact, the next send with this tag meets the next receive",
        local.rank_name(RankId(1 - rank.0.min(1)))
    );
    Failure::new(FailureCode::TimedOut, text)
}
