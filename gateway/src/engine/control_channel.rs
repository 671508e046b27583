//! Control messages of a peer are heard in the order in which they were said.
//!
//! They go over one connection for as long as that lives, whatever lanes return meanwhile, and then
//! over another. Each change has a number that is said first on the new connection: what comes late
//! over one from before counts as lost with it. All that is lost so is said again.

use crate::wan::stream::send_queue::ConnectionId;
use std::collections::BTreeMap;

/// Both directions, for one peer.
#[derive(Debug, Default)]
pub(super) struct ControlChannel {
    /// What ours go over.
    over: Option<ConnectionId>,
    /// How often that has changed.
    turn: u64,
    /// The last change that the peer has said, and over which connection.
    heard: Option<(u64, ConnectionId)>,
}

impl ControlChannel {
    /// The connection that our messages go over.
    pub fn over(&self) -> Option<ConnectionId> {
        self.over
    }

    /// Whether messages go over a connection, either way: with it some may be lost.
    pub fn carries(&self, on: ConnectionId) -> bool {
        self.over == Some(on) || self.is_heard(on)
    }

    /// These lanes are up, lowest first. The connection that our messages go over from now on and
    /// the number to say on it, if that has changed.
    pub fn choose(&mut self, lanes: &BTreeMap<u16, ConnectionId>) -> Option<(ConnectionId, u64)> {
        if self.over.is_some_and(|over| lanes.values().any(|id| *id == over)) {
            return None;
        }
        self.over = lanes.values().next().copied();
        if self.over.is_none() {
            // The peer may be started anew, and count from the beginning.
            self.heard = None;
        }
        let over = self.over?;
        self.turn += 1;
        Some((over, self.turn))
    }

    /// The peer has said this number on a connection.
    pub fn hear(&mut self, turn: u64, on: ConnectionId) {
        self.heard = self.heard.max(Some((turn, on)));
    }

    /// Whether what comes over a connection is not late.
    pub fn is_heard(&self, on: ConnectionId) -> bool {
        self.heard.is_some_and(|(_, heard)| heard == on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone, Copy)]
    enum Said {
        Turn(u64),
        Message(u64),
    }

    /// One direction between two gateways with three lanes, each of which brings what is said over
    /// it in order, but as late as it likes.
    #[derive(Debug, Default)]
    struct Way {
        sender: ControlChannel,
        receiver: ControlChannel,
        lanes: BTreeMap<u16, ConnectionId>,
        under_way: BTreeMap<ConnectionId, VecDeque<Said>>,
        connections: u64,
        said: u64,
        /// What was said before a connection was lost is said again from here on.
        again: u64,
        heard: Vec<u64>,
    }

    impl Way {
        fn choose(&mut self) {
            if let Some((id, turn)) = self.sender.choose(&self.lanes) {
                self.under_way.entry(id).or_default().push_back(Said::Turn(turn));
                self.again = self.said;
            }
        }

        fn step(&mut self, (what, lane): (u8, u16)) {
            match what % 4 {
                0 => {
                    self.connections += 1;
                    self.lanes.entry(lane).or_insert(self.connections);
                    self.choose();
                }
                1 => {
                    // One lane at least stays: without any, both begin anew.
                    if self.lanes.len() > 1 {
                        self.lanes.remove(&lane);
                        self.choose();
                    }
                }
                2 => {
                    if let Some(over) = self.sender.over() {
                        self.said += 1;
                        self.under_way.entry(over).or_default().push_back(Said::Message(self.said));
                    }
                }
                _ => {
                    let busy = self.under_way.iter_mut().filter(|(_, queue)| !queue.is_empty());
                    let mut busy: Vec<_> = busy.collect();
                    let count = busy.len().max(1);
                    let Some((id, queue)) = busy.get_mut(usize::from(lane) % count) else { return };
                    match queue.pop_front() {
                        Some(Said::Turn(turn)) => self.receiver.hear(turn, **id),
                        Some(Said::Message(n)) if self.receiver.is_heard(**id) => {
                            self.heard.push(n);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn none_overtakes_another_and_none_is_missed_since_the_last_loss(
            steps in proptest::collection::vec((0u8..4, 0u16..3), 1..300),
        ) {
            let mut way = Way::default();
            steps.into_iter().for_each(|step| way.step(step));
            while way.under_way.values().any(|queue| !queue.is_empty()) {
                way.step((3, 0));
            }
            prop_assert!(way.heard.is_sorted(), "overtaken: {:?}", way.heard);
            let since: Vec<u64> = (way.again + 1..=way.said).collect();
            prop_assert!(way.heard.ends_with(&since), "{:?} since {}", way.heard, way.again);
        }
    }

    #[test]
    fn a_lower_lane_that_returns_changes_nothing() {
        let mut order = ControlChannel::default();
        assert_eq!(order.choose(&[(0, 10), (1, 11)].into()), Some((10, 1)));
        assert_eq!(order.choose(&[(1, 11)].into()), Some((11, 2)));
        assert_eq!(order.choose(&[(0, 12), (1, 11)].into()), None);
        assert_eq!(order.over(), Some(11));
        assert!(order.carries(11) && !order.carries(12), "another lane takes no message with it");
        assert_eq!(order.choose(&[(0, 12)].into()), Some((12, 3)));
    }

    #[test]
    fn a_peer_that_was_started_anew_counts_from_the_beginning() {
        let mut order = ControlChannel::default();
        order.choose(&[(0, 10)].into());
        order.hear(7, 10);
        order.hear(6, 10);
        order.choose(&BTreeMap::new());
        order.choose(&[(0, 11)].into());
        order.hear(1, 11);
        assert!(order.is_heard(11) && !order.is_heard(10));
        assert!(order.carries(11) && !order.carries(10));
    }
}
