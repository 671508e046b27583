//! The queue of a client's requests, which are written to the gateway in the order of their queueing.
//!
//! Callers wait for room, so that a slow gateway slows them down. Leaving a group needs no room, since
//! a handle that is dropped cannot wait.

use super::group_state::UnderWay;
use crate::events::GroupNumber;
use crate::local::protocol::ProtocolRequest;
use crate::memory::mem_slice::MemSlice;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// 64 requests of one client that wait to be written to the gateway: posts, commits, makings of
/// groups and requests to the store. Further calls wait for room. The number is chosen; it bounds
/// memory.
const CLIENT_REQUESTS_MAX: usize = 64;

/// The callers' end of the queue.
pub(in crate::client) struct RequestQueue {
    queue: mpsc::UnboundedSender<QueuedRequest>,
    places: Arc<Semaphore>,
}

/// The writer's end of the queue.
pub(in crate::client) struct RequestQueueReader(mpsc::UnboundedReceiver<QueuedRequest>);

/// A place in the queue for one request.
pub(in crate::client) struct RequestQueuePlace<'q> {
    queue: &'q mpsc::UnboundedSender<QueuedRequest>,
    place: OwnedSemaphorePermit,
}

/// A request that waits, with its place; departures have none.
struct QueuedRequest {
    request: ProtocolRequest,
    /// The contribution that follows a post in pieces.
    contribution: Option<QueuedContribution>,
    _place: Option<OwnedSemaphorePermit>,
}

/// The contribution that follows a post.
pub(in crate::client) struct QueuedContribution {
    /// Whether the collective is under way. Its number says less: it comes again in the next epoch.
    pub under_way: UnderWay,
    pub bytes: MemSlice,
}

/// Nothing takes requests any more: the connection ended.
#[derive(Debug)]
pub(in crate::client) struct QueueClosed;

impl RequestQueue {
    /// Makes an empty queue of requests to the gateway; returns its sending and its receiving end.
    pub fn open() -> (Self, RequestQueueReader) {
        let (queue, queued) = mpsc::unbounded_channel();
        let places = Arc::new(Semaphore::new(CLIENT_REQUESTS_MAX));
        (Self { queue, places }, RequestQueueReader(queued))
    }

    /// Waits until the queue has room for one more request, and reserves that place.
    ///
    /// # Errors
    /// [`QueueClosed`]: the writer has ended.
    pub async fn reserve(&self) -> Result<RequestQueuePlace<'_>, QueueClosed> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| QueueClosed)?;
        if self.queue.is_closed() {
            return Err(QueueClosed);
        }
        Ok(RequestQueuePlace { queue: &self.queue, place })
    }

    /// Queues the message that the rank leaves a group, behind all requests about that group.
    pub fn leave_group(&self, number: GroupNumber) {
        let request = ProtocolRequest::LeaveGroup(number);
        // The writer may be gone, and with it the attachment.
        let _ = self.queue.send(QueuedRequest { request, contribution: None, _place: None });
    }
}

impl RequestQueuePlace<'_> {
    /// Queues a request in the place that was reserved for it.
    pub fn send(self, request: ProtocolRequest) {
        self.send_with_contribution(request, None);
    }

    /// Queues a post in the place that was reserved for it, with the bytes that follow it.
    pub fn send_with_contribution(
        self,
        request: ProtocolRequest,
        contribution: Option<QueuedContribution>,
    ) {
        // As above.
        let _ = self.queue.send(QueuedRequest { request, contribution, _place: Some(self.place) });
    }
}

impl RequestQueueReader {
    /// Takes the next request, whose place is free then, and the contribution that follows it; `None`
    /// once nobody can queue another.
    pub async fn next(&mut self) -> Option<(ProtocolRequest, Option<QueuedContribution>)> {
        self.0.recv().await.map(|queued| (queued.request, queued.contribution))
    }
}
