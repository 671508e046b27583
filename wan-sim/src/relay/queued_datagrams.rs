//! Datagrams that wait for their fate, which a queue decides when they leave it.

use super::datagram_batch::FlowId;
use super::relay_state::{BACKWARD_LINK, FORWARD_LINK};
use crate::PacketName;
use quinn_udp::EcnCodepoint;
use std::collections::BTreeMap;

/// The datagrams of both directions that wait for their fate. The queues bound them.
#[derive(Debug, Default)]
pub(super) struct QueuedDatagrams([BTreeMap<PacketName, QueuedDatagram>; 2]);

/// A datagram that waits for its fate.
#[derive(Debug)]
pub(super) struct QueuedDatagram {
    pub(super) flow: FlowId,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) data: Vec<u8>,
}

impl QueuedDatagrams {
    /// Adds a datagram that the link with index `direction` has queued as the packet `name`.
    pub(super) fn insert(&mut self, direction: usize, name: PacketName, datagram: QueuedDatagram) {
        self.0[direction].insert(name, datagram);
    }

    /// Removes and returns the datagram of the packet `name`; `None` where it does not wait.
    pub(super) fn remove(&mut self, direction: usize, name: PacketName) -> Option<QueuedDatagram> {
        self.0[direction].remove(&name)
    }

    /// Returns the directions in which datagrams wait.
    pub(super) fn directions(&self) -> impl Iterator<Item = usize> {
        let waits = |direction: &usize| !self.0[*direction].is_empty();
        [FORWARD_LINK, BACKWARD_LINK].into_iter().filter(waits)
    }
}
