//! The memory that the groups of a job share, so that together they hold no more than the job may.
//!
//! A group with work under way keeps its least memory until the work ends. Its collectives go on with
//! that, whatever other groups hold, so no group waits for memory of another. The rest is lent in
//! equal parts. A part that becomes smaller is given back as collectives go on, and only then lent
//! again. Groups without work take nothing. The engine's task owns it.

use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::Plan;
use hier_collectives::session::SessionShare;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use units::ByteCount;

/// 4: a quarter of a job's memory for partials is kept for the least memory of its groups.
const KEPT_DIVISOR: u64 = 4;

/// 64 groups: the segments of a group are so short that the least memory of as many such groups fits
/// what is kept.
/// Tested by `groups_under_way_hold_no_more_than_their_job_may`.
const KEPT_GROUPS: u64 = 64;

/// Returns the memory for windows that a job's groups can share: that of the job's plan, less what the
/// job itself always has.
pub(super) fn lent_windows(plan: &Plan, fabric: &Fabric, me: GatewayId) -> ByteCount {
    let bound = plan.memory_bound(fabric, me, ByteCount::default());
    let reserve_max = ByteCount::new(u64::MAX);
    let least = plan.least_memory(&plan.owner_trees(fabric), (fabric, me), reserve_max);
    let windows = bound.result_windows.get() + bound.relayed.get();
    ByteCount::new(windows.saturating_sub(least.get()))
}

/// The memory of a job's groups, and who has it.
#[derive(Debug)]
pub(super) struct MemoryPool {
    /// Memory for partials that is lent.
    partials: u64,
    /// Memory for windows that is lent.
    windows: u64,
    /// Bytes that are kept for the least memory of groups.
    kept: u64,
    /// The groups with work under way.
    loans: BTreeMap<GroupId, Loan>,
}

/// The memory of one group with work under way.
#[derive(Debug, Default)]
struct Loan {
    /// Bytes that it has until its work ends.
    least: u64,
    /// Bytes beyond the least ones that it may hold.
    limit: u64,
    /// Bytes beyond the least ones that it may hold or still holds.
    taken: u64,
    /// The last part that it was told.
    told: Option<LentPart>,
}

/// A group's part of the memory that is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LentPart {
    bytes: u64,
    /// Among how many groups memory and links are divided: those with work under way, rounded up to a
    /// power of two, so that parts seldom change.
    one_in: NonZeroU64,
}

impl MemoryPool {
    /// Makes the pool of a job with memory for `partials` and for windows.
    pub fn new(partials: ByteCount, windows: ByteCount) -> Self {
        let mut pool =
            Self { partials: 0, windows: windows.get(), kept: 0, loans: BTreeMap::new() };
        pool.set_partials(partials);
        pool
    }

    /// Sets the memory for partials, since jobs came or went.
    pub fn set_partials(&mut self, partials: ByteCount) {
        self.kept = partials.get() / KEPT_DIVISOR;
        self.partials = partials.get() - self.kept;
    }

    /// Returns the least memory that a group may need for its segments to be as long as its plan says.
    pub fn least_of_group(&self) -> ByteCount {
        ByteCount::new(self.kept / KEPT_GROUPS)
    }

    /// Returns the number of groups with work under way.
    pub fn group_count(&self) -> usize {
        self.loans.len()
    }

    /// Notes that a group has work under way, and needs this memory at least. Returns false if it
    /// cannot have that now.
    pub fn begin_work(&mut self, id: GroupId, least: u64) -> bool {
        let had = self.loans.get(&id).map_or(0, |loan| loan.least);
        if had < least {
            let kept = self.least_bytes() - had + least;
            if kept.saturating_sub(self.kept) + self.taken_bytes() > self.partials + self.windows {
                return false;
            }
        }
        let loan = self.loans.entry(id).or_default();
        loan.least = loan.least.max(least);
        true
    }

    /// Notes that a group has no work under way; returns whether it had.
    pub fn end_work(&mut self, id: GroupId) -> bool {
        self.loans.remove(&id).is_some()
    }

    /// Whether a group may still hold more than its part, which has become smaller.
    pub fn owes(&self, id: GroupId) -> bool {
        self.loans.get(&id).is_some_and(|loan| loan.taken > loan.limit)
    }

    /// Notes what a group holds, which lets others have what it has given back.
    pub fn note_held(&mut self, id: GroupId, held: ByteCount) {
        if let Some(loan) = self.loans.get_mut(&id) {
            loan.taken = loan.limit.max(held.get().saturating_sub(loan.least).min(loan.taken));
        }
    }

