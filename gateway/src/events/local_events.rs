//! Events between a trainer's task and the engine.

use super::ids::{AttachmentId, GroupNumber};
use super::placed_results::{PlacedResult, PlacedResults};
use crate::memory::mem_slice::MemSlice;
use hier_collectives::ids::{GroupId, RankId, Sequence};
use hier_collectives::post::{Commit, Post, RankEvent};
use hier_collectives::session::PostTransport;
use hier_collectives::store::StoreRequest;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use units::Span;

/// An event that a trainer's task sends to the engine.
#[derive(Debug)]
pub enum LocalEvent {
    /// A trainer attached as a rank.
    Attach {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The queue of the rank's events.
        events: LocalRankEvents,
    },
    /// A rank posted a collective.
    Post {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The group in which it is posted.
        number: GroupNumber,
        /// The post.
        post: Box<Post>,
        /// The slot that is to be reduced.
        contribution: MemSlice,
        /// The slot for the result.
        result: MemSlice,
        /// The way of its bytes.
        transport: PostTransport,
        /// Bounds the rank's requests in the engine's queue; dropped once the engine took this one.
        permit: OwnedSemaphorePermit,
    },
    /// More bytes of a posted contribution have come.
    Contribution {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The group in which it was posted.
        number: GroupNumber,
        /// The collective.
        sequence: Sequence,
        /// The first byte of the contribution that has not come; `None` once all have.
        missing_from: Option<u64>,
        /// Bounds the rank's requests in the engine's queue; dropped once the engine took this one.
        permit: OwnedSemaphorePermit,
    },
    /// A rank committed a step.
    Commit {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The group whose collectives it covers.
        number: GroupNumber,
        /// The commit.
        commit: Commit,
        /// Bounds the rank's requests in the engine's queue; dropped once the engine took this one.
        permit: OwnedSemaphorePermit,
    },
    /// A rank made a group.
    MakeGroup {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The number of the group that it makes.
        number: GroupNumber,
        /// The group of which it is a part.
        parent: GroupNumber,
        /// Its place in the parent, or the caller's tag.
        place: u64,
        /// Its ranks, ascending.
        ranks: Vec<RankId>,
        /// Bounds the rank's requests in the engine's queue; dropped once the engine took this one.
        permit: OwnedSemaphorePermit,
    },
    /// A rank left a group.
    LeaveGroup {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The number of the group.
        number: GroupNumber,
        /// Bounds the rank's requests in the engine's queue; dropped once the engine took this one.
        permit: OwnedSemaphorePermit,
    },
    /// A rank has a request to the job's store.
    Store {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
        /// The rank's number for the request.
        number: u64,
        /// The longest time until the answer.
        timeout: Span,
        /// The request.
        request: Box<StoreRequest>,
        /// Bounds the rank's requests in the engine's queue; dropped once the engine took this one.
        permit: OwnedSemaphorePermit,
    },
    /// A rank's connection is gone.
    Detach {
        /// The job's group.
        group: GroupId,
        /// The rank.
        rank: RankId,
        /// The connection.
        attachment: AttachmentId,
    },
}

impl LocalEvent {
    /// Returns the job, as a group, that the event belongs to.
    pub fn group(&self) -> GroupId {
        match self {
            Self::Attach { group, .. }
            | Self::Post { group, .. }
            | Self::Contribution { group, .. }
            | Self::Commit { group, .. }
            | Self::MakeGroup { group, .. }
            | Self::LeaveGroup { group, .. }
            | Self::Store { group, .. }
            | Self::Detach { group, .. } => *group,
        }
    }
}

/// The engine's end of the queue to one trainer's task. Sending never waits: when the queue is
/// full, the trainer's task disconnects the trainer.
#[derive(Debug, Clone)]
pub struct LocalRankEvents {
    queue: mpsc::Sender<(GroupNumber, RankEvent)>,
    placed: Arc<PlacedResults>,
    overflowed: CancellationToken,
}

impl LocalRankEvents {
    /// Makes the sender of `queue`; a full queue cancels `overflowed`. Parts of results go to `placed`.
    pub fn new(
        queue: mpsc::Sender<(GroupNumber, RankEvent)>,
        placed: Arc<PlacedResults>,
        overflowed: CancellationToken,
    ) -> Self {
        Self { queue, placed, overflowed }
    }

    /// Tells the trainer's task that bytes of a result are in place.
    pub fn place_result(&self, placed: PlacedResult) {
        self.placed.add_placed_result(placed);
    }

    /// Queues an event of a group, or cancels the trainer's task if the queue is full.
    pub fn send(&self, number: GroupNumber, event: RankEvent) {
        if self.queue.try_send((number, event)).is_err() {
            self.overflowed.cancel();
        }
    }
}
