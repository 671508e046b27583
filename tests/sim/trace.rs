//! What gateways trace of packets and segments, read back and held to the rules.

use scenarios::listen::listen;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// A recorder of the traces of one thread.
#[derive(Debug, Clone)]
pub struct Trace {
    lines: Arc<Mutex<Vec<Line>>>,
    /// Packets as well as segments.
    packets: bool,
}

/// What the traces show.
#[derive(Debug, Default)]
pub struct Checked {
    pub packets: u64,
    pub segments: u64,
    /// The most that was ever under way beyond grants.
    pub early_bytes_max: u64,
    /// The most in flight on one lane.
    pub in_flight_max: u64,
    /// Segments that went again.
    pub again: u64,
    /// What had them before: connections, and the peer at the other end.
    pub lost: BTreeSet<(u64, u64)>,
}

/// What is known of the segments while a trace is read.
#[derive(Default)]
struct Seen {
    granted: BTreeMap<Tree, u64>,
    sent: BTreeSet<Key>,
    receipted: BTreeSet<Key>,
    /// Who has them to send.
    pulled: BTreeMap<Key, u64>,
    /// Under way beyond grants, by peer.
    early: BTreeMap<u64, BTreeMap<Key, u64>>,
}

/// Group, peer, sequence, tree.
type Tree = (u64, u64, u64, u64);
/// A segment of it.
type Key = (Tree, u64);

/// One traced event: its words and its numbers.
#[derive(Debug, Default)]
struct Line {
    what: String,
    numbers: BTreeMap<&'static str, u64>,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.numbers.insert(field.name(), value);
    }

    fn record_str(&mut self, _: &Field, value: &str) {
        value.clone_into(&mut self.what);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Trace {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        match metadata.target() {
            "landbridge::flight" => self.packets,
            target => target == "landbridge::segments",
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.lines.lock().expect("no panic").push(line);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Trace {
    /// Of segments and packets.
    pub fn of_packets() -> Self {
        Self { lines: Arc::default(), packets: true }
    }

    /// Of segments alone.
    pub fn of_segments() -> Self {
        Self { lines: Arc::default(), packets: false }
    }

    /// Records until the guards are dropped.
    pub fn listen(&self) -> (Dispatch, DefaultGuard) {
        listen(|| Dispatch::new(self.clone()))
    }

    /// Holds every packet to its lane's window, to within the packet itself and a probe; every
    /// segment to its grant or to the early room; and what goes again to what was pulled by
    /// another lane before, and has no receipt.
    ///
    /// # Panics
    /// When one is outside.
    pub fn check(&self, early_room: u64, mtu: u64) -> Checked {
        let (mut checked, mut seen) = (Checked::default(), Seen::default());
        for line in self.lines.lock().expect("no panic").iter() {
            if line.what.is_empty() {
                let (in_flight, window) = (line.numbers["in_flight"], line.numbers["window"]);
                checked.packets += 1;
                checked.in_flight_max = checked.in_flight_max.max(in_flight);
                assert!(in_flight <= window + 3 * mtu, "{in_flight} in flight, window {window}");
            } else {
                seen.take(line, early_room, &mut checked);
            }
        }
        checked
    }
}

impl Seen {
    fn take(&mut self, line: &Line, early_room: u64, checked: &mut Checked) {
        let number = |name| line.numbers[name];
        let tree = (number("group"), number("peer"), number("sequence"), number("tree"));
        let (segment, early) = (number("segment"), self.early.entry(tree.1).or_default());
        let key = (tree, segment);
        match line.what.as_str() {
            "granted" => {
                let limit = self.granted.entry(tree).or_insert(0);
                *limit = segment.max(*limit);
            }
            "sent" => {
                checked.segments += 1;
                assert!(self.sent.insert(key), "sent twice: {line:?}");
                if segment >= self.granted.get(&tree).copied().unwrap_or(0) {
                    early.insert(key, number("bytes"));
                }
                let under_way = early.values().sum();
                assert!(under_way <= early_room, "{under_way} bytes early, room {early_room}");
                checked.early_bytes_max = checked.early_bytes_max.max(under_way);
            }
            "pulled" => {
                let connection = number("connection");
                if let Some(before) = self.pulled.insert(key, connection) {
                    assert_ne!(before, connection, "pulled twice by one lane: {line:?}");
                    assert!(!self.receipted.contains(&key), "it has a receipt: {line:?}");
                    checked.again += 1;
                    checked.lost.insert((before, tree.1));
                }
            }
            "receipted" => {
                early.remove(&key);
                self.receipted.insert(key);
            }
            what => panic!("{what}"),
        }
    }
}
