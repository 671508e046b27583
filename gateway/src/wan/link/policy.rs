//! What a fabric says of a link beside what plans are made of: how it is to be used.

use hier_collectives::ids::RegionId;
use std::collections::BTreeMap;
use units::BitRate;

/// How the links of a fabric are used, by their regions in number order. A link that is not
/// named here is used as [`LinkPolicy::default`] says.
pub type Policies = BTreeMap<(RegionId, RegionId), LinkPolicy>;

/// How one link is used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkPolicy {
    /// Its rate by the time of day; without one, always the whole.
    pub schedule: Option<Schedule>,
    /// What decides how much is in flight.
    pub controller: ControllerKind,
}

/// A congestion controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControllerKind {
    /// For a link whose rate is known: random loss is not taken for congestion.
    #[default]
    LinkShare,
    /// RFC 9438, for paths shared with strangers.
    Cubic,
    /// RFC 9002.
    NewReno,
}

impl ControllerKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LinkShare, Self::Cubic, Self::NewReno];

    /// Its name in a config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinkShare => "link-share",
            Self::Cubic => "cubic",
            Self::NewReno => "newreno",
        }
    }
}

/// Rates by the time of day in UTC, every day alike. Each holds until the next one; the last
/// holds on past midnight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule(Vec<(u32, BitRate)>);

impl Schedule {
    /// Entries of (second of the day, rate). `None` unless there is one, and all are of one
    /// day and in ascending order.
    pub fn new(entries: Vec<(u32, BitRate)>) -> Option<Self> {
        let ascending = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let of_a_day = entries.iter().all(|(at, _)| *at < DAY_SECONDS);
        (!entries.is_empty() && ascending && of_a_day).then_some(Self(entries))
    }

    /// The rate that holds at a time, in seconds since 1970-01-01 00:00 UTC.
    pub fn at(&self, unix_seconds: u64) -> BitRate {
        let of_day = unix_seconds % u64::from(DAY_SECONDS);
        let begun = self.0.partition_point(|(at, _)| u64::from(*at) <= of_day);
        self.0[begun.checked_sub(1).unwrap_or(self.0.len() - 1)].1
    }

    /// The seconds of the day at which rates begin, and these.
    pub fn entries(&self) -> impl Iterator<Item = (u32, BitRate)> {
        self.0.iter().copied()
    }
}

/// Seconds of a day; UTC's leap seconds are not counted by the clock.
pub const DAY_SECONDS: u32 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_holds_until_the_next_and_the_last_past_midnight() {
        let rate = BitRate::from_bits_per_second;
        let (day, night) = (rate(300_000_000), rate(1_000_000_000));
        let schedule = Schedule::new(vec![(8 * 3600, day), (18 * 3600, night)]).expect("valid");
        let days = 20_000 * u64::from(DAY_SECONDS);
        for (hour, wanted) in [(0, night), (7, night), (8, day), (17, day), (18, night)] {
            assert_eq!(schedule.at(days + hour * 3600), wanted, "{hour} h");
        }
        assert_eq!(schedule.at(days + 8 * 3600 - 1), night);
        for bad in [vec![], vec![(5, day), (5, night)], vec![(DAY_SECONDS, day)]] {
            assert_eq!(Schedule::new(bad), None);
        }
    }
}
