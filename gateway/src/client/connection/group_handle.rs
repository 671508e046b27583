//! One rank's place in a group, which its client's handles share.

use super::ClientConnection;
use crate::events::GroupNumber;
use hier_collectives::ids::RankId;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::{Arc, Weak};

/// One rank's place in a group. Dropping it leaves the group.
#[derive(Debug)]
pub(in crate::client) struct GroupHandle {
    /// The number by which the gateway knows the group on this connection.
    pub number: GroupNumber,
    /// The numbers in the job of the group's ranks, ascending; `None` for the job itself.
    pub ranks: Option<Vec<RankId>>,
    /// The number of ranks of the group.
    pub size: u32,
    /// The groups of two in which this rank and another one send to each other, by the other one's
    /// number in the job.
    pub pairs: Mutex<BTreeMap<RankId, Arc<Self>>>,
    pub connection: Weak<ClientConnection>,
}

impl GroupHandle {
    /// Makes the handle by which a rank that has attached takes part in its job.
    pub fn of_job(connection: &Arc<ClientConnection>) -> Self {
        Self {
            number: GroupNumber::JOB,
            ranks: None,
            size: connection.world_size,
            pairs: Mutex::default(),
            connection: Weak::new(),
        }
    }

    /// Returns the number in the job of a rank of the group.
    pub fn rank_in_job(&self, rank: u32) -> Option<RankId> {
        match &self.ranks {
            Some(ranks) => ranks.get(rank as usize).copied(),
            None => (rank < self.size).then_some(RankId(rank)),
        }
    }
}

impl Drop for GroupHandle {
    /// Leaves the group, once none of its collectives and commits is under way.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.leave_group(self.number);
        }
    }
}
