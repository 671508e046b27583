//! The attached ranks of all jobs, and the memory of each job that their arenas use.
//!
//! The tasks of pending trainers reserve ranks here; a trainer's task gives its rank back when it
//! ends.

use super::job_spec::JobSpec;
use super::refusal::{Refusal, RefusalReason};
use crate::events::AttachmentId;
use crate::host::Host;
use crate::local::trainer_listener::Transport;
use crate::lock::lock_ignoring_poison;
use crate::memory::arena::Arena;
use hier_collectives::ids::{GroupId, RankId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::Notify;
use units::{ByteCount, Span};

/// 2 s: the longest time that a new trainer of a rank waits until the rank's old trainer is
/// detached. After that the new trainer is refused. The gateway notices the end of a process a
/// moment late.
/// Tested by `fifteen_cases_of_three_ranks_and_one`, which runs ranks back to back.
const PREDECESSOR_TIMEOUT: Span = Span::from_secs(2);

/// The attached ranks of all jobs.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    table: Mutex<AttachmentTable>,
    /// Wakes waiting successors when a rank is free again.
    detached: Notify,
}

#[derive(Debug, Default)]
struct AttachmentTable {
    /// Arena bytes of each attached rank.
    attached: BTreeMap<(GroupId, RankId), u64>,
    /// Arenas of ranks that detached, while posted collectives keep them mapped.
    lingering: Vec<LingeringArena>,
}

#[derive(Debug)]
struct LingeringArena {
    group: GroupId,
    rank: RankId,
    arena: Weak<Arena>,
    bytes: u64,
}

/// An attached rank and its share of the job's memory. Dropping it frees the rank; the memory is
/// free once nothing has the arena mapped.
#[derive(Debug)]
pub(super) struct AttachmentReservation {
    attachments: Arc<Attachments>,
    pub(super) group: GroupId,
    pub(super) rank: RankId,
    arena: Option<Weak<Arena>>,
}

impl Attachments {
    /// Waits until no trainer is attached as a rank, but at most [`PREDECESSOR_TIMEOUT`].
    pub(super) async fn wait_for_predecessor(&self, host: &dyn Host, group: GroupId, rank: RankId) {
        let deadline = host.now() + PREDECESSOR_TIMEOUT;
        loop {
            let detached = self.detached.notified();
            if !lock_ignoring_poison(&self.table).attached.contains_key(&(group, rank)) {
                return;
            }
            tokio::select! {
                biased;
                () = detached => {}
                () = host.sleep_until(deadline) => return,
            }
        }
    }

    /// Reserves a rank and `bytes` of its job's memory.
    ///
    /// # Errors
    /// The answer to the trainer: the rank is taken, or the memory does not suffice.
    pub(super) fn reserve_rank(
        self: &Arc<Self>,
        job: &JobSpec,
        rank: RankId,
        bytes: u64,
    ) -> Result<AttachmentReservation, Refusal> {
        let mut table = lock_ignoring_poison(&self.table);
        let group = job.group();
        if table.attached.contains_key(&(group, rank)) {
            let why =
                format!("rank {rank} is attached already; end the other process that uses it");
            return Err(Refusal::new(RefusalReason::RankTaken, why));
        }
        let used = table.bytes_used_by_others(group, rank);
        if used.saturating_add(bytes) > job.memory.get() {
            let JobSpec { name, memory, .. } = job;
            let is_hopeless = bytes > memory.get();
            let reason =
                if is_hopeless { RefusalReason::ArenaTooLarge } else { RefusalReason::MemoryInUse };
            let (used, asked) = (ByteCount::new(used), ByteCount::new(bytes));
            let left = ByteCount::new(memory.get().saturating_sub(used.get()));
            let (used, asked) = (used.rounded(), asked.rounded_beside(left));
            let why =
                format!("job `{name}` has {memory} of memory, {used} in use; {asked} asked for");
            return Err(Refusal::new(reason, why));
        }
        table.attached.insert((group, rank), bytes);
        Ok(AttachmentReservation { attachments: Arc::clone(self), group, rank, arena: None })
    }
}

