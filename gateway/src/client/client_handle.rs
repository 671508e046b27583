//! The client of one attached rank.

use super::arena_buffer::{ArenaBuffer, ArenaFull};
use super::collective_spec::{CollectiveSpec, PostError};
use super::connection::ClientConnection;
use super::operation::Operation;
use super::tensor::Tensor;
use crate::client::connection::group_handle::GroupHandle;
use hier_collectives::descriptor::{Counts, Dtype, SlotElements};
use hier_collectives::ids::{Epoch, RankId};
use hier_collectives::post::Failure;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// An attached rank in one group: in the job itself, or in a group that [`Client::new_group`] made.
///
/// Clones share its connection, which ends with the last of them. Dropping the last handle of a group
/// leaves it.
#[derive(Clone)]
pub struct Client {
    pub(super) connection: Arc<ClientConnection>,
    pub(super) group: Arc<GroupHandle>,
}

impl Client {
    /// Returns this client's rank in the group; in the job, the rank that it is attached as. While the
    /// job goes on without some regions, its ranks are numbered from 0 on.
    pub fn rank(&self) -> RankId {
        self.connection.lock_state().group_mut(self.group.number).rank_in_world()
    }

    /// Returns the number of ranks of the group; of the job, all ranks of the fabric, or those of the
    /// regions with which it goes on.
    pub fn world_size(&self) -> u32 {
        let size = self.world().map(|ranks| u32::try_from(ranks.len()).unwrap_or(u32::MAX));
        size.unwrap_or(self.group.size)
    }

    /// Returns the number in the job of a rank of the group.
    pub(super) fn rank_number(&self, rank: u32) -> Option<RankId> {
        match self.world() {
            Some(ranks) => ranks.get(rank as usize).copied(),
            None => self.group.rank_in_job(rank),
        }
    }

    /// Returns the ranks with which the job goes on, if this is the job and some are missing or were.
    fn world(&self) -> Option<Vec<RankId>> {
        self.connection.lock_state().group_mut(self.group.number).world.clone()
    }

    /// Returns the number of the last epoch of the group that the gateway has announced.
    pub fn epoch(&self) -> Epoch {
        self.connection.lock_state().group_mut(self.group.number).epoch
    }

    /// Returns the reason why the connection to the gateway ended; `None` while it stands. Attach
    /// again after that.
    pub fn disconnect_reason(&self) -> Option<String> {
        self.connection.lock_state().ended.clone()
    }

    /// Reserves a contribution slot and a result slot in the arena for `elements` elements each.
    ///
    /// # Errors
    /// [`ArenaFull`]: the arena has no gap for two slots. Nothing is reserved then.
    pub fn allocate(&self, dtype: Dtype, elements: u64) -> Result<Tensor, ArenaFull> {
        self.allocate_slots(dtype, SlotElements { contribution: elements, result: elements })
    }

    /// Reserves a contribution slot and a result slot of different lengths, as operations on blocks
    /// need them.
    ///
    /// # Errors
    /// [`ArenaFull`]: the arena has no gap for two slots. Nothing is reserved then.
    pub fn allocate_slots(
        &self,
        dtype: Dtype,
        elements: SlotElements,
    ) -> Result<Tensor, ArenaFull> {
        let reserve = |count: u64| {
            let full = ArenaFull { wanted: count.saturating_mul(dtype.size()) };
            self.reserve(count.checked_mul(dtype.size()).ok_or(full)?)
        };
        let (contribution, result) = (reserve(elements.contribution)?, reserve(elements.result)?);
        Ok(Tensor { dtype, elements, contribution, result })
    }

    /// Reserves memory of the arena, which collectives can use in place; see
    /// [`Tensor::from_buffers`].
    ///
    /// # Errors
    /// [`ArenaFull`]: the arena has no gap of `bytes` bytes. Nothing is reserved then.
    pub fn reserve(&self, bytes: u64) -> Result<ArenaBuffer, ArenaFull> {
        let ClientConnection { handover, slots, .. } = &*self.connection;
        let reserved = ArenaBuffer::reserve(handover.arena(), slots, bytes);
        reserved.ok_or(ArenaFull { wanted: bytes })
    }

    /// Restricts posts and commits to the current epoch, which is returned. Once it has ended they
    /// fail with [`FailureCode::EpochEnded`] until the next call.
    ///
    /// A step of several collectives needs it: some of them may fail with an epoch. Without it, the
    /// others would be posted in the next epoch, to which no other rank has brought that step.
    ///
    /// [`FailureCode::EpochEnded`]: hier_collectives::post::FailureCode::EpochEnded
    pub fn agree_to_epoch(&self) -> Epoch {
        self.connection.lock_state().group_mut(self.group.number).agree_to_epoch()
    }

    /// Returns whether the connection stands and the epoch of the last [`Client::agree_to_epoch`]
    /// goes on, as far as this client knows.
    pub fn is_epoch_agreed(&self) -> bool {
        self.connection.lock_state().group_mut(self.group.number).is_epoch_agreed()
    }

    /// Starts a collective on the contribution of `tensor`; waits while `POSTS_MAX` collectives
    /// of this rank are under way. The timeout in `spec` covers that wait.
    ///
    /// Several collectives may be under way at the same time; all ranks must post them in the same
    /// order. A call that is dropped before it returns has either posted the collective or not.
    ///
    /// # Errors
    /// [`PostError`] when there was no room in time, the connection has ended, or the epoch has to
    /// which this rank agreed by [`Client::agree_to_epoch`]. If ranks disagreed and no collective of this rank failed for it,
    /// its next post returns that failure, once. The tensor comes back, and its contribution is
    /// intact. Every other error is the result of [`Operation::ready`].
    pub async fn post(&self, tensor: Tensor, spec: CollectiveSpec) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, spec, Counts::Even).await
    }

    /// Starts a collective as [`Client::post`] does, with these numbers of elements of its blocks.
    ///
    /// # Errors
    /// The errors of [`Client::post`]. Counts that do not fit the tensor or the job fail the
    /// operation on all ranks.
    pub async fn post_with_counts(
        &self,
        tensor: Tensor,
        spec: CollectiveSpec,
        counts: Counts,
    ) -> Result<Operation, PostError> {
        self.post_collective_in_series(tensor, spec, counts, None).await
    }

    /// Returns the number in the job of a rank of this group; `None` if there is no such rank.
    pub fn rank_in_job(&self, rank: RankId) -> Option<RankId> {
        self.rank_number(rank.0)
    }

    /// Writes the flight recorder of this rank into a file: the last 512 collectives of all its groups, for
    /// `landbridge explain`. Replaces a file that is there; only the user of this process can read the new
    /// one. It holds no token, no key and no element.
    ///
    /// It asks nobody and waits for the disk alone, so it also works while a collective hangs.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn dump(&self, path: &Path) -> io::Result<()> {
        self.connection.recorder.dump().write(path)
    }

    /// Waits until an epoch of the group has begun that is not known to be over, as its posts need
    /// one. Fails if the group is over for this rank before that.
    pub(super) async fn wait_for_epoch(&self) -> Result<(), Failure> {
        loop {
            let changed = self.connection.changed.notified();
            {
                let mut state = self.connection.lock_state();
                let group = state.group_mut(self.group.number);
                if let Some(failure) = group.over.clone() {
                    return Err(failure);
                }
                if group.epoch > Epoch::default() && !group.is_epoch_over {
                    return Ok(());
                }
            }
            changed.await;
        }
    }
}

impl std::fmt::Debug for Client {
    /// Prints the client's rank for logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("rank", &self.rank()).finish_non_exhaustive()
    }
}
