//! The rate limit of a link by the time of day, as the fabric file sets it.

use units::BitRate;

/// Rates by the time of day in UTC, the same every day. Each holds until the next one; the last one
/// holds on past midnight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateSchedule(Vec<(u32, BitRate)>);

impl RateSchedule {
    /// Creates a schedule of entries: the second of the day from which a rate holds, and the rate.
    /// Returns `None` if there is no entry, one is not within a day, or they do not ascend.
    pub fn new(entries: Vec<(u32, BitRate)>) -> Option<Self> {
        let ascending = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let of_a_day = entries.iter().all(|(at, _)| *at < SECONDS_PER_DAY);
        (!entries.is_empty() && ascending && of_a_day).then_some(Self(entries))
    }

    /// Returns the scheduled rate at a time in seconds since 1970-01-01 00:00 UTC.
    pub fn rate_at(&self, unix_seconds: u64) -> BitRate {
        let of_day = unix_seconds % u64::from(SECONDS_PER_DAY);
        let begun = self.0.partition_point(|(at, _)| u64::from(*at) <= of_day);
        self.0[begun.checked_sub(1).unwrap_or(self.0.len() - 1)].1
    }

    /// Returns the entries in order: the second of the day from which a rate holds, and the rate.
    pub fn entries(&self) -> impl Iterator<Item = (u32, BitRate)> {
        self.0.iter().copied()
    }
}

/// 86,400 seconds: the length of a day in rate schedules, which have no leap seconds. Entries of a
/// schedule lie below it, and each day the schedule begins again.
pub const SECONDS_PER_DAY: u32 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_holds_until_the_next_and_past_midnight() {
        let rate = BitRate::from_bits_per_second;
        let (day, night) = (rate(300_000_000), rate(1_000_000_000));
        let schedule = RateSchedule::new(vec![(8 * 3600, day), (18 * 3600, night)]).expect("valid");
        let days = 20_000 * u64::from(SECONDS_PER_DAY);
        for (hour, wanted) in [(0, night), (7, night), (8, day), (17, day), (18, night)] {
            assert_eq!(schedule.rate_at(days + hour * 3600), wanted, "{hour} h");
        }
        assert_eq!(schedule.rate_at(days + 8 * 3600 - 1), night);
        for bad in [vec![], vec![(5, day), (5, night)], vec![(SECONDS_PER_DAY, day)]] {
            assert_eq!(RateSchedule::new(bad), None);
        }
    }
}
