//! The groups of one trainer: which numbers it has given, and its place in each group.

use super::protocol::MakeGroup;
use super::slots_in_use::RankPlace;
use crate::events::{GROUPS_MAX, GroupNumber};
use hier_collectives::ids::RankId;
use std::collections::BTreeMap;

/// 8,192 groups: the most that a rank may have made and not left, refused groups among them. At one
/// more the rank's trainer is disconnected. The engine refuses groups beyond the 4,096 of
/// [`GROUPS_MAX`]; a rank keeps the number of a refused group until it leaves that group.
const RANK_GROUPS_MAX: usize = 2 * GROUPS_MAX;

/// The groups that a rank has made and not left, and its place in each.
#[derive(Debug)]
pub(super) struct TrainerGroups {
    job: RankPlace,
    groups: BTreeMap<GroupNumber, RankPlace>,
    /// The highest number so far, which no other group gets.
    last: GroupNumber,
}

impl TrainerGroups {
    /// Makes the groups of a rank that has made none: its job alone.
    pub fn of_rank(job: RankPlace) -> Self {
        Self { job, groups: BTreeMap::new(), last: GroupNumber::JOB }
    }

    /// Returns the rank's place in a group; `None` if it is in no such group.
    pub fn place(&self, number: GroupNumber) -> Option<RankPlace> {
        if number == GroupNumber::JOB { Some(self.job) } else { self.groups.get(&number).copied() }
    }

    /// Adds a group that the rank makes. Its number must be above all earlier ones.
    ///
    /// # Errors
    /// The text for the trainer: the number was used before, or the rank cannot make the group.
    pub fn add_group(&mut self, making: &MakeGroup) -> Result<(), String> {
        let MakeGroup { number, parent, ranks, .. } = making;
        if *number <= self.last {
            return Err(format!("group number {} after {}", number.0, self.last.0));
        }
        if self.place(*parent).is_none() {
            return Err(format!("group {}, the parent, is not one of this rank", parent.0));
        }
        if self.groups.len() >= RANK_GROUPS_MAX {
            return Err(format!("this rank has {RANK_GROUPS_MAX} groups that it has not left"));
        }
        let (own, all) = (self.job.rank, self.job.world_size);
        let Ok(index) = ranks.binary_search(&own) else {
            return Err(format!("rank {own} makes a group without itself"));
        };
        if let Some(rank) = ranks.last().filter(|rank| rank.0 >= all) {
            return Err(format!("the job has no rank {rank}"));
        }
        let number_of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let rank = RankId(number_of(index));
        let place = RankPlace { rank, world_size: number_of(ranks.len()) };
        self.groups.insert(*number, place);
        self.last = *number;
        Ok(())
    }

    /// Removes a group that the rank leaves; returns whether it was in it.
    pub fn remove_group(&mut self, number: GroupNumber) -> bool {
        self.groups.remove(&number).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn making(number: u64, parent: u64, ranks: &[u32]) -> MakeGroup {
        MakeGroup {
            number: GroupNumber(number),
            parent: GroupNumber(parent),
            place: 0,
            ranks: ranks.iter().copied().map(RankId).collect(),
        }
    }

    #[test]
    fn numbers_of_groups_are_never_used_again() {
        let mut groups = TrainerGroups::of_rank(RankPlace { rank: RankId(5), world_size: 8 });
        groups.add_group(&making(1, 0, &[2, 5, 7])).expect("a group");
        let place = groups.place(GroupNumber(1)).expect("made");
        assert_eq!((place.rank, place.world_size), (RankId(1), 3));
        groups.add_group(&making(2, 1, &[5])).expect("a part of it");
        assert!(groups.remove_group(GroupNumber(1)) && !groups.remove_group(GroupNumber(1)));
        assert!(groups.place(GroupNumber(1)).is_none());
        for (wrong, words) in [
            (making(2, 0, &[5]), "group number 2 after 2"),
            (making(3, 1, &[5]), "the parent"),
            (making(3, 0, &[1, 2]), "without itself"),
            (making(3, 0, &[5, 8]), "no rank 8"),
        ] {
            let why = groups.add_group(&wrong).expect_err(words);
            assert!(why.contains(words), "{why}");
        }
        // The engine refuses those beyond 4,096.
        for number in 3..RANK_GROUPS_MAX as u64 + 2 {
            groups.add_group(&making(number, 0, &[5])).expect("room");
        }
        assert!(groups.add_group(&making(9999, 0, &[5])).expect_err("full").contains("8192"));
    }
}
