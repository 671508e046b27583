//! Selects the connection for the control messages to and from one peer, so that they arrive in
//! order.
//!
//! Messages use one connection while it lives, and then the connection of the lowest lane. Each
//! selection has a generation number, which is announced first on the new connection. Messages that
//! arrive on an older connection are dropped, and the sessions send again all that may be lost.

use crate::events::ConnectionId;
use std::collections::BTreeMap;

/// The control connections of one peer, in both directions.
#[derive(Debug, Default)]
pub(super) struct ControlChannel {
    /// The connection for messages to the peer.
    outgoing: Option<ConnectionId>,
    /// Number of the current selection for messages to the peer.
    generation: u64,
    /// The highest generation that the peer has announced, and the connection of the announcement.
    incoming: Option<(u64, ConnectionId)>,
}

impl ControlChannel {
    /// Returns the connection for control messages to the peer; `None` while no lane is up.
    pub fn outgoing_connection(&self) -> Option<ConnectionId> {
        self.outgoing
    }

    /// Returns whether control messages of either direction use a connection, so that its loss may
    /// lose some.
    pub fn uses_connection(&self, connection: ConnectionId) -> bool {
        self.outgoing == Some(connection) || self.is_incoming_connection(connection)
    }

    /// Selects the connection for messages to the peer among `lanes`, which are up. It stays the
    /// one in use while that is there, and becomes that of the lowest lane otherwise. Returns a
    /// newly selected connection, and the generation to announce on it; `None` if the old one stays
    /// or no lane is up.
    pub fn select_connection(
        &mut self,
        lanes: &BTreeMap<u16, ConnectionId>,
    ) -> Option<(ConnectionId, u64)> {
        if self.outgoing.is_some_and(|current| lanes.values().any(|id| *id == current)) {
            return None;
        }
        self.outgoing = lanes.values().next().copied();
        if self.outgoing.is_none() {
            // The peer may have restarted, and then counts generations from the beginning.
            self.incoming = None;
        }
        let selected = self.outgoing?;
        self.generation += 1;
        Some((selected, self.generation))
    }

    /// Records that the peer announced `generation` on a connection. The peer's messages are taken
    /// from the connection of the highest generation; a lower one that arrives late changes
    /// nothing.
    pub fn handle_generation(&mut self, generation: u64, connection: ConnectionId) {
        self.incoming = self.incoming.max(Some((generation, connection)));
    }

    /// Returns whether the peer's messages use this connection now; messages on others are late.
    pub fn is_incoming_connection(&self, connection: ConnectionId) -> bool {
        self.incoming.is_some_and(|(_, current)| current == connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone, Copy)]
    enum Sent {
        Generation(u64),
        Message(u64),
    }

    /// One direction between two gateways with three lanes. Each lane delivers in order, but with
    /// any delay.
    #[derive(Debug, Default)]
    struct Direction {
        sender: ControlChannel,
        receiver: ControlChannel,
        lanes: BTreeMap<u16, ConnectionId>,
        in_flight: BTreeMap<ConnectionId, VecDeque<Sent>>,
        connections: u64,
        sent: u64,
        /// The last message before the last change of connection; the sender repeats older ones.
        sent_before_change: u64,
        received: Vec<u64>,
    }

    impl Direction {
        fn select(&mut self) {
            if let Some((id, generation)) = self.sender.select_connection(&self.lanes) {
                self.in_flight.entry(id).or_default().push_back(Sent::Generation(generation));
                self.sent_before_change = self.sent;
            }
        }

        fn step(&mut self, (kind, lane): (u8, u16)) {
            match kind % 4 {
                0 => {
                    self.connections += 1;
                    self.lanes.entry(lane).or_insert(self.connections);
                    self.select();
                }
                1 => {
                    // At least one lane stays: without any, both sides start over.
                    if self.lanes.len() > 1 {
                        self.lanes.remove(&lane);
                        self.select();
                    }
                }
                2 => {
                    if let Some(connection) = self.sender.outgoing_connection() {
                        self.sent += 1;
                        let queue = self.in_flight.entry(connection).or_default();
                        queue.push_back(Sent::Message(self.sent));
                    }
                }
                _ => self.deliver(lane),
            }
        }

        fn deliver(&mut self, lane: u16) {
            let busy = self.in_flight.iter_mut().filter(|(_, queue)| !queue.is_empty());
            let mut busy: Vec<_> = busy.collect();
            let count = busy.len().max(1);
            let Some((id, queue)) = busy.get_mut(usize::from(lane) % count) else { return };
            match queue.pop_front() {
                Some(Sent::Generation(number)) => self.receiver.handle_generation(number, **id),
                Some(Sent::Message(n)) if self.receiver.is_incoming_connection(**id) => {
                    self.received.push(n)
                }
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn messages_keep_their_order_and_none_is_missing(
            steps in proptest::collection::vec((0u8..4, 0u16..3), 1..300),
        ) {
            let mut direction = Direction::default();
            steps.into_iter().for_each(|step| direction.step(step));
            while direction.in_flight.values().any(|queue| !queue.is_empty()) {
                direction.step((3, 0));
            }
            let received = direction.received;
            prop_assert!(received.is_sorted(), "out of order: {:?}", received);
            let since: Vec<u64> = (direction.sent_before_change + 1..=direction.sent).collect();
            prop_assert!(received.ends_with(&since), "{:?}, not {:?}", received, since);
        }
    }

    #[test]
    fn a_lower_lane_that_returns_changes_nothing() {
        let mut control = ControlChannel::default();
        assert_eq!(control.select_connection(&[(0, 10), (1, 11)].into()), Some((10, 1)));
        assert_eq!(control.select_connection(&[(1, 11)].into()), Some((11, 2)));
        assert_eq!(control.select_connection(&[(0, 12), (1, 11)].into()), None);
        assert_eq!(control.outgoing_connection(), Some(11));
        assert!(
            control.uses_connection(11) && !control.uses_connection(12),
            "another lane takes no message with it"
        );
        assert_eq!(control.select_connection(&[(0, 12)].into()), Some((12, 3)));
    }

    #[test]
    fn a_restarted_peer_counts_generations_from_the_beginning() {
        let mut control = ControlChannel::default();
        control.select_connection(&[(0, 10)].into());
        control.handle_generation(7, 10);
        control.handle_generation(6, 10);
        control.select_connection(&BTreeMap::new());
        control.select_connection(&[(0, 11)].into());
        control.handle_generation(1, 11);
        assert!(control.is_incoming_connection(11) && !control.is_incoming_connection(10));
        assert!(control.uses_connection(11) && !control.uses_connection(10));
    }
}
