//! The attached ranks of a job without an epoch, and the texts that they were told.

use hier_collectives::ids::RankId;
use std::collections::BTreeMap;
use units::{Span, TimeNs};

/// 1 s: the shortest time between two messages that tell a rank why its job has no epoch. A reason
/// that changes sooner is told after that time. The time doubles up to 60 s, so that a trainer that
/// reads nothing for a minute has few unread messages.
const EPOCH_REASON_PAUSE_MIN: Span = Span::from_secs(1);
/// 60 s: the longest time for which a rank is not told that the reason why its job has no epoch has
/// changed. So a trainer that is stopped for hours gets one unread message a minute at most.
const EPOCH_REASON_PAUSE_MAX: Span = Span::from_secs(60);

/// The texts that attached ranks were told since the last epoch.
#[derive(Debug, Default)]
pub(super) struct AwaitedEpoch {
    wait: Option<Wait>,
    told: BTreeMap<RankId, String>,
}

/// A wait for an epoch.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since: TimeNs,
    /// When ranks are told of another text.
    due: TimeNs,
}

impl AwaitedEpoch {
    /// Forgets what a rank was told, since another trainer is attached as it.
    pub fn forget_rank(&mut self, rank: RankId) {
        self.told.remove(&rank);
    }

    /// Returns which of the attached ranks have to be told `why` there is no epoch, and notes that
    /// they were told. A rank that was told nothing yet is told immediately. The others are told of
    /// a changed text once that is due: the pauses grow with the wait, from 1 s to 60 s.
    pub fn ranks_to_tell(
        &mut self,
        attached: impl Iterator<Item = RankId>,
        why: &str,
        now: TimeNs,
    ) -> Vec<RankId> {
        let wait = *self.wait.get_or_insert(Wait { since: now, due: now });
        let is_due = now >= wait.due;
        let has_news = |rank: &RankId| match self.told.get(rank) {
            None => true,
            Some(told) => is_due && told != why,
        };
        let ranks: Vec<RankId> = attached.filter(has_news).collect();
        if !ranks.is_empty() {
            let due =
                now + now.since(wait.since).clamp(EPOCH_REASON_PAUSE_MIN, EPOCH_REASON_PAUSE_MAX);
            self.wait = Some(Wait { due, ..wait });
        }
        self.told.extend(ranks.iter().map(|rank| (*rank, why.to_owned())));
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_hear_news_ever_more_rarely() {
        let (mut awaited, mut told) = (AwaitedEpoch::default(), Vec::new());
        for second in 0..1000 {
            let now = TimeNs::from_ns(5) + Span::from_secs(second);
            let ranks = (0..if second < 100 { 1 } else { 2 }).map(RankId);
            // The text changes all the time.
            for rank in awaited.ranks_to_tell(ranks, &second.to_string(), now) {
                told.push((second, rank.0));
            }
        }
        let first: Vec<u64> = told.iter().filter(|(_, rank)| *rank == 0).map(|t| t.0).collect();
        assert_eq!(first[..5], [0, 1, 2, 4, 8], "{told:?}");
        assert!(first.windows(2).all(|pair| pair[1] - pair[0] <= 96), "{told:?}");
        assert!(first.len() < 25, "{told:?}");
        assert!(told.contains(&(100, 1)), "a new rank at once: {told:?}");
        awaited.forget_rank(RankId(0));
        let now = TimeNs::from_ns(6) + Span::from_secs(999);
        assert_eq!(awaited.ranks_to_tell([RankId(0)].into_iter(), "x", now), [RankId(0)]);
    }
}
