//! The posts of one rank: they place buffers, post them in a group, and hand the end to its thread.
//!
//! Threads of the program post, each for itself. The thread of the rank ends what they posted.

use crate::call_error::CallError;
use crate::memory_in_use::MemoryUse;
use crate::operation_handle::{Delivery, OperationHandle};
use crate::rank_memory::{RankMemory, RankMemoryBuffers};
use crate::waits::time_left;
use crate::worker::Worker;
use gateway::client::{Client, CollectiveSpec, Operation, SendSpec};
use hier_collectives::descriptor::Counts;
use hier_collectives::ids::Step;
use std::time::Instant;

/// Memory and thread of one rank, by which its groups post.
pub struct RankPoster {
    /// Process that attached the rank.
    pub owner: u32,
    /// The arena of the rank.
    pub memory: RankMemory,
    /// The thread of the rank.
    pub worker: Worker,
}

/// A collective as the program asks for it.
#[derive(Debug)]
pub struct CollectiveCall {
    /// Pattern, reduction, weight and timeout.
    pub spec: CollectiveSpec,
    /// Elements of blocks, where the pattern has blocks.
    pub counts: Counts,
    /// Contribution and result.
    pub buffers: RankMemoryBuffers,
}

/// One end of a send as the program asks for it.
#[derive(Debug)]
pub struct SendCall {
    /// The rank at the other end, the tag and the timeout.
    pub spec: SendSpec,
    /// Whether this rank has the data or gets them.
    pub end: SendCallEnd,
    /// The contribution of a sender, or the result of a receiver.
    pub buffers: RankMemoryBuffers,
}

/// The end of a send that a program posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendCallEnd {
    /// The rank has the data.
    Sender,
    /// The rank gets the data.
    Receiver,
}

impl RankPoster {
    /// Posts a collective in the group of `client`. Waits until it may be posted; other ranks have the
    /// time that is left then until `deadline`.
    ///
    /// # Errors
    /// Nothing was posted, and nothing uses the memory of the call.
    pub fn post(
        &self,
        client: &Client,
        call: CollectiveCall,
        deadline: Option<Instant>,
    ) -> Result<OperationHandle, CallError> {
        let placed = self.memory.place_rank_buffers(client, call.buffers, deadline)?;
        let spec = CollectiveSpec { timeout: time_left(deadline), ..call.spec };
        let posting = client.post_with_counts(placed.tensor, spec, call.counts);
        let posted = self.worker.run_on_caller(posting)?;
        Ok(self.follow(posted, placed.memory, placed.delivery, placed.lies_in_arena))
    }

    /// Posts one end of a send in the group of `client`. Waits until the gateways of both ranks have
    /// met, which the first send between the two does, and until it may be posted. The other rank has
    /// the time that is left then until `deadline`.
    ///
    /// # Errors
    /// Nothing was posted, and nothing uses the memory of the call.
    pub fn send(
        &self,
        client: Client,
        call: SendCall,
        deadline: Option<Instant>,
    ) -> Result<OperationHandle, CallError> {
        let SendCall { spec, end, buffers } = call;
        let placed = self.memory.place_rank_buffers(&client, buffers, deadline)?;
        let spec = SendSpec { timeout: time_left(deadline), ..spec };
        let tensor = placed.tensor;
        let posting = async move {
            match end {
                SendCallEnd::Sender => client.send(tensor, spec).await,
                SendCallEnd::Receiver => client.receive(tensor, spec).await,
            }
        };
        let posted = self.worker.run(posting)??;
        Ok(self.follow(posted, placed.memory, placed.delivery, placed.lies_in_arena))
    }

    /// Starts the commit of training step `step` in the group of `client`, whose waits for room and
    /// for other ranks end at `deadline`.
    ///
    /// # Errors
    /// The commit was not started.
    pub fn commit(
        &self,
        client: &Client,
        step: u64,
        deadline: Option<Instant>,
    ) -> Result<OperationHandle, CallError> {
        let starting = client.start_commit(Step(step), time_left(deadline));
        let commit = self.worker.run_on_caller(starting)?;
        let (handle, end) = OperationHandle::new(self.owner, None, None, false);
        self.worker.spawn(end.follow_commit(commit));
        Ok(handle)
    }

    /// Hands an operation that was posted to the rank's thread, and returns its handle. The thread
    /// waits for the operation's end, and ends the use of `memory`. A thread that waits for the
    /// handle copies the result as `delivery` says. `lies_in_arena`: a buffer of the caller is a
    /// part of the arena.
    fn follow(
        &self,
        posted: Operation,
        memory: MemoryUse,
        delivery: Option<Delivery>,
        lies_in_arena: bool,
    ) -> OperationHandle {
        let (handle, end) = OperationHandle::new(self.owner, Some(memory), delivery, lies_in_arena);
        self.worker.spawn(end.follow_collective(posted));
        handle
    }
}
