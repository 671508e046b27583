//! A group as one of its ranks sees it: the job itself, or a group that ranks made of another one.
//!
//! Threads of the program call it. No group waits for another one of the same rank.

use crate::attached_rank::AttachedRank;
use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::connect_settings::ConnectSettings;
use crate::operation_handle::OperationHandle;
use crate::rank_poster::{CollectiveCall, SendCall};
use crate::waits::{TakenPostingTurn, deadline_after};
use gateway::client::{Client, GroupError, Store, StoreError};
use hier_collectives::ids::RankId;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use units::Span;

/// A group of an attached rank.
pub struct AttachedGroup {
    /// The client of a group that ranks made, which ends before the rank; `None` for the job itself.
    made: Option<Client>,
    rank: Arc<AttachedRank>,
}

/// State of a group, as the program may ask for it.
#[derive(Debug, Clone, Copy)]
pub struct GroupInfo {
    /// Number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// The epoch that was announced last.
    pub epoch: u64,
    /// The last step known to be complete in every region.
    pub committed: Option<u64>,
    /// The status with which posts would fail, or [`CallStatus::Ok`].
    pub state: CallStatus,
}

impl AttachedGroup {
    /// Attaches a rank, waits for all others, and returns the job as a group.
    ///
    /// # Errors
    /// The rank is not attached.
    pub fn connect(settings: ConnectSettings) -> Result<Self, CallError> {
        Ok(Self { made: None, rank: Arc::new(AttachedRank::connect(settings)?) })
    }

    /// Returns the id of the process that attached the rank, since its forked children may not use
    /// it.
    pub fn owner(&self) -> u32 {
        self.rank.poster.owner
    }

    /// Returns rank, size, epoch, last committed step and present status of the group, without a
    /// wait.
    pub fn info(&self) -> GroupInfo {
        let client = self.client();
        let state = if client.is_epoch_agreed() {
            CallStatus::Ok
        } else if client.disconnect_reason().is_some() {
            CallStatus::GatewayLost
        } else {
            CallStatus::EpochEnded
        };
        GroupInfo {
            rank: client.rank().0,
            size: client.world_size(),
            epoch: client.epoch().0,
            committed: client.committed().map(|step| step.0),
            state,
        }
    }

    /// Returns the number that a rank of this group has in the job.
    ///
    /// # Errors
    /// The group has no such rank.
    pub fn rank_in_job(&self, rank: u32) -> Result<u32, CallError> {
        let client = self.client();
        let found = client.rank_in_job(RankId(rank));
        let last = client.world_size() - 1;
        let missing = || CallError::invalid(format!("rank {rank}: there are ranks 0 to {last}"));
        found.map(|rank| rank.0).ok_or_else(missing)
    }

    /// Reserves `bytes` bytes of the arena for the program, so that collectives use them in place;
    /// returns their address.
    ///
    /// # Errors
    /// The arena has no room.
    pub fn allocate(&self, bytes: usize) -> Result<*mut u8, CallError> {
        self.rank.poster.memory.allocate(&self.client(), bytes)
    }

