//! The medium between all sockets: the network's state, and the clock that it lives by.

use super::datagram::Datagram;
use super::net_clock::NetClock;
use super::net_state::NetState;
use crate::mutex::lock_mutex;
use bytes::Bytes;
use quinn::udp::Transmit;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use units::TimeNs;

/// The state and the clock of a network; clones share both.
#[derive(Debug, Clone)]
pub(super) struct Medium {
    pub(super) clock: NetClock,
    state: Arc<Mutex<NetState>>,
}

impl Medium {
    /// Makes an empty network in the time of `clock`.
    pub(super) fn new(clock: NetClock) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// Returns the time since the network was made.
    pub(super) fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Locks the state of the network.
    pub(super) fn lock_state(&self) -> MutexGuard<'_, NetState> {
        lock_mutex(&self.state)
    }

    /// Sends every segment of `transmit` from `source`, each with a fate of its own, and wakes the
    /// readers at the destination. A transmit too large for one send call is counted, and not sent.
    pub(super) fn send_transmit(&self, source: SocketAddr, transmit: &Transmit<'_>) {
        let bytes = transmit.contents.len();
        let segment = transmit.segment_size.unwrap_or(bytes).max(1);
        if bytes > TRANSMIT_BYTES_MAX || bytes.div_ceil(segment) > GSO_SEGMENTS_MAX {
            self.lock_state().undelivered.too_big += 1;
            return;
        }
        let contents = Bytes::copy_from_slice(transmit.contents);
        let now = self.now();
        let mut state = self.lock_state();
        let source = state.seen_address(source);
        let (mut from, mut readers) = (0, BTreeSet::new());
        while from < contents.len() {
            let to = contents.len().min(from + segment);
            let payload = contents.slice(from..to);
            readers.extend(state.socket_of_datagram(transmit.destination, &payload));
            let datagram = Datagram { source, ecn: transmit.ecn, payload, on_link: None };
            state.route_datagram(now, transmit.destination, datagram);
            from = to;
        }
        let wakers: Vec<_> = readers.into_iter().filter_map(|at| state.waker_for(at)).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// 65,507 bytes: the most payload in one send call of a virtual socket, all its UDP datagrams
/// together, as in Linux. A larger call sends nothing and is counted.
const TRANSMIT_BYTES_MAX: usize = 65_507;
/// 64 UDP datagrams: the most in one send call of a virtual socket (UDP GSO), as in Linux. A call
/// with more sends nothing and is counted.
pub(super) const GSO_SEGMENTS_MAX: usize = 64;
