//! Groups: a client for some of the ranks of another client's group.
//!
//! Groups need no configuration. A rank may be in many at the same time; each has its own order of
//! collectives, and none waits for another. Making one takes at most a round trip between the
//! gateways of its ranks, and waits for no other rank.

use super::arena_buffer::ArenaFull;
use super::client_handle::Client;
use super::collective_spec::{CollectiveSpec, DEFAULT_TIMEOUT};
use crate::client::connection::call_deadline::CallDeadline;
use crate::client::connection::group_handle::GroupHandle;
use crate::events::GroupPlace;
use crate::local::protocol::{MakeGroup, ProtocolRequest};
use hier_collectives::descriptor::{Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::post::Failure;
use std::sync::{Arc, Mutex};
use units::Span;

/// Why a group was not made.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A list of ranks is empty.
    #[error("a group needs at least one rank")]
    NoRank,
    /// A rank is named twice.
    #[error("rank {0} is named twice")]
    Twice(u32),
    /// The parent has no such rank.
    #[error("rank {rank} is not one of the {ranks} ranks of the parent")]
    UnknownRank {
        /// The rank named.
        rank: u32,
        /// The number of ranks of the parent.
        ranks: u32,
    },
    /// The keys of a split ask for another order of ranks than that in the parent.
    #[error("ranks of a group are numbered in the order of the parent: keys must not change it")]
    KeyOrder,
    /// The arena has no room for the colors of a split.
    #[error(transparent)]
    ArenaFull(#[from] ArenaFull),
    /// The gateways of the group's ranks did not meet in time.
    #[error("the gateways of the group did not meet within {0}; see `landbridge status`")]
    NotMet(Span),
    /// The ranks disagree on the group, there are too many groups, or the connection ended.
    #[error("the group was not made: {0}")]
    Failed(#[from] Failure),
}

impl Client {
    /// Makes a group of some ranks of this one, given by their numbers here in any order. All ranks
    /// of this group call it, in one epoch, and make their groups in one order; a rank that is not
    /// named gets `None`. In the new group ranks are numbered from 0 on, in the order of their numbers
    /// here.
    ///
    /// Ranks that name different ranks at one call get a failure that says so.
    ///
    /// # Errors
    /// [`GroupError`]: this rank is not in a new group. After the end of the epoch that the caller
    /// agreed to, ranks that are not named hear of it too, and nothing is counted.
    pub async fn new_group(&self, ranks: &[u32]) -> Result<Option<Self>, GroupError> {
        self.new_group_with(ranks, None, DEFAULT_TIMEOUT).await
    }

    /// Makes a group as [`Client::new_group`] does, but only its own ranks call it, in any order and
    /// any epoch. They give it one `tag`, which none of them uses for another group of this one
    /// meanwhile.
    ///
    /// # Errors
    /// [`GroupError`]: this rank is not in a new group.
    pub async fn new_group_with_tag(
        &self,
        ranks: &[u32],
        tag: u32,
    ) -> Result<Option<Self>, GroupError> {
        self.new_group_with(ranks, Some(tag), DEFAULT_TIMEOUT).await
    }

    /// Makes a group as [`Client::new_group_with_tag`] does, or without a tag as [`Client::new_group`].
    /// `timeout` is how long to wait for room and for the gateways of its ranks.
    ///
    /// # Errors
    /// [`GroupError`]: this rank is not in a new group.
    pub async fn new_group_with(
        &self,
        ranks: &[u32],
        tag: Option<u32>,
        timeout: Span,
    ) -> Result<Option<Self>, GroupError> {
        let ranks = self.group_ranks_in_job(ranks)?;
        let place = match tag {
            Some(tag) => GroupPlace::of_tag(tag),
            None => self.count_group_making()?,
        };
        let making = async {
            let Some(handle) = self.begin_group(ranks, place).await? else { return Ok(None) };
            let made = Self { connection: Arc::clone(&self.connection), group: Arc::new(handle) };
            made.wait_for_epoch().await?;
            Ok(Some(made))
        };
        let made = CallDeadline::after(timeout).wait(making).await;
        made.unwrap_or(Err(GroupError::NotMet(timeout)))
    }

    /// Makes a group of all ranks that give the same color. All ranks of this group call it; one
    /// without a color gets `None`. Among the ranks of one color, a higher rank must not give a
    /// lower key.
    ///
    /// The call exchanges colors and keys among all ranks, and then makes the group.
    ///
    /// # Errors
    /// [`GroupError`]: this rank is not in a new group. Also the failure of the exchange.
    pub async fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, GroupError> {
        self.split_with(color, key, DEFAULT_TIMEOUT).await
    }

    /// Makes a group as [`Client::split`] does. `timeout` is how long to wait for the other ranks, and
    /// then for the gateways of the group.
    ///
    /// # Errors
    /// The errors of [`Client::split`].
    pub async fn split_with(
        &self,
        color: Option<u32>,
        key: i32,
        timeout: Span,
    ) -> Result<Option<Self>, GroupError> {
        let own = [color.map_or(-1, i64::from), i64::from(key)];
        let result = 2 * u64::from(self.world_size());
        let spec = CollectiveSpec::new(Pattern::AllGather, ReduceOp::Sum);
        let spec = CollectiveSpec { timeout, ..spec };
        let all = self.run_collective_of_numbers::<_, GroupError>(&own, result, spec).await?;
        let same = (0..).zip(all.chunks_exact(2)).filter(|(_, of_rank)| of_rank[0] == own[0]);
        let (ranks, keys): (Vec<u32>, Vec<i64>) = same.map(|(rank, of)| (rank, of[1])).unzip();
        if color.is_none() {
            // It makes no group, but counts with those that do.
            self.count_group_making()?;
            return Ok(None);
        }
        if !keys.is_sorted() {
            // All ranks of the color see it, and count on with those of other colors.
            self.count_group_making()?;
            return Err(GroupError::KeyOrder);
        }
        self.new_group_with(&ranks, None, timeout).await
    }

    /// Counts one more group that the ranks of this one make, and returns the new group's place
    /// among them.
    fn count_group_making(&self) -> Result<GroupPlace, Failure> {
        self.connection.lock_state().group_mut(self.group.number).count_group_making()
    }

    /// Converts ranks of this group to their numbers in the job, ascending.
    fn group_ranks_in_job(&self, ranks: &[u32]) -> Result<Vec<RankId>, GroupError> {
        let in_job = |rank: &u32| {
            let unknown = GroupError::UnknownRank { rank: *rank, ranks: self.world_size() };
            self.rank_number(*rank).ok_or(unknown)
        };
        let mut in_job = ranks.iter().map(in_job).collect::<Result<Vec<RankId>, _>>()?;
        in_job.sort_unstable();
        if let Some(twice) = in_job.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GroupError::Twice(twice[0].0));
        }
        if in_job.is_empty() { Err(GroupError::NoRank) } else { Ok(in_job) }
    }

    /// Asks the gateway for a group of ranks of the job at a place of this group; `None` if this rank
    /// is not one of them.
    pub(super) async fn begin_group(
        &self,
        ranks: Vec<RankId>,
        place: GroupPlace,
    ) -> Result<Option<GroupHandle>, Failure> {
        let connection = &self.connection;
        let Ok(index) = ranks.binary_search(&connection.rank) else { return Ok(None) };
        let number_of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (rank, size) = (RankId(number_of(index)), number_of(ranks.len()));
        let Ok(permit) = connection.requests.reserve().await else {
            return Err(connection.lock_state().disconnect_failure());
        };
        let number = {
            let mut state = connection.lock_state();
            if state.ended.is_some() {
                return Err(state.disconnect_failure());
            }
            let number = state.add_group(rank);
            let (parent, ranks) = (self.group.number, ranks.clone());
            let making = MakeGroup { number, parent, place: place.0, ranks };
            permit.send(ProtocolRequest::MakeGroup(making));
            number
        };
        let (ranks, connection) = (Some(ranks), Arc::downgrade(connection));
        let pairs = Mutex::default();
        Ok(Some(GroupHandle { number, ranks, size, pairs, connection }))
    }
}
