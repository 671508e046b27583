//! Patience: how long a silence is borne. All deadlines that end a silence follow from it.
//!
//! The fabric has one patience, on which its gateways agree. Sessions, the mesh and the gateways' lanes
//! ask it for their deadlines, and `landbridge check` prints them. Timeouts of callers are for others who
//! are alive and slow, and do not follow.
//!
//! ```text
//! lost       = max(`silence`, or else patience; 1 s + 3 RTT)
//! gone round = min(lost; max(8/15 patience; 2/5 patience + 3 RTT))
//! awaited    = max(2/3 patience; 10 RTT)
//! stalled    = max(2/3 patience; over all links: 10 RTT + time of 20 segments at the job's share)
//! ```

use super::error::FabricError;
use super::link::Link;
use crate::ids::RegionId;
use std::num::NonZeroU64;
use units::{ByteCount, Span};

/// 1 s: the interval between keep-alives of a lane that sends nothing else. A peer that was started
/// again answers a keep-alive with a stateless reset, so an idle lane to the old process ends that
/// soon.
pub const KEEP_ALIVE_INTERVAL: Span = Span::from_secs(1);

/// 15 s: the patience of a fabric that states none, since outages of some seconds are common. The
/// least outage of 5 s that must do no harm is a third of it.
const PATIENCE_DEFAULT: Span = Span::from_secs(15);

/// 6 s: the least patience. Three keep-alives, 1 s apart, fit into the 8/15 of it after which a silent
/// link is gone round, so that the loss of one is no silence.
const PATIENCE_MIN: Span = Span::from_secs(6);

/// 15 min: the longest patience, which is [`PATIENCE_ROUND_TRIPS`] (15 round trips) of the longest link
/// that a fabric may have, 60 s.
const PATIENCE_MAX: Span = Span::from_secs(900);

/// 15 round trips: the least patience with a link, so that 10 round trips fit into the 2/3 of it after
/// which an exchange without progress fails.
const PATIENCE_ROUND_TRIPS: u64 = 15;

/// 3 round trips, added to the keep-alive interval of 1 s: where the sum is longer than the patience, a
/// peer is lost after so long without a datagram. An idle peer is heard once a keep-alive and a round
/// trip, because the last keep-alive is awaited before the next.
const LOST_ROUND_TRIPS: u64 = 3;

/// 10 round trips of a link: its connection is awaited for so long before it is gone round, since a lost
/// handshake and its retry take less. An exchange without progress fails after no less, since several
/// losses of one packet take less.
pub(crate) const SLOW_ROUND_TRIPS: u64 = 10;

/// 20 segments: the time to send so many at the job's share of a link is added to 10 round trips of
/// the link. A collective without progress for that sum, or for 2/3 of the patience if longer, fails.
/// The number is chosen, so that a slow link is not taken for a dead one.
pub(crate) const STALLED_SEGMENTS: u64 = 20;

/// A patience that no fabric may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a patience of {0} is outside 6 s to 15 min")]
pub struct PatienceError(Span);

/// The time for which a silence is borne: 15 s unless the fabric states another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(Span);

impl Default for Patience {
    /// Returns the patience of a fabric that states none: 15 s.
    fn default() -> Self {
        Self(PATIENCE_DEFAULT)
    }
}

impl Patience {
    /// Makes a patience.
    ///
    /// # Errors
    /// The time is below 6 s or above 15 min.
    pub fn of_span(span: Span) -> Result<Self, PatienceError> {
        match (PATIENCE_MIN..=PATIENCE_MAX).contains(&span) {
            true => Ok(Self(span)),
            false => Err(PatienceError(span)),
        }
    }

    /// Returns the patience as a time.
    pub fn span(self) -> Span {
        self.0
    }

    /// Returns how long no datagram comes from a peer until it is lost, over a link of round trip `rtt`.
    /// The `silence` of the fabric, if it has one, stands in place of the patience.
    pub fn lost_after(self, silence: Option<Span>, rtt: Span) -> Span {
        silence
            .unwrap_or(self.0)
            .max(KEEP_ALIVE_INTERVAL + patience_multiple(rtt, LOST_ROUND_TRIPS))
    }

    /// Returns how long no datagram comes from a peer until the link to it, of round trip `rtt`, is gone
    /// round, if others join all regions.
    pub fn gone_round_after(self, silence: Option<Span>, rtt: Span) -> Span {
        let outage = self.part(2, 5) + patience_multiple(rtt, LOST_ROUND_TRIPS);
        outage.max(self.part(8, 15)).min(self.lost_after(silence, rtt))
    }

