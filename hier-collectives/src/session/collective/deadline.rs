//! Deadlines: for posts the posters' timeouts, for progress a multiple of the link's round trip.

use super::state::{Collective, Phase};
use crate::ids::Sequence;
use crate::post::{Failure, FailureCode};
use crate::session::context::Context;
use crate::session::epoch::state::EpochState;
use crate::wire::Message;
use std::num::NonZeroU64;
use units::{Span, TimeNs};

/// 10 s: the least time without progress that is a stall and fails a collective, on any link.
/// Longer than an outage of 5 s with its detection, shorter than QUIC's idle timeout of 15 s. So
/// the failure can name the segments that are missing.
/// Tested by `nothing_moving_after_the_last_post_is_a_stall`.
const STALL_MIN: Span = Span::from_secs(10);
/// 10 round trips of the slowest link: a part of the stall deadline, which is max(10 RTT + 20
/// segments, [`STALL_MIN`]).
const STALL_ROUND_TRIPS: u64 = 10;
/// 20 segments: the stall deadline includes the time to send so many at the job's share of the
/// slowest link's rate.
const STALL_SEGMENTS: u64 = 20;
/// 1 s: interval between two progress reports of a gateway to its peers while a collective lasts
/// longer. It is well below the least stall deadline of 10 s, and the reports cost little.
/// Tested by `arriving_bytes_defer_a_stall_everywhere`.
pub const PROGRESS_REPORT_INTERVAL: Span = Span::from_secs(1);
/// 16 peers: each 16 peers add one [`PROGRESS_REPORT_INTERVAL`] to the time between two progress
/// reports of a gateway, since all gateways report to all.
const PEERS_PER_INTERVAL_STEP: u64 = 16;
/// 3: with many peers the time between two progress reports of a gateway is up to three times
/// [`PROGRESS_REPORT_INTERVAL`], so that three reports fit into the least stall deadline.
const PROGRESS_INTERVAL_FACTOR_MAX: u64 = 3;

/// The progress of other gateways, and the deadlines that follow from progress.
#[derive(Debug)]
pub(in crate::session) struct Deadlines {
    link_shares: LinkShares,
    /// The time when another gateway last reported progress.
    elsewhere: TimeNs,
    /// The time when this gateway last reported progress.
    reported: Option<TimeNs>,
}

/// The shares of a link that the job or group has and had, each 1 / a divisor.
#[derive(Debug)]
struct LinkShares {
    one_in: NonZeroU64,
    /// Smaller shares before, and when each ended: the smallest first. Each ended before those
    /// behind it.
    earlier: Vec<(NonZeroU64, TimeNs)>,
}

impl LinkShares {
    /// Begins with a share of 1 / `one_in`.
    fn new(one_in: NonZeroU64) -> Self {
        Self { one_in, earlier: Vec::new() }
    }

    /// Sets the share to 1 / `one_in`.
    fn set_share(&mut self, one_in: NonZeroU64, now: TimeNs) {
        let before = std::mem::replace(&mut self.one_in, one_in);
        // A share that is no smaller than a later one never counts again.
        self.earlier.retain(|(share, _)| *share > before.max(one_in));
        self.earlier.extend((before > one_in).then_some((before, now)));
    }

    /// Returns the divisor of the smallest share since a time.
    fn least_since(&self, since: TimeNs) -> NonZeroU64 {
        let least = self.earlier.iter().find(|(_, ended)| *ended > since);
        least.map_or(self.one_in, |(one_in, _)| *one_in)
    }
}

impl Deadlines {
    /// Creates the deadlines of a job whose share of a link is 1 / `one_in` while all jobs use that
    /// link.
    pub fn new(one_in: NonZeroU64) -> Self {
        Self { link_shares: LinkShares::new(one_in), elsewhere: TimeNs::default(), reported: None }
    }

    /// Sets the share of a link to 1 / `one_in`.
    pub fn set_share(&mut self, one_in: NonZeroU64, now: TimeNs) {
        self.link_shares.set_share(one_in, now);
    }

    /// Records that another gateway reported progress, which defers the stall deadline.
    pub fn note_remote_progress(&mut self, now: TimeNs) {
        self.elsewhere = now;
    }

    /// Sends a progress report (Moving) to all peers in the epoch, at most once per interval.
    pub fn report_progress(&mut self, cx: &mut Context<'_>) {
        let peers = cx.epoch.members().peer_count() as u64;
        let factor = (1 + peers / PEERS_PER_INTERVAL_STEP).min(PROGRESS_INTERVAL_FACTOR_MAX);
        let every = Span::from_ns(PROGRESS_REPORT_INTERVAL.ns() * factor);
        if self.reported.is_some_and(|reported| cx.now < reported + every) {
            return;
        }
        self.reported = Some(cx.now);
        let message = Message::Moving { epoch: cx.epoch.number() };
        cx.actions.broadcast(cx.epoch.ready_peers(), &message);
    }