    /// Divides the memory anew; returns the groups whose parts have changed.
    pub fn divide(&mut self) -> Vec<(GroupId, LentPart)> {
        let count = (self.loans.len().max(1) as u64).next_power_of_two();
        let one_in = NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN);
        let overdrawn = self.least_bytes().saturating_sub(self.kept);
        let lent = (self.partials + self.windows).saturating_sub(overdrawn);
        let part = lent / count;
        for loan in self.loans.values_mut() {
            loan.limit = loan.limit.min(part);
        }
        let mut free = lent.saturating_sub(self.taken_bytes());
        let mut changed = Vec::new();
        for (id, loan) in &mut self.loans {
            let more = part.saturating_sub(loan.taken).min(free);
            free -= more;
            loan.taken += more;
            loan.limit = part.min(loan.taken);
            let part = LentPart { bytes: loan.limit, one_in };
            if loan.told.replace(part) != Some(part) {
                changed.push((*id, part));
            }
        }
        changed
    }

    /// Returns the share of a session in a part of the memory and of a link, of which the job has
    /// 1 / `one_in`. With several local ranks it has partials.
    pub fn share(&self, part: LentPart, one_in: NonZeroU64, has_partials: bool) -> SessionShare {
        let all = self.partials + self.windows;
        let of_partials = |bytes: u64| {
            let partials = u128::from(bytes) * u128::from(self.partials) / u128::from(all.max(1));
            u64::try_from(partials).unwrap_or(u64::MAX)
        };
        let partials = if has_partials { of_partials(part.bytes) } else { 0 };
        let windows = (part.bytes < all).then(|| ByteCount::new(part.bytes - partials));
        SessionShare {
            partials: ByteCount::new(partials),
            windows,
            one_in: one_in.saturating_mul(part.one_in),
            tails: part.one_in,
        }
    }

    /// Returns the bytes that groups have until their work ends.
    fn least_bytes(&self) -> u64 {
        self.loans.values().map(|loan| loan.least).sum()
    }

    /// Returns the bytes that are lent.
    fn taken_bytes(&self) -> u64 {
        self.loans.values().map(|loan| loan.taken).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(partials: u64, windows: u64) -> MemoryPool {
        MemoryPool::new(ByteCount::new(partials), ByteCount::new(windows))
    }

    /// Divides the memory and returns the parts of some groups.
    fn parts<const N: usize>(pool: &mut MemoryPool) -> [u64; N] {
        pool.divide();
        std::array::from_fn(|id| pool.loans.get(&GroupId(id as u64)).map_or(0, |loan| loan.limit))
    }

    #[test]
    fn a_group_gets_what_others_give_back() {
        let mut pool = pool(400, 100);
        assert!(pool.begin_work(GroupId(0), 0));
        assert_eq!(parts(&mut pool), [400, 0]);
        assert!(pool.begin_work(GroupId(1), 50));
        assert_eq!(parts(&mut pool), [200, 0]);
        assert!(pool.owes(GroupId(0)) && !pool.owes(GroupId(1)));
        pool.note_held(GroupId(0), ByteCount::new(300));
        assert_eq!(parts(&mut pool), [200, 100]);
        pool.note_held(GroupId(0), ByteCount::new(150));
        assert_eq!(parts(&mut pool), [200, 200]);
        assert!(pool.end_work(GroupId(0)) && !pool.end_work(GroupId(0)));
        assert_eq!(parts(&mut pool), [0, 400]);
    }

    #[test]
    fn a_group_without_memory_for_its_work_is_refused() {
        let mut pool = pool(400, 100);
        assert!(pool.begin_work(GroupId(0), 0));
        assert_eq!(parts(&mut pool), [400]);
        assert!(pool.begin_work(GroupId(1), 90));
        assert!(!pool.begin_work(GroupId(2), 20), "100 are kept");
        assert!(pool.begin_work(GroupId(2), 10) && pool.begin_work(GroupId(3), 0));
        pool.divide();
        pool.note_held(GroupId(0), ByteCount::new(0));
        // What is not lent serves, too.
        assert!(pool.begin_work(GroupId(4), 20));
    }

    proptest! {
        #[test]
        fn groups_together_have_no_more_than_the_pool(
            memory in (0u64..1000, 0u64..1000),
            steps in prop::collection::vec((0u64..8, 0u64..4, 0u64..1000), 1..100),
        ) {
            let mut pool = pool(memory.0, memory.1);
            for (id, kind, bytes) in steps {
                let id = GroupId(id);
                match kind {
                    0 => drop(pool.end_work(id)),
                    1 => pool.note_held(id, ByteCount::new(bytes)),
                    _ => drop(pool.begin_work(id, bytes / 10)),
                }
                pool.divide();
                prop_assert!(pool.least_bytes() + pool.taken_bytes() <= memory.0 + memory.1);
                prop_assert!(pool.loans.values().all(|loan| loan.limit <= loan.taken));
            }
        }
    }
}