    /// Returns how long a connection that did not come up, over a link of round trip `rtt`, is awaited
    /// until it is gone round, if others join all regions.
    pub fn awaited_for(self, rtt: Span) -> Span {
        patience_multiple(rtt, SLOW_ROUND_TRIPS).max(self.part(2, 3))
    }

    /// Returns the least time without progress after which an exchange fails that all ranks have posted.
    pub fn stalled_after_least(self) -> Span {
        self.part(2, 3)
    }

    /// Returns the time without progress after which an exchange fails that all ranks have posted. The
    /// job's share of each link is 1 / `one_in`, in segments of this length.
    pub fn stalled_after(self, links: &[Link], segment: ByteCount, one_in: NonZeroU64) -> Span {
        let of_link = |link: &Link| {
            let bits = u128::from(segment.get() * STALLED_SEGMENTS) * 8 * 1_000_000_000;
            let bits = bits * u128::from(one_in.get());
            let segments = bits / u128::from(link.rate.bits_per_second().max(1));
            let segments = u64::try_from(segments).unwrap_or(u64::MAX / 2);
            patience_multiple(link.rtt, SLOW_ROUND_TRIPS) + Span::from_ns(segments)
        };
        links.iter().map(of_link).fold(self.stalled_after_least(), Span::max)
    }

    /// Returns all deadlines that follow, in the order of [`PATIENCE_RULES`], with these links and the
    /// `silence` of the fabric. A plan has segments of this length, and the job has the links alone.
    pub(super) fn deadlines(
        self,
        silence: Option<Span>,
        links: &[Link],
        segment: ByteCount,
    ) -> [PatienceDeadline; 4] {
        let longest = links.iter().map(|link| link.rtt).max().unwrap_or(Span::ZERO);
        let of = |links: &[Link], rtt| {
            [
                self.lost_after(silence, rtt),
                self.gone_round_after(silence, rtt),
                self.awaited_for(rtt),
                self.stalled_after(links, segment, NonZeroU64::MIN),
            ]
        };
        let (least, all) = (of(&[], Span::ZERO), of(links, longest));
        let is_silence = |after| Some(after) == silence && after != self.0;
        std::array::from_fn(|index| {
            let after = all[index];
            let source = match after > least[index] {
                true => PatienceSource::Link,
                false if is_silence(after) => PatienceSource::Silence,
                false => PatienceSource::Patience,
            };
            PatienceDeadline { rule: &PATIENCE_RULES[index], after, source }
        })
    }

    /// Checks a patience that a fabric states against its links, and its `silence` against it. Links are
    /// named by the regions, whose names `region` gives.
    ///
    /// # Errors
    /// All faults: a link too long for the patience, a `silence` above it.
    pub(super) fn check<'n>(
        self,
        silence: Option<Span>,
        links: &[Link],
        region: impl Fn(RegionId) -> &'n str,
    ) -> Result<(), Vec<FabricError>> {
        let mut faults = Vec::new();
        let longest = links.iter().max_by_key(|link| link.rtt);
        let least = longest.map(|link| (link, patience_multiple(link.rtt, PATIENCE_ROUND_TRIPS)));
        if let Some((link, least)) = least.filter(|(_, least)| self.0 < *least) {
            let problem = format!(
                "patience {} is below {PATIENCE_ROUND_TRIPS} round trips of link `{}-{}`, whose RTT is \
                 {}: exchanges would count as stalled while their packets are under way",
                self.0,
                region(link.a),
                region(link.b),
                link.rtt
            );
            faults.push(FabricError::BadValue { problem, accepted: format!("at least {least}") });
        }
        if let Some(silence) = silence.filter(|silence| *silence > self.0) {
            let problem = format!(
                "silence {silence} is above the patience of {}: a gateway would count as there for \
                 longer than any silence is borne",
                self.0
            );
            let accepted = format!("at most {}, or no `silence`", self.0);
            faults.push(FabricError::BadValue { problem, accepted });
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Returns this part of the patience.
    fn part(self, of: u64, all: u64) -> Span {
        Span::from_ns(self.0.ns() / all * of)
    }
}

/// Returns a multiple of a time.
fn patience_multiple(span: Span, count: u64) -> Span {
    Span::from_ns(span.ns().saturating_mul(count))
}

/// A deadline of a fabric that follows from its patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatienceDeadline {
    /// Its rule.
    pub rule: &'static PatienceRule,
    /// Its time on the link where it is longest.
    pub after: Span,
    /// The origin of that time.
    pub source: PatienceSource,
}

/// The origin of a deadline's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatienceSource {
    /// The patience.
    Patience,
    /// The key `silence`.
    Silence,
    /// The longest or slowest link, which needs more than the patience gives.
    Link,
}

impl PatienceSource {
    /// Returns the word for the origin.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Patience => "patience",
            Self::Silence => "silence",
            Self::Link => "link",
        }
    }
}

