//! The traces of packets and segments, read back and checked against the rules.

use scenarios::observe::log_capture::listen;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// A recorder of the traces of one thread.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<Line>>>);

/// The totals of the traces.
#[derive(Debug, Default)]
pub struct Checked {
    pub packets: u64,
    pub segments: u64,
    /// Bytes of retransmitted segments, none of which the peer had acknowledged.
    pub bytes_again: u64,
    /// The most bytes that were ever in flight beyond grants.
    pub early_bytes_max: u64,
    /// The most bytes that were ever in flight on one lane.
    pub in_flight_max: u64,
}

/// One traced event: its texts and its numbers.
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
        matches!(metadata.target(), "landbridge::flight" | "landbridge::segments")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Trace {
    /// Records until the guards are dropped.
    pub fn listen(&self) -> (Dispatch, DefaultGuard) {
        listen(|| Dispatch::new(self.clone()))
    }

    /// Checks every packet against its lane's congestion window, within one packet and a probe.
    /// Checks every segment against its grant or the unsolicited window. No acknowledged segment is
    /// retransmitted.
    ///
    /// # Panics
    /// When one is outside.
    pub fn check(&self, unsolicited_window: u64, mtu: u64) -> Checked {
        let mut checked = Checked::default();
        let (mut granted, mut early) = (BTreeMap::new(), BTreeMap::<_, BTreeMap<_, u64>>::new());
        let (mut sent, mut receipted) = (BTreeSet::new(), BTreeSet::new());
        for line in self.0.lock().expect("no panic").iter() {
            let number = |name| line.numbers[name];
            if line.what.is_empty() {
                let (in_flight, window) = (number("in_flight"), number("window"));
                checked.packets += 1;
                checked.in_flight_max = checked.in_flight_max.max(in_flight);
                assert!(in_flight <= window + 3 * mtu, "{in_flight} in flight, window {window}");
                continue;
            }
            let tree = (number("group"), number("peer"), number("sequence"), number("tree"));
            let segment = number("segment");
            match line.what.as_str() {
                "granted" => {
                    let limit = granted.entry(tree).or_insert(0);
                    *limit = segment.max(*limit);
                }
                "sent" => {
                    checked.segments += 1;
                    assert!(sent.insert((tree, segment)), "sent twice: {line:?}");
                    let peer = early.entry(tree.1).or_default();
                    if segment >= granted.get(&tree).copied().unwrap_or(0) {
                        peer.insert((tree, segment), number("bytes"));
                    }
                    let under_way = peer.values().sum();
                    assert!(
                        under_way <= unsolicited_window,
                        "{under_way} bytes early, room {unsolicited_window}"
                    );
                    checked.early_bytes_max = checked.early_bytes_max.max(under_way);
                }
                "again" => {
                    assert!(sent.contains(&(tree, segment)), "never sent: {line:?}");
                    assert!(!receipted.contains(&(tree, segment)), "acknowledged: {line:?}");
                    checked.bytes_again += number("bytes");
                }
                "receipted" => {
                    receipted.insert((tree, segment));
                    early.entry(tree.1).or_default().remove(&(tree, segment));
                }
                what => panic!("{what}"),
            }
        }
        checked
    }
}
