//! Who speaks for which rank, and how much of each job's memory is mapped for it.

use super::job::JobSpec;
use crate::host::Host;
use crate::memory::arena::Arena;
use crate::sync::lock;
use hier_collectives::ids::{GroupId, RankId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::Notify;
use units::Span;

/// How long a new trainer waits for the old one of its rank to be gone: a process that has
/// ended is noticed a moment later.
const HANDOVER_PATIENCE: Span = Span::from_secs(2);

/// The places of all jobs.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    taken: Mutex<Taken>,
    /// Some rank left.
    left: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    /// Bytes of each rank that is spoken for.
    ranks: BTreeMap<(GroupId, RankId), u64>,
    /// Arenas of ranks that left, and their bytes: what they posted stands, and keeps them.
    behind: Vec<(GroupId, RankId, Weak<Arena>, u64)>,
}

/// A rank that is spoken for, and its share of the job's memory. The rank is free again when this
/// is dropped, the memory when nothing has it mapped any more.
#[derive(Debug)]
pub(super) struct RankReservation {
    places: Arc<Attachments>,
    pub(super) group: GroupId,
    pub(super) rank: RankId,
    arena: Option<Weak<Arena>>,
}

impl Attachments {
    /// Waits for who spoke for a rank, but not long.
    pub(super) async fn wait_for_predecessor(&self, host: &dyn Host, group: GroupId, rank: RankId) {
        let deadline = host.now() + HANDOVER_PATIENCE;
        loop {
            let left = self.left.notified();
            if !lock(&self.taken).ranks.contains_key(&(group, rank)) {
                return;
            }
            tokio::select! {
                biased;
                () = left => {}
                () = host.sleep_until(deadline) => return,
            }
        }
    }

    /// Takes a rank's place, and some of its job's memory; or why not.
    pub(super) fn take(
        self: &Arc<Self>,
        job: &JobSpec,
        rank: RankId,
        bytes: u64,
    ) -> Result<RankReservation, String> {
        let mut taken = lock(&self.taken);
        let group = job.group();
        if taken.ranks.contains_key(&(group, rank)) {
            return Err(format!("rank {rank} is attached already"));
        }
        let used = taken.used_by_others(group, rank);
        if used.saturating_add(bytes) > job.memory.get() {
            let JobSpec { name, memory, .. } = job;
            return Err(format!(
                "job `{name}` has {memory} of memory, {used} bytes in use; {bytes} bytes asked for"
            ));
        }
        taken.ranks.insert((group, rank), bytes);
        Ok(RankReservation { places: Arc::clone(self), group, rank, arena: None })
    }
}

impl Taken {
    /// The predecessor of a rank that is back, or comes back now, does not count: its epoch ends, and
    /// with it what keeps its memory.
    fn used_by_others(&mut self, group: GroupId, rank: RankId) -> u64 {
        self.behind.retain(|(_, _, arena, _)| arena.strong_count() > 0);
        let here = self.ranks.iter().filter(|((of, _), _)| *of == group).map(|(_, bytes)| bytes);
        let behind = self.behind.iter().filter(|(of, who, ..)| {
            *of == group && *who != rank && !self.ranks.contains_key(&(*of, *who))
        });
        here.chain(behind.map(|(.., bytes)| bytes)).sum()
    }
}

impl RankReservation {
    /// The memory that its rank brought is mapped.
    pub(super) fn holds(&mut self, arena: &Arc<Arena>) {
        self.arena = Some(Arc::downgrade(arena));
    }
}

impl Drop for RankReservation {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        let bytes = taken.ranks.remove(&(self.group, self.rank));
        if let (Some(bytes), Some(arena)) = (bytes, self.arena.take()) {
            taken.behind.push((self.group, self.rank, arena, bytes));
        }
        drop(taken);
        self.places.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::protocol::Token;
    use units::ByteCount;

    const PAGE: u64 = 4096;

    fn attach(
        places: &Arc<Attachments>,
        job: &JobSpec,
        rank: u32,
    ) -> Result<(RankReservation, Arc<Arena>), String> {
        let mut place = places.take(job, RankId(rank), PAGE)?;
        let arena = Arena::anonymous(PAGE).expect("a page");
        place.holds(&arena);
        Ok((place, arena))
    }

    #[test]
    fn what_a_rank_left_behind_counts_for_as_long_as_it_is_mapped() {
        let places = Arc::new(Attachments::default());
        let job = |name: &str| JobSpec {
            name: name.to_owned(),
            token: Token([7; 32]),
            memory: ByteCount::new(2 * PAGE),
            weight: std::num::NonZeroU32::MIN,
        };
        let (train, other) = (job("train"), job("other"));
        let (first, posted) = attach(&places, &train, 0).expect("all is free");
        assert!(attach(&places, &train, 0).is_err(), "the rank is taken");
        drop(first);
        let (second, again) = attach(&places, &train, 1).expect("half is free");
        drop((second, again));
        let (second, arena) = attach(&places, &train, 1).expect("nothing kept it");
        let refused = attach(&places, &train, 2).expect_err("what rank 0 posted is mapped");
        assert!(refused.contains("8192 bytes in use"), "{refused}");
        assert!(attach(&places, &other, 2).is_ok(), "of another job");
        drop(second);
        let back = attach(&places, &train, 0).expect("its own predecessor does not count");
        let next = attach(&places, &train, 1).expect("nor that of a rank that is back");
        drop((back, next, posted, arena));
        assert!(attach(&places, &train, 2).is_ok());
    }
}
