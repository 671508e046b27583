//! The greatest delivery rate of the last rounds.

use std::collections::VecDeque;

/// A windowed maximum of delivery rates, in bytes per second.
#[derive(Debug, Clone, Default)]
pub(crate) struct RateFilter {
    /// The rates of the last rounds, the newest last.
    rates: VecDeque<f64>,
}

impl RateFilter {
    /// Returns the greatest rate of the last rounds in bytes per second; `None` before the first.
    pub fn max(&self) -> Option<f64> {
        self.rates.iter().copied().reduce(f64::max)
    }

    /// Adds the rate of a round, and forgets the oldest rate where it holds those of 14 rounds.
    pub fn push(&mut self, rate: f64) {
        if self.rates.len() == RATE_ROUNDS {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
    }

    /// Forgets all rates for the one of a round that measured the capacity.
    pub fn replace(&mut self, rate: f64) {
        self.rates.clear();
        self.rates.push_back(rate);
    }
}

/// 14 rounds: a lane's rate is the greatest delivery rate of its last 14 rounds, and older rates
/// are forgotten. These rounds hold a whole cycle of probing: 10 of cruise, 2 up and 2 down.
const RATE_ROUNDS: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_rate_is_forgotten_after_fourteen_rounds() {
        let mut filter = RateFilter::default();
        assert_eq!(filter.max(), None);
        filter.push(5.0);
        (0..13).for_each(|_| filter.push(1.0));
        assert_eq!(filter.max(), Some(5.0));
        filter.push(2.0);
        assert_eq!(filter.max(), Some(2.0));
        filter.replace(1.0);
        assert_eq!(filter.max(), Some(1.0));
    }
}
