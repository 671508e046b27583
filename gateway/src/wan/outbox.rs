//! What is to go to one peer. Lanes pull from it; a lane that is slow pulls less, and what a
//! dead lane held goes back.

use crate::local::arena::MemSlice;
use hier_collectives::ids::Sequence;
use hier_collectives::wire::{SegmentHeader, SegmentKey};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Segments up to this size do not wait behind bulk.
pub const SMALL_BYTES: u32 = 64 << 10;

/// Names a lane's connection; never used twice in a process.
pub type ConnectionId = u64;

/// A segment to be sent.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// What goes ahead of the bytes.
    pub header: SegmentHeader,
    /// The bytes.
    pub payload: MemSlice,
    /// Whether it was handed to a lane before.
    pub again: bool,
    /// Stops the stream.
    pub cancel: CancellationToken,
}

/// Which kind of segment a puller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Up to [`SMALL_BYTES`].
    Small,
    /// Longer.
    Bulk,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<State>,
    arrived: Notify,
}

/// Lowest collective first, whatever the epoch: sequences grow through all of them.
type Order = (Class, SegmentKey);

#[derive(Debug, Default)]
struct State {
    queue: BTreeMap<Order, Outgoing>,
    flights: BTreeMap<SegmentKey, Flight>,
}

#[derive(Debug)]
struct Flight {
    connection: ConnectionId,
    outgoing: Outgoing,
    /// Kept until the receipt, so that a cancel can still reset it.
    stream: Option<quinn::SendStream>,
}

impl Outbox {
    /// Queues a segment.
    pub fn push(&self, header: SegmentHeader, payload: MemSlice) {
        let cancel = CancellationToken::new();
        let outgoing = Outgoing { header, payload, again: false, cancel };
        self.lock().queue.insert(order(&header), outgoing);
        self.arrived.notify_waiters();
    }

    /// The next segment of a class, once there is one. Its bytes are this connection's to
    /// send until the receipt.
    pub async fn pull(&self, class: Class, connection: ConnectionId) -> Outgoing {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if let Some(outgoing) = self.lock().take(class, connection) {
                return outgoing;
            }
            arrived.await;
        }
    }

    /// The segment's stream is written whole.
    pub fn written(&self, key: SegmentKey, connection: ConnectionId, stream: quinn::SendStream) {
        let mut state = self.lock();
        match state.flights.get_mut(&key) {
            Some(flight) if flight.connection == connection => flight.stream = Some(stream),
            // Receipted already, or another lane's by now.
            _ => {}
        }
    }

    /// The peer has the segment.
    pub fn receipted(&self, key: SegmentKey) {
        let mut state = self.lock();
        state.flights.remove(&key);
        state.queue.retain(|(_, queued), _| *queued != key);
    }

    /// Nothing more of this collective may leave.
    pub fn cancel(&self, sequence: Sequence) {
        let mut state = self.lock();
        state.queue.retain(|(_, key), _| key.sequence != sequence);
        let ended: Vec<_> =
            state.flights.extract_if(.., |key, _| key.sequence == sequence).collect();
        drop(state);
        for (_, flight) in ended {
            flight.stop();
        }
    }

    /// A lane is gone: what it had not delivered goes again. Returns how many bytes.
    pub fn requeue(&self, connection: ConnectionId) -> u64 {
        let mut state = self.lock();
        let lost: Vec<_> =
            state.flights.extract_if(.., |_, flight| flight.connection == connection).collect();
        let mut bytes = 0;
        for (_, flight) in lost {
            bytes += flight.outgoing.payload.len();
            let outgoing =
                Outgoing { again: true, cancel: CancellationToken::new(), ..flight.outgoing };
            state.queue.insert(order(&outgoing.header), outgoing);
        }
        drop(state);
        self.arrived.notify_waiters();
        bytes
    }

    /// The peer is gone, and the epoch with it.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.queue.clear();
        let ended = std::mem::take(&mut state.flights);
        drop(state);
        ended.into_values().for_each(Flight::stop);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, class: Class, connection: ConnectionId) -> Option<Outgoing> {
        let (order, _) = self.queue.iter().find(|((queued, _), _)| *queued == class)?;
        let order = *order;
        let outgoing = self.queue.remove(&order)?;
        let flight = Flight { connection, outgoing: outgoing.clone(), stream: None };
        self.flights.insert(order.1, flight);
        Some(outgoing)
    }
}

impl Flight {
    fn stop(self) {
        self.outgoing.cancel.cancel();
        if let Some(mut stream) = self.stream {
            // Already finished and acknowledged is as good.
            let _ = stream.reset(super::CANCELLED.into());
        }
    }
}

fn order(header: &SegmentHeader) -> Order {
    let class = if header.bytes <= SMALL_BYTES { Class::Small } else { Class::Bulk };
    (class, header.key)
}
