//! The medium between all sockets: the network's state, and the clock that it lives by.

use super::net_clock::NetClock;
use super::state::{Datagram, State};
use bytes::Bytes;
use quinn::udp::Transmit;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::TimeNs;

/// The state and the clock of a network; clones share both.
#[derive(Debug, Clone)]
pub(super) struct Medium {
    pub(super) clock: NetClock,
    state: Arc<Mutex<State>>,
}

impl Medium {
    /// An empty network in the time of `clock`.
    pub(super) fn new(clock: NetClock) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// The time, as packets are shown to have it.
    pub(super) fn now(&self) -> TimeNs {
        self.clock.now()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves no half-made change: each is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends every segment of `transmit`, each with a fate of its own.
    pub(super) fn send(&self, source: SocketAddr, transmit: &Transmit<'_>) {
        if transmit.contents.len() > UDP_PAYLOAD_MAX {
            self.lock().undelivered.too_big += 1;
            return;
        }
        let contents = Bytes::copy_from_slice(transmit.contents);
        let segment = transmit.segment_size.unwrap_or(contents.len()).max(1);
        let now = self.now();
        let mut state = self.lock();
        let source = state.seen_at(source);
        let mut from = 0;
        while from < contents.len() {
            let to = contents.len().min(from + segment);
            let payload = contents.slice(from..to);
            let datagram = Datagram { source, ecn: transmit.ecn, payload, on_link: None };
            state.route(now, transmit.destination, datagram);
            from = to;
        }
        let waker = state.waker_for(transmit.destination);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Most bytes of one transmit, as in Linux.
const UDP_PAYLOAD_MAX: usize = 65_507;