impl AttachmentTable {
    /// Returns the bytes that the ranks of a job use besides `rank`, which is not attached. The lingering arena of a rank that is
    /// attached again does not count: its epoch ends, and with it the posts that keep it mapped.
    fn bytes_used_by_others(&mut self, group: GroupId, rank: RankId) -> u64 {
        self.lingering.retain(|lingering| lingering.arena.strong_count() > 0);
        let attached = self.attached.iter().filter(|((of, _), _)| *of == group);
        let lingering = self.lingering.iter().filter(|other| {
            let is_back = self.attached.contains_key(&(other.group, other.rank));
            other.group == group && other.rank != rank && !is_back
        });
        let lingering = lingering.map(|lingering| &lingering.bytes);
        attached.map(|(_, bytes)| bytes).chain(lingering).sum()
    }
}

impl AttachmentReservation {
    /// Remembers the arena that the rank has brought and the gateway has mapped.
    pub(super) fn set_arena(&mut self, arena: &Arc<Arena>) {
        self.arena = Some(Arc::downgrade(arena));
    }
}

impl Drop for AttachmentReservation {
    /// Frees the rank and wakes waiting successors. The bytes of its arena stay counted while the
    /// arena is mapped, unless the rank is attached again.
    fn drop(&mut self) {
        let mut table = lock_ignoring_poison(&self.attachments.table);
        let (group, rank) = (self.group, self.rank);
        let bytes = table.attached.remove(&(group, rank));
        if let (Some(bytes), Some(arena)) = (bytes, self.arena.take()) {
            table.lingering.push(LingeringArena { group, rank, arena, bytes });
        }
        drop(table);
        self.attachments.detached.notify_waiters();
    }
}

/// A trainer that has attached, and its memory.
pub(super) struct Attachment {
    pub reservation: AttachmentReservation,
    pub id: AttachmentId,
    pub arena: Arc<Arena>,
    pub transport: Transport,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::protocol::Token;

    const PAGE: u64 = 4096;

    fn attach(
        attachments: &Arc<Attachments>,
        job: &JobSpec,
        rank: u32,
    ) -> Result<(AttachmentReservation, Arc<Arena>), Refusal> {
        let mut reservation = attachments.reserve_rank(job, RankId(rank), PAGE)?;
        let arena = Arena::anonymous(PAGE).expect("a page");
        reservation.set_arena(&arena);
        Ok((reservation, arena))
    }

    #[test]
    fn a_detached_ranks_arena_counts_while_it_is_mapped() {
        let attachments = Arc::new(Attachments::default());
        let job = |name: &str| JobSpec {
            name: name.to_owned(),
            token: Token([7; 32]),
            memory: ByteCount::new(2 * PAGE),
            weight: std::num::NonZeroU32::MIN,
        };
        let (train, other) = (job("train"), job("other"));
        let (first, posted) = attach(&attachments, &train, 0).expect("all is free");
        let taken = attach(&attachments, &train, 0).expect_err("the rank is taken");
        assert_eq!(taken.reason, RefusalReason::RankTaken);
        let large = attachments.reserve_rank(&train, RankId(1), 3 * PAGE);
        let large = large.expect_err("more than the job has");
        assert_eq!(large.reason, RefusalReason::ArenaTooLarge);
        drop(first);
        let (second, again) = attach(&attachments, &train, 1).expect("half is free");
        drop((second, again));
        let (second, arena) = attach(&attachments, &train, 1).expect("nothing keeps it mapped");
        let refused = attach(&attachments, &train, 2).expect_err("rank 0's arena is mapped");
        assert_eq!(refused.reason, RefusalReason::MemoryInUse);
        assert!(refused.why.contains("8 KiB in use"), "{refused}");
        assert!(attach(&attachments, &other, 2).is_ok(), "another job has its own memory");
        drop(second);
        let back = attach(&attachments, &train, 0).expect("its own old arena does not count");
        let next = attach(&attachments, &train, 1).expect("nor does that of a rank that is back");
        drop((back, next, posted, arena));
        assert!(attach(&attachments, &train, 2).is_ok());
    }
}
