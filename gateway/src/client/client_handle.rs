//! The client of one attached rank.

use super::connection::Connection;
use super::tensor::{ArenaFull, SlotOffsets, Tensor};
use crate::memory::mem_slice::MemSlice;
use crate::sync::lock;
use hier_collectives::descriptor::{Dtype, SlotElements};
use hier_collectives::ids::{Epoch, RankId};
use std::sync::Arc;

/// An attached rank. Clones share its connection, which ends with the last of them.
#[derive(Clone)]
pub struct Client {
    pub(super) connection: Arc<Connection>,
}

impl Client {
    /// Returns the rank that this client is attached as.
    pub fn rank(&self) -> RankId {
        self.connection.rank
    }

    /// Returns the number of ranks in the fabric.
    pub fn world_size(&self) -> u32 {
        self.connection.world_size
    }

    /// Returns the last epoch that the gateway has announced.
    pub fn epoch(&self) -> Epoch {
        self.connection.lock_state().epoch
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
        let longer = elements.contribution.max(elements.result);
        let full = ArenaFull { wanted: longer.saturating_mul(dtype.size()) };
        longer.checked_mul(dtype.size()).ok_or(full)?;
        let [given, got] =
            [elements.contribution, elements.result].map(|count| count * dtype.size());
        let mut slots = lock(&self.connection.slots);
        let contribution = slots.allocate(given).ok_or(full)?;
        let Some(result) = slots.allocate(got) else {
            slots.free(contribution);
            return Err(full);
        };
        drop(slots);
        let whole = MemSlice::whole(&self.connection.arena);
        Ok(Tensor {
            dtype,
            elements,
            contribution: whole.slice(contribution..contribution + given),
            result: whole.slice(result..result + got),
            offsets: SlotOffsets { contribution, result },
            slots: Arc::clone(&self.connection.slots),
        })
    }
}

impl std::fmt::Debug for Client {
    /// Prints the client's rank for logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("rank", &self.connection.rank).finish_non_exhaustive()
    }
}