/// The rule of a deadline, as pages and commands show it.
#[derive(Debug, PartialEq, Eq)]
pub struct PatienceRule {
    /// The name of the deadline.
    pub name: &'static str,
    /// Its formula.
    pub formula: &'static str,
    /// The event at the end of that time.
    pub meaning: &'static str,
}

/// The rules of all deadlines that follow from the patience.
pub static PATIENCE_RULES: [PatienceRule; 4] = [
    PatienceRule {
        name: "lost",
        formula: "`silence`, or else patience; at least 1 s + 3 RTT",
        meaning: "a gateway without a packet counts as lost: code 5",
    },
    PatienceRule {
        name: "gone_round",
        formula: "8/15 of patience; at least 2/5 of it + 3 RTT; at most `lost`",
        meaning: "a silent link is gone round, where others join all regions: code 5",
    },
    PatienceRule {
        name: "awaited",
        formula: "2/3 of patience; at least 10 RTT",
        meaning: "a link that did not come up is gone round",
    },
    PatienceRule {
        name: "stalled",
        formula: "2/3 of patience; at least 10 RTT + the time of 20 segments",
        meaning: "an exchange that all ranks have posted, and in which nothing moves, fails: code 7",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use crate::topology::Fabric;

    /// Returns two regions over a link of this round trip, with a patience of this many seconds.
    fn fabric(rtt_ms: u64, patience_s: u64) -> Fabric {
        let gateways = [(1, Some(symmetric_port(mbit(100))))];
        let builder = FabricBuilder::default().region("east", gateways).region("west", gateways);
        let fabric = builder.all_pairs(lossless_link(mbit(100), rtt_ms)).build();
        fabric.with_patience(Patience::of_span(Span::from_secs(patience_s)).expect("valid"))
    }

    /// Returns name, milliseconds and origin of each deadline.
    fn deadlines(fabric: &Fabric) -> Vec<(&'static str, u64, &'static str)> {
        let all = fabric.patience_deadlines(ByteCount::new(64 << 10));
        let row =
            |one: &PatienceDeadline| (one.rule.name, one.after.ns() / 1_000_000, one.source.name());
        all.iter().map(row).collect()
    }

    #[test]
    fn every_deadline_follows_from_the_patience() {
        let of = |patience| deadlines(&fabric(80, patience));
        let expected = |lost, round, rest| {
            [("lost", lost), ("gone_round", round), ("awaited", rest), ("stalled", rest)]
                .map(|(name, ms)| (name, ms, "patience"))
        };
        assert_eq!(of(15), expected(15_000, 8_000, 10_000), "as without the key");
        assert_eq!(of(6), expected(6_000, 3_200, 4_000));
        assert_eq!(of(60), expected(60_000, 32_000, 40_000));
        assert_eq!(Patience::default().span(), Span::from_secs(15));
    }

    #[test]
    fn a_long_link_makes_deadlines_longer() {
        let all = deadlines(&fabric(60_000, 15));
        assert_eq!(all[0], ("lost", 181_000, "link"));
        assert_eq!(all[1], ("gone_round", 181_000, "link"));
        assert_eq!(all[2], ("awaited", 600_000, "link"));
        assert_eq!((all[3].1 > 600_000, all[3].2), (true, "link"), "20 segments more");
    }

    #[test]
    fn a_silence_replaces_the_patience_for_loss_alone() {
        let all = deadlines(&fabric(80, 12).with_silence(Some(Span::from_secs(5))));
        assert_eq!(all[0], ("lost", 5_000, "silence"));
        assert_eq!(all[1], ("gone_round", 5_000, "silence"), "a lost gateway is gone round, too");
        assert_eq!((all[2].1, all[3].1), (8_000, 8_000));
    }

    #[test]
    fn a_patience_that_contradicts_the_fabric_is_refused() {
        let refused = |fabric: Fabric| {
            let faults = fabric.check_patience().expect_err("refused");
            faults.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(fabric(400, 6).check_patience(), Ok(()));
        let faults = refused(fabric(401, 6));
        assert!(faults[0].contains("link `east-west`, whose RTT is 401 ms"), "{faults:?}");
        let faults = refused(fabric(80, 6).with_silence(Some(Span::from_secs(7))));
        assert!(faults[0].starts_with("silence 7 s is above the patience of 6 s"), "{faults:?}");
        assert_eq!(fabric(80, 7).with_silence(Some(Span::from_secs(7))).check_patience(), Ok(()));
        for outside in [5_999, 900_001] {
            let error = Patience::of_span(Span::from_ms(outside)).expect_err("outside");
            assert!(error.to_string().contains("outside 6 s to 15 min"), "{error}");
        }
    }
}