    /// Returns the time at which a collective fails: by stall once all ranks have posted, before
    /// that by the posters' timeouts. `moved` is the time of the last progress on this gateway.
    pub fn deadline_of(
        &self,
        collective: &Collective,
        moved: TimeNs,
        epoch: &EpochState,
    ) -> Option<TimeNs> {
        match (collective.phase, collective.all_posted_at) {
            (Phase::Leaving | Phase::Failing | Phase::Failed, _) => None,
            (_, Some(all_posted_at)) => {
                let since = self.last_progress(moved, all_posted_at);
                Some(since + self.stall_span(since, epoch))
            }
            (_, None) => collective.expiry,
        }
    }

    /// Returns the time of the last progress of a collective, here or elsewhere, or of its last post.
    fn last_progress(&self, moved: TimeNs, all_posted_at: TimeNs) -> TimeNs {
        moved.max(self.elsewhere).max(all_posted_at)
    }

    /// Returns the stall deadline: the time without progress since a time that fails a collective.
    fn stall_span(&self, since: TimeNs, epoch: &EpochState) -> Span {
        let one_in = self.link_shares.least_since(since);
        let segment = epoch.plan().map_or(0, |plan| plan.segment.get());
        let links = epoch.local().fabric().links().iter();
        let spans = links.map(|link| {
            let bits = u128::from(segment * STALL_SEGMENTS) * 8 * 1_000_000_000;
            let bits = bits * u128::from(one_in.get());
            let segments = bits / u128::from(link.rate.bits_per_second().max(1));
            STALL_ROUND_TRIPS * link.rtt.ns() + u64::try_from(segments).unwrap_or(u64::MAX / 2)
        });
        Span::from_ns(spans.max().unwrap_or(0)).max(STALL_MIN)
    }

    /// Builds the failure of a collective that reached its stall deadline. `missing` names the
    /// segments and receipts that did not come, `moved` is the time of the last progress here.
    pub fn stall_failure(
        &self,
        sequence: Sequence,
        collective: &Collective,
        moved: TimeNs,
        missing: &[String],
        epoch: &EpochState,
    ) -> Failure {
        let since = self.last_progress(moved, collective.all_posted_at.unwrap_or_default());
        let span = self.stall_span(since, epoch);
        let text = match missing {
            [] => "work of this gateway itself".to_owned(),
            missing => missing.join("; "),
        };
        let text = format!(
            "collective {sequence}: everybody posted, but nothing moved for {span}, the deadline \
             ({STALL_ROUND_TRIPS} round trips and {STALL_SEGMENTS} segments at the job's part of \
             the link, at least \
             {STALL_MIN}); missing on gateway {}: {text}; {}, see the link",
            epoch.local().own_name(),
            collective.buffer_state_text()
        );
        Failure::new(FailureCode::Stalled, text)
    }
}

/// Builds the failure of a collective that some ranks, named in `awaited`, did not post within the
/// posters' timeout.
pub(in crate::session) fn deadline_failure(
    sequence: Sequence,
    collective: &Collective,
    awaited: &[String],
) -> Failure {
    let text = format!(
        "collective {sequence}: the timeout passed waiting for {}; {}",
        awaited.join(", "),
        collective.buffer_state_text()
    );
    Failure::new(FailureCode::TimedOut, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_share_since_the_last_progress_counts() {
        let shares = |divisors: &[u64]| {
            let mut shares = LinkShares::new(NonZeroU64::MIN);
            for (second, one_in) in (1..).zip(divisors) {
                let at = TimeNs::from_ns(0) + Span::from_secs(second);
                shares.set_share(NonZeroU64::new(*one_in).expect("not 0"), at);
            }
            shares
        };
        let least = |shares: &LinkShares| {
            let since = |second| TimeNs::from_ns(0) + Span::from_secs(second);
            [0, 1, 2, 3, 4, 5, 6].map(|second| shares.least_since(since(second)).get())
        };
        assert_eq!(least(&shares(&[64, 1])), [64, 64, 1, 1, 1, 1, 1]);
        assert_eq!(least(&shares(&[4, 64, 8, 2])), [64, 64, 64, 8, 2, 2, 2]);
        assert_eq!(least(&shares(&[64, 2, 64, 2, 4])), [64, 64, 64, 64, 4, 4, 4]);
        let mut many = shares(&[]);
        for second in 0..10_000 {
            let one_in = NonZeroU64::new(1 << (second * 7 % 13)).expect("not 0");
            many.set_share(one_in, TimeNs::from_ns(second));
        }
        assert!(many.earlier.len() <= 13, "{:?}", many.earlier);
    }
}
