//! Deadlines: for posts the posters' timeouts, for progress a multiple of the link's round trip.

use super::state::{Collective, Phase};
use crate::ids::Sequence;
use crate::post::{Failure, FailureCode};
use crate::session::context::Context;
use crate::session::epoch::state::EpochState;
use crate::wire::Message;
use std::num::NonZeroU64;
use units::{Span, TimeNs};

/// 10 s without progress are no stall, whatever the link. It is longer than an outage of 5 s and
/// its detection, and below QUIC's idle timeout of 15 s, so that the error names what is missing.
/// Tested by `nothing_moving_after_the_last_post_is_a_stall`.
const STALL_MIN: Span = Span::from_secs(10);
/// The deadline is max(10 RTT + 20 segments at the job's share of the link's rate, `STALL_MIN`).
const STALL_ROUND_TRIPS: u64 = 10;
/// 20 segments: the deadline includes the time to send so many at the job's share of the slowest link.
const STALL_SEGMENTS: u64 = 20;
/// 1 s. The interval at which gateways report progress while a collective or a segment takes
/// longer: well within `STALL_MIN`, and too rare to cost anything.
/// Tested by `arriving_bytes_defer_a_stall_everywhere`.
pub const MOVING_EVERY: Span = Span::from_secs(1);
/// 16: each so many peers lengthen the interval by [`MOVING_EVERY`], since all report to all.
const MOVING_PEERS: u64 = 16;
/// 3: the interval is at most so many times [`MOVING_EVERY`].
const MOVING_FACTOR_MAX: u64 = 3;

/// The progress of other gateways, and the deadlines that follow from progress.
#[derive(Debug)]
pub(in crate::session) struct Deadlines {
    /// The job's share of a link while all jobs use it is 1 / `one_in`.
    one_in: NonZeroU64,
    /// The time when another gateway last reported progress.
    elsewhere: TimeNs,
    /// The time when this gateway last reported progress.
    reported: Option<TimeNs>,
}

impl Deadlines {
    pub fn new(one_in: NonZeroU64) -> Self {
        Self { one_in, elsewhere: TimeNs::default(), reported: None }
    }

    /// Another gateway reports progress.
    pub fn note_elsewhere(&mut self, now: TimeNs) {
        self.elsewhere = now;
    }

    /// Reports progress here to all peers, unless that was done a short time ago.
    pub fn report(&mut self, cx: &mut Context<'_>) {
        let peers = cx.epoch.members().len() as u64;
        let factor = (1 + peers / MOVING_PEERS).min(MOVING_FACTOR_MAX);
        let every = Span::from_ns(MOVING_EVERY.ns() * factor);
        if self.reported.is_some_and(|reported| cx.now < reported + every) {
            return;
        }
        self.reported = Some(cx.now);
        let message = Message::Moving { epoch: cx.epoch.number() };
        cx.actions.broadcast(cx.epoch.ready_peers(), &message);
    }

    /// The time at which a collective fails. `moved` is the time of the last progress here.
    pub fn of(&self, collective: &Collective, moved: TimeNs, epoch: &EpochState) -> Option<TimeNs> {
        match (collective.phase, collective.complete) {
            (Phase::Leaving | Phase::Failing | Phase::Failed, _) => None,
            (_, Some(complete)) => {
                Some(moved.max(self.elsewhere).max(complete) + self.stall_span(epoch))
            }
            (_, None) => collective.expiry,
        }
    }

    /// The time without progress, once everybody has posted, that counts as a stall.
    fn stall_span(&self, epoch: &EpochState) -> Span {
        let segment = epoch.plan().map_or(0, |plan| plan.segment.get());
        let links = epoch.local().fabric().links().iter();
        let spans = links.map(|link| {
            let bits = u128::from(segment * STALL_SEGMENTS) * 8 * 1_000_000_000;
            let bits = bits * u128::from(self.one_in.get());
            let segments = bits / u128::from(link.rate.bits_per_second().max(1));
            STALL_ROUND_TRIPS * link.rtt.ns() + u64::try_from(segments).unwrap_or(u64::MAX / 2)
        });
        Span::from_ns(spans.max().unwrap_or(0)).max(STALL_MIN)
    }

    /// The failure of a collective in which nothing moves. `missing` names what did not come.
    pub fn stall_failure(
        &self,
        sequence: Sequence,
        collective: &Collective,
        missing: &[String],
        epoch: &EpochState,
    ) -> Failure {
        let span = self.stall_span(epoch);
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
            collective.buffers()
        );
        Failure::new(FailureCode::Stalled, text)
    }
}

/// The failure of a collective that some ranks did not post in time.
pub(in crate::session) fn expiry_failure(
    sequence: Sequence,
    collective: &Collective,
    awaited: &[String],
) -> Failure {
    let text = format!(
        "collective {sequence}: the timeout passed waiting for {}; {}",
        awaited.join(", "),
        collective.buffers()
    );
    Failure::new(FailureCode::TimedOut, text)
}
