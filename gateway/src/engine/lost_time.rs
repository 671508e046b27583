//! Sums the time that stragglers cost a job, to tell what an operator should act on from what
//! changes with every step.
//!
//! The straggler monitor of a job adds each completed collective, on the engine's task.

use hier_collectives::stragglers::{Straggler, StragglerParty};
use std::collections::BTreeMap;
use units::{Span, TimeNs};

/// 10 min: the time over which the delays that stragglers cause in a job are summed. Then the sums
/// start from zero, so that a job is warned of stragglers at most once in 10 min.
pub(super) const LOST_TIME_WINDOW: Span = Span::from_secs(600);

/// 0.25 of the 10 min ([`LOST_TIME_WINDOW`]) over which delays are summed. A rank, region or link
/// that cost the others this much time or more is worth a warning. The fraction is chosen.
const LOST_FRACTION_MIN: f64 = 0.25;

/// Time that each party has cost the others of one job since a window began.
#[derive(Debug, Default)]
pub(super) struct LostTime {
    began: Option<TimeNs>,
    /// Time of the last completed collective.
    last: Option<TimeNs>,
    by_party: BTreeMap<StragglerParty, Span>,
}

impl LostTime {
    /// Adds a collective that completed at `now`. Returns the time that its straggler cost, zero
    /// without one. Collectives that overlap share a delay, so the cost is at most the time since
    /// the previous collective completed.
    pub fn add_collective(&mut self, straggler: Option<Straggler>, now: TimeNs) -> Span {
        self.began.get_or_insert(now);
        let interval = self.last.replace(now).map_or(Span::ZERO, |last| now.since(last));
        let Some(straggler) = straggler else { return Span::ZERO };
        let lost = straggler.behind.min(interval);
        let sum = self.by_party.entry(straggler.party).or_default();
        *sum = *sum + lost;
        lost
    }

    /// Ends the window if it has lasted [`LOST_TIME_WINDOW`] by `now`. Returns the party that cost
    /// the most time, and that time, if it is 0.25 of the window or more.
    pub fn end_window(&mut self, now: TimeNs) -> Option<(StragglerParty, Span)> {
        let length = now.since(self.began?);
        if length < LOST_TIME_WINDOW {
            return None;
        }
        self.began = Some(now);
        let by_party = std::mem::take(&mut self.by_party);
        let (party, lost) = by_party.into_iter().max_by_key(|(_, lost)| *lost)?;
        let much = lost.as_secs_f64() >= LOST_FRACTION_MIN * length.as_secs_f64();
        much.then_some((party, lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::RankId;

    /// Returns the warnings of an hour of steps of a second. `late` names the rank that is late by
    /// `behind_ms` in a step, if one is.
    fn warnings(behind_ms: u64, late: fn(u64) -> Option<u32>) -> Vec<(StragglerParty, u64)> {
        let mut lost_time = LostTime::default();
        let mut warnings = Vec::new();
        for step in 0..3600 {
            let now = TimeNs::from_ns((step + 1) * 1_000_000_000);
            let straggler = late(step).map(|rank| Straggler {
                party: StragglerParty::Rank(RankId(rank)),
                behind: Span::from_ms(behind_ms),
                collectives: 3,
            });
            lost_time.add_collective(straggler, now);
            let warned = lost_time.end_window(now);
            warnings.extend(warned.map(|(party, lost)| (party, lost.ns() / 1_000_000_000)));
        }
        warnings
    }

    #[test]
    fn a_straggler_that_costs_little_is_no_warning() {
        let to_and_fro = warnings(34, |step| Some(if step % 12 < 6 { 3 } else { 1 }));
        assert!(to_and_fro.is_empty(), "{to_and_fro:?}");
        assert!(warnings(900, |_| None).is_empty());
    }

    #[test]
    fn one_that_costs_much_is_a_warning_every_ten_minutes() {
        let found = warnings(400, |_| Some(3));
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(
            found.iter().all(|(party, _)| *party == StragglerParty::Rank(RankId(3))),
            "{found:?}"
        );
        assert!(found.iter().all(|(_, lost)| (239..=241).contains(lost)), "{found:?}");
    }

    #[test]
    fn no_more_time_is_lost_than_passes() {
        let mut lost_time = LostTime::default();
        let party = StragglerParty::Rank(RankId(0));
        let straggler = Straggler { party, behind: Span::from_secs(5), collectives: 9 };
        // Buckets of one step.
        let lost = [0, 1, 2]
            .map(|ms| lost_time.add_collective(Some(straggler), TimeNs::from_ns(ms * 1_000_000)));
        assert_eq!(lost, [Span::ZERO, Span::from_ms(1), Span::from_ms(1)]);
    }
}
