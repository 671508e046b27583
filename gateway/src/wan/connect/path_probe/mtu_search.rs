//! The search for the longest datagram that a path carries.

/// 8 lengths are tried in each round of the MTU search, in equal steps: a search up to 1,472 bytes
/// takes three rounds, one up to 9,000 four. More would fill the queue of a slow link.
const LENGTHS_PER_ROUND: u32 = 8;

/// The lengths that a path may carry, in bytes of UDP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MtuSearch {
    /// The longest datagram that got through.
    carried: u16,
    /// The longest datagram that may get through.
    possible: u16,
}

impl MtuSearch {
    /// Begins a search on a path that carries datagrams of `carried` bytes, up to `wanted` bytes.
    pub fn new(carried: u16, wanted: u16) -> Self {
        Self { carried, possible: wanted.max(carried) }
    }

    /// Returns the longest datagram that got through so far, in bytes of UDP payload.
    pub fn carried(self) -> u16 {
        self.carried
    }

    /// Returns the lengths to try next, ascending; none when the search is over.
    pub fn next_lengths(self) -> Vec<u16> {
        let span = u32::from(self.possible - self.carried);
        let step = |number: u32| u16::try_from(span * number / LENGTHS_PER_ROUND);
        let steps = (1..=LENGTHS_PER_ROUND).filter_map(|number| step(number).ok());
        let mut lengths: Vec<u16> =
            steps.filter(|step| *step > 0).map(|step| self.carried + step).collect();
        lengths.dedup();
        lengths
    }

    /// Narrows the search by the lengths that were tried, each with whether it got through.
    pub fn note_tries(&mut self, tries: impl Iterator<Item = (u16, bool)>) {
        let tries: Vec<_> = tries.collect();
        let carried = tries.iter().filter(|(_, carried)| *carried).map(|(length, _)| *length);
        self.carried = carried.max().unwrap_or(self.carried).max(self.carried);
        let failed = tries.iter().filter(|(length, _)| *length > self.carried);
        let too_long = failed.map(|(length, _)| *length).min();
        self.possible = too_long.map_or(self.possible, |length| length - 1).max(self.carried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the result of a search, and its number of rounds.
    fn search(wanted: u16, path: u16) -> (u16, u32) {
        let (mut search, mut rounds) = (MtuSearch::new(1200, wanted), 0);
        loop {
            let lengths = search.next_lengths();
            if lengths.is_empty() {
                return (search.carried(), rounds);
            }
            rounds += 1;
            search.note_tries(lengths.into_iter().map(|length| (length, length <= path)));
        }
    }

    #[test]
    fn common_paths_take_few_rounds() {
        assert_eq!(search(1472, 1472), (1472, 1), "nothing to search");
        assert_eq!(search(1200, 1472), (1200, 0));
        for (path, rounds) in [(1372, 3), (1392, 3), (1432, 3), (1200, 3)] {
            let (found, took) = search(1472, path);
            assert!(found == path && took <= rounds, "{path}: {found} after {took}");
        }
        let (found, took) = search(8972, 1472);
        assert!(found == 1472 && took <= 5, "{found} after {took}");
    }

    proptest! {
        #[test]
        fn every_path_is_found_to_the_byte(wanted in 1200_u16..=65_507, path in 1200_u16..=65_507) {
            let (found, rounds) = search(wanted, path);
            prop_assert_eq!(found, path.min(wanted));
            prop_assert!(rounds <= 7, "{rounds} rounds");
        }
    }
}