    /// Frees memory of the program. Operations that use it keep it until they end.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn free(&self, address: usize) -> Result<(), CallError> {
        self.rank.poster.memory.free(address)
    }

    /// Makes a group of some `ranks` of this one, by their numbers here. Without a `tag` all ranks
    /// of this group call it, in one order; with a tag only those of the new group do. Returns
    /// `None` if this rank is not one of them.
    ///
    /// # Errors
    /// The group was not made, for this rank.
    pub fn new_group(
        &self,
        ranks: Vec<u32>,
        tag: Option<u32>,
        timeout: Span,
    ) -> Result<Option<Self>, CallError> {
        let client = self.client();
        let making = async move { client.new_group_with(&ranks, tag, timeout).await };
        self.finish_making(self.rank.poster.worker.run(making)?)
    }

    /// Makes a group of all ranks that give the same color. All ranks of this group call it. Among
    /// ranks of one color, a higher rank must not give a lower key. Returns `None` without a color.
    ///
    /// # Errors
    /// The group was not made, for this rank.
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        timeout: Span,
    ) -> Result<Option<Self>, CallError> {
        let client = self.client();
        let making = async move { client.split_with(color, key, timeout).await };
        self.finish_making(self.rank.poster.worker.run(making)?)
    }

    /// Posts a collective in this group, and returns its handle. Waits before that while too many
    /// collectives of this rank are under way; the call's timeout covers that wait.
    ///
    /// # Errors
    /// Nothing was posted, and nothing uses the memory of the call.
    pub fn post(&self, call: CollectiveCall) -> Result<OperationHandle, CallError> {
        let deadline = deadline_after(call.spec.timeout);
        let _posting = self.take_posting_turn(deadline)?;
        self.rank.poster.post(&self.client(), call, deadline)
    }

    /// Posts one end of a send, and returns its handle. Waits before that until the gateways of
    /// both ranks have met, but for no other post of this rank.
    ///
    /// # Errors
    /// Nothing was posted, and nothing uses the memory of the call.
    pub fn send(&self, call: SendCall) -> Result<OperationHandle, CallError> {
        let deadline = deadline_after(call.spec.timeout);
        self.rank.poster.send(self.client(), call, deadline)
    }

    /// Starts the commit of training step `step`, which is confirmed within `timeout` or fails.
    ///
    /// # Errors
    /// The commit was not started.
    pub fn commit(&self, step: u64, timeout: Span) -> Result<OperationHandle, CallError> {
        let deadline = deadline_after(timeout);
        let _posting = self.take_posting_turn(deadline)?;
        self.rank.poster.commit(&self.client(), step, deadline)
    }

    /// Sends a request to the store of the job, and waits for its answer. Posts and other requests go
    /// on meanwhile.
    ///
    /// # Errors
    /// The request has no outcome.
    pub fn ask_store<T: Send + 'static, F>(
        &self,
        timeout: Span,
        request: impl FnOnce(Store) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let store = self.rank.job().store().with_timeout(timeout);
        Ok(self.rank.poster.worker.run(request(store))??)
    }

    /// Waits until all ranks of the job are ready to begin a step again, after a failure.
    ///
    /// # Errors
    /// Some rank is not ready by `deadline`, or never will be; or the group is not the job.
    pub fn recover(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        if self.made.is_some() {
            let text = "group: one that landbridge_connect returned recovers; make this one again";
            return Err(CallError::invalid(text));
        }
        self.rank.recover(deadline)
    }

    /// Writes the flight recorder of the rank, which all its groups share, into a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn dump(&self, path: &Path) -> Result<(), CallError> {
        self.client().dump(path).map_err(|error| {
            let text = format!("{}: the dump cannot be written: {error}", path.display());
            CallError::new(CallStatus::Config, text)
        })
    }

    /// Returns the client in Rust that stands for this group.
    fn client(&self) -> Client {
        self.made.clone().unwrap_or_else(|| self.rank.job())
    }

    /// Takes the turn to post in the job until the returned value is dropped, so that posts keep the
    /// order of calls and none falls into a recovery. Groups that ranks made end with
    /// their attachment and need no turns, so the result is `None` for them.
    ///
    /// # Errors
    /// Another thread has the turn until `deadline`.
    fn take_posting_turn(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Option<TakenPostingTurn<'_>>, CallError> {
        self.made.is_none().then(|| self.rank.posting_turn.take(deadline)).transpose()
    }

    /// Makes the group for the program of a client's new group, and restricts its posts to its
    /// first epoch. `None` where this rank is not in the group.
    fn finish_making(
        &self,
        made: Result<Option<Client>, GroupError>,
    ) -> Result<Option<Self>, CallError> {
        let Some(made) = made? else { return Ok(None) };
        made.agree_to_epoch();
        Ok(Some(Self { made: Some(made), rank: Arc::clone(&self.rank) }))
    }
}
