//! What is to go to one peer. Lanes pull from it; a lane that is slow pulls less, and what a
//! dead lane held goes back.

use crate::memory::arena::MemSlice;
use crate::wan::pacing::pacer::{FIRST, LAST};
use hier_collectives::ids::{GroupId, Sequence};
use hier_collectives::session::{Tail, Turn};
use hier_collectives::size_class::SizeClass;
use hier_collectives::wire::{SegmentHeader, SegmentKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Names a lane's connection; never used twice in a process.
pub type ConnectionId = u64;

/// A segment to be sent.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The group it belongs to.
    pub group: GroupId,
    /// What goes ahead of the bytes.
    pub header: SegmentHeader,
    /// The bytes.
    pub payload: MemSlice,
    /// When it goes, among others of its group.
    pub turn: Turn,
    /// The parity that it has if little enough follows it.
    pub tail: Tail,
    /// Its place among the segments under way: [`FIRST`] if small, or the order in which they were
    /// pulled.
    pub order: u64,
    /// Whether it was handed to a lane before.
    pub again: bool,
    /// Stops the stream.
    pub cancel: CancellationToken,
    /// Whoever writes the stream is done with it: it is handed over, reset, or lost.
    pub released: CancellationToken,
}

/// Which kind of segment a puller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Of an operation that does not wait behind others.
    Small,
    /// Of any other.
    Bulk,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    state: Mutex<State>,
    arrived: Notify,
}

/// Bytes that the heaviest of those who wait may send each time its turn comes round, so that a turn
/// is over soon, and bytes of small segments that a group of weight 1 may have gone ahead.
const QUANTUM_BYTES: u64 = 256 << 10;

/// A segment of some group.
pub type Key = (GroupId, SegmentKey);

#[derive(Debug)]
struct State {
    weights: BTreeMap<GroupId, NonZeroU32>,
    small: Fair,
    bulk: Fair,
    /// Bytes that went ahead of other groups' bulk, paid back with turns; below zero what turns
    /// left to small segments that wait.
    ahead: BTreeMap<GroupId, i64>,
    flights: BTreeMap<Key, Flight>,
    /// Segments handed to lanes so far.
    pulled: u64,
}

/// Segments of one class. Groups share by deficit round-robin; within a group the smallest
/// class and then the lowest collective goes first, whatever the epoch: sequences grow through all.
#[derive(Debug, Default)]
struct Fair {
    queues: BTreeMap<GroupId, BTreeMap<Order, Outgoing>>,
    /// Groups with something queued or to pay back, the next first, and what each may still send.
    turns: VecDeque<(GroupId, u64)>,
}

/// What goes first: the smaller class, the lower collective, then what is less far into its tree.
type Order = (SizeClass, Sequence, u32, SegmentKey);

#[derive(Debug)]
struct Flight {
    connection: ConnectionId,
    outgoing: Outgoing,
    /// Kept until the receipt, so that a cancel can still reset it.
    stream: Option<quinn::SendStream>,
}

impl Outbox {
    /// An empty outbox for groups of these weights.
    pub fn new(weights: BTreeMap<GroupId, NonZeroU32>) -> Self {
        let (small, bulk) = (Fair::default(), Fair::default());
        let (ahead, flights) = (BTreeMap::new(), BTreeMap::new());
        let state = State { weights, small, bulk, ahead, flights, pulled: 0 };
        Self { state: Mutex::new(state), arrived: Notify::new() }
    }

    /// Queues a segment. Its parity is for the pull to say.
    pub fn push(
        &self,
        group: GroupId,
        (header, turn, tail): (SegmentHeader, Turn, Tail),
        payload: MemSlice,
    ) {
        let (cancel, released) = (CancellationToken::new(), CancellationToken::new());
        self.lock().put(Outgoing {
            group,
            header,
            payload,
            turn,
            tail,
            order: LAST,
            again: false,
            cancel,
            released,
        });
        self.arrived.notify_waiters();
    }

    /// A group's control messages took so many bytes: a part of its share. Messages that are passed
    /// on may be of groups that have none here.
    pub fn charge(&self, group: GroupId, bytes: u64) {
        let mut state = self.lock();
        if state.weights.contains_key(&group) {
            state.went_ahead(group, bytes);
        }
    }

    /// Waits until there is a segment of a class.
    pub async fn ready(&self, class: Class) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if self.lock().has(class) {
                return;
            }
            arrived.await;
        }
    }

    /// The next segment of a class, if there is one. Its bytes are this connection's to send
    /// until the receipt.
    pub fn pull(&self, class: Class, connection: ConnectionId) -> Option<Outgoing> {
        let mut state = self.lock();
        let taken = state.take(class, connection);
        drop(state);
        if class == Class::Bulk {
            // It may have paid for small ones.
            self.arrived.notify_waiters();
        }
        taken
    }

    /// The segment's stream is written whole.
    pub fn written(
        &self,
        key: Key,
        connection: ConnectionId,
        mut stream: quinn::SendStream,
        cancel: &CancellationToken,
    ) {
        let mut state = self.lock();
        match state.flights.get_mut(&key) {
            Some(flight) if flight.connection == connection => flight.stream = Some(stream),
            _ if cancel.is_cancelled() => {
                let _ = stream.reset(crate::wan::CANCELLED.into());
            }
            // Receipted already, or another lane's by now.
            _ => {}
        }
    }

    /// The peer has the segment.
    pub fn receipted(&self, key: Key) {
        let mut state = self.lock();
        let flight = state.flights.remove(&key);
        let forgot = state.forget(key.0, |queued| *queued == key.1);
        drop(state);
        if forgot {
            self.arrived.notify_waiters();
        }
        // What the receiver restored need not be sent again, nor what came over a lost lane after all.
        let is_needless =
            |flight: &Flight| flight.outgoing.header.parity > 0 || flight.stream.is_none();
        if let Some(flight) = flight.filter(is_needless) {
            flight.stop();
        }
    }

    /// Nothing more of this collective may leave. Returns what fires once those who are just
    /// writing streams of it have stopped: until then the memory is read.
    pub fn cancel(&self, group: GroupId, sequence: Sequence) -> Vec<CancellationToken> {
        let mut state = self.lock();
        state.forget(group, |queued| queued.sequence == sequence);
        let of_it = |key: &Key| key.0 == group && key.1.sequence == sequence;
        let ended: Vec<_> = state.flights.extract_if(.., |key, _| of_it(key)).collect();
        drop(state);
        self.arrived.notify_waiters();
        let writing = ended.iter().filter(|(_, flight)| flight.stream.is_none());
        let writing = writing.map(|(_, flight)| flight.outgoing.released.clone()).collect();
        for (_, flight) in ended {
            flight.stop();
        }
        writing
    }

    /// A lane is gone: what it had not delivered goes again. Returns how many bytes.
    pub fn requeue(&self, connection: ConnectionId) -> u64 {
        let mut state = self.lock();
        let lost: Vec<_> =
            state.flights.extract_if(.., |_, flight| flight.connection == connection).collect();
        let mut bytes = 0;
        for (_, flight) in lost {
            bytes += flight.outgoing.payload.len();
            let (cancel, released) = (CancellationToken::new(), CancellationToken::new());
            state.put(Outgoing { again: true, cancel, released, ..flight.outgoing });
        }
        drop(state);
        self.arrived.notify_waiters();
        bytes
    }

    /// The peer is gone, and the epochs with it.
    pub fn clear(&self) {
        let mut state = self.lock();
        (state.small, state.bulk) = (Fair::default(), Fair::default());
        state.ahead.clear();
        let ended = std::mem::take(&mut state.flights);
        drop(state);
        ended.into_values().for_each(Flight::stop);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, outgoing: Outgoing) {
        if outgoing.turn.class == SizeClass::Small { &mut self.small } else { &mut self.bulk }
            .put(outgoing);
    }

    fn has(&self, class: Class) -> bool {
        match class {
            Class::Small => self.small.waiting().any(|group| !self.is_held_back(group)),
            Class::Bulk => self.bulk.waiting().next().is_some(),
        }
    }

    /// Whether a group's small segments went so far ahead of its share, by a turn, that they wait
    /// for others' bulk: a job of many small operations could starve all others.
    fn is_held_back(&self, group: GroupId) -> bool {
        let ahead = self.ahead.get(&group).copied().unwrap_or(0);
        ahead >= (QUANTUM_BYTES * self.weight(group)) as i64 && self.others_have_bulk(group)
    }

    fn weight(&self, group: GroupId) -> u64 {
        weight(&self.weights, group)
    }

    fn others_have_bulk(&self, group: GroupId) -> bool {
        self.bulk.waiting().any(|other| other != group)
    }

    fn take(&mut self, class: Class, connection: ConnectionId) -> Option<Outgoing> {
        let mut outgoing = match class {
            Class::Small => self.take_small()?,
            Class::Bulk => self.take_bulk()?,
        };
        self.pulled += 1;
        outgoing.order = if class == Class::Small { FIRST } else { self.pulled };
        if !outgoing.again {
            outgoing.header.parity = self.parity(&outgoing);
        }
        let flight = Flight { connection, outgoing: outgoing.clone(), stream: None };
        self.flights.insert((outgoing.group, outgoing.header.key), flight);
        Some(outgoing)
    }

    /// Shards of parity for the next of its group: losses of what much follows are made good while
    /// that is under way. What it goes ahead of, though it was posted later, ends without it.
    fn parity(&self, next: &Outgoing) -> u16 {
        let Tail { parity, room } = next.tail;
        if parity == 0 {
            return 0;
        }
        let fairs = [&self.small, &self.bulk].into_iter();
        let queues = fairs.filter_map(|fair| fair.queues.get(&next.group));
        let queued: Vec<&Outgoing> = queues.flat_map(BTreeMap::values).collect();
        let flights = self.flights.iter().filter(|((group, _), _)| *group == next.group);
        let gone = flights.map(|(_, flight)| &flight.outgoing);
        let bytes_of = |some: &mut dyn Iterator<Item = &Outgoing>| -> u64 {
            some.map(|outgoing| outgoing.payload.len()).sum()
        };
        // Of what a lost lane had, the receiver may hold a part.
        let repaired = gone.chain(queued.iter().copied()).filter(|one| one.header.parity > 0);
        let used = bytes_of(&mut repaired.into_iter());
        let behind = |one: &&Outgoing| one.header.key.sequence >= next.header.key.sequence;
        let follow = bytes_of(&mut queued.iter().copied().filter(behind));
        if follow < room && used + next.payload.len() <= room { parity } else { 0 }
    }

    fn take_bulk(&mut self) -> Option<Outgoing> {
        if !self.has(Class::Bulk) {
            return None;
        }
        let small: BTreeSet<_> = self.small.waiting().collect();
        let heaviest = self.heaviest(&self.bulk);
        let mut turn = |group, waits: bool| {
            let quantum = quantum(weight(&self.weights, group), heaviest);
            let ahead = self.ahead.entry(group).or_default();
            let paid = match waits {
                true => (*ahead).clamp(0, quantum as i64),
                false if small.contains(&group) => quantum as i64,
                false if *ahead <= 0 => {
                    self.ahead.remove(&group);
                    return None;
                }
                false => (*ahead).min(quantum as i64),
            };
            *ahead -= paid;
            Some(quantum - paid as u64)
        };
        self.bulk.take(&mut turn)
    }

    fn take_small(&mut self) -> Option<Outgoing> {
        if !self.has(Class::Small) {
            return None;
        }
        let held: Vec<_> = self.small.waiting().filter(|group| self.is_held_back(*group)).collect();
        let turns = self.small.turns.iter_mut().filter(|(group, _)| held.contains(group));
        turns.for_each(|(_, deficit)| *deficit = 0);
        let heaviest = self.heaviest(&self.small);
        let outgoing = self.small.take(&mut |group, waits| {
            let quantum = quantum(weight(&self.weights, group), heaviest);
            waits.then_some(if held.contains(&group) { 0 } else { quantum })
        })?;
        self.went_ahead(outgoing.group, outgoing.payload.len());
        Some(outgoing)
    }

    /// The weight of the heaviest whose turn comes.
    fn heaviest(&self, fair: &Fair) -> u64 {
        fair.turns.iter().map(|(group, _)| self.weight(*group)).max().unwrap_or(1)
    }

    fn went_ahead(&mut self, group: GroupId, bytes: u64) {
        if self.others_have_bulk(group) {
            *self.ahead.entry(group).or_default() += bytes as i64;
            self.bulk.enlist(group);
        }
    }

    /// Whether there was such a one in a queue.
    fn forget(&mut self, group: GroupId, which: impl Fn(&SegmentKey) -> bool) -> bool {
        let mut forgot = false;
        for fair in [&mut self.small, &mut self.bulk] {
            if let Some(queue) = fair.queues.get_mut(&group) {
                let before = queue.len();
                queue.retain(|(_, _, _, key), _| !which(key));
                forgot |= queue.len() < before;
            }
        }
        forgot
    }
}

fn weight(weights: &BTreeMap<GroupId, NonZeroU32>, group: GroupId) -> u64 {
    weights.get(&group).map_or(1, |weight| weight.get().into())
}

/// What a group may send each time its turn comes round.
fn quantum(weight: u64, heaviest: u64) -> u64 {
    (QUANTUM_BYTES * weight / heaviest).max(1)
}

impl Fair {
    fn put(&mut self, outgoing: Outgoing) {
        let group = outgoing.group;
        self.enlist(group);
        let key = outgoing.header.key;
        let order = (outgoing.turn.class, key.sequence, outgoing.turn.depth, key);
        self.queues.entry(group).or_default().insert(order, outgoing);
    }

    fn enlist(&mut self, group: GroupId) {
        if self.turns.iter().all(|(waiting, _)| *waiting != group) {
            self.turns.push_back((group, 0));
        }
    }

    /// Groups with something queued.
    fn waiting(&self) -> impl Iterator<Item = GroupId> {
        self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(group, _)| *group)
    }

    /// The next segment. `turn` says what a group may send more when its turn has come, with
    /// something queued here or not; `None` ends its turns.
    fn take(&mut self, turn: &mut dyn FnMut(GroupId, bool) -> Option<u64>) -> Option<Outgoing> {
        while let Some((group, deficit)) = self.turns.front_mut() {
            let first = self.queues.get_mut(group).and_then(BTreeMap::first_entry);
            let waits = first.is_some();
            if let Some(first) = first.filter(|first| *deficit >= first.get().payload.len()) {
                *deficit -= first.get().payload.len();
                return Some(first.remove());
            }
            match turn(*group, waits) {
                Some(more) if waits => *deficit += more,
                // Nothing is saved up.
                Some(_) => *deficit = 0,
                None => {
                    self.turns.pop_front();
                    continue;
                }
            }
            self.turns.rotate_left(1);
        }
        None
    }
}

impl Flight {
    fn stop(self) {
        self.outgoing.cancel.cancel();
        if let Some(mut stream) = self.stream {
            // Already finished and acknowledged is as good.
            let _ = stream.reset(crate::wan::CANCELLED.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use hier_collectives::ids::{Epoch, SegmentIndex, TreeIndex};
    use std::task::{Context, Waker};

    const MIB: u32 = 1 << 20;
    const SMALL: u32 = 64 << 10;

    fn outbox(weights: &[(u64, u32)]) -> Outbox {
        let weight = |(group, weight): &(u64, u32)| {
            (GroupId(*group), NonZeroU32::new(*weight).expect("a weight"))
        };
        Outbox::new(weights.iter().map(weight).collect())
    }

    fn push(outbox: &Outbox, group: u64, segment: u32, bytes: u32) {
        push_tail(outbox, group, (segment, bytes), Tail::default());
    }

    fn push_tail(outbox: &Outbox, group: u64, (segment, bytes): (u32, u32), tail: Tail) {
        push_of(outbox, GroupId(group), (1, segment, bytes), tail);
    }

    fn push_of(
        outbox: &Outbox,
        group: GroupId,
        (sequence, segment, bytes): (u64, u32, u32),
        tail: Tail,
    ) {
        let arena = Arena::anonymous(u64::from(bytes)).expect("memory");
        let (sequence, segment) = (Sequence(sequence), SegmentIndex(segment));
        let key = SegmentKey { sequence, tree: TreeIndex(0), segment };
        let header =
            SegmentHeader { epoch: Epoch(1), key, bytes, digest: 0, weight: 1.0, parity: 0 };
        let turn = Turn { class: SizeClass::of(bytes.into()), depth: 0 };
        outbox.push(group, (header, turn, tail), arena.whole());
    }

    fn pulled(outbox: &Outbox, count: usize) -> Vec<(u64, u64)> {
        let next = |_| outbox.lock().take(Class::Bulk, 1).expect("queued");
        let pulls = (0..count).map(next);
        pulls.map(|outgoing| (outgoing.group.0, outgoing.payload.len())).collect()
    }

    fn share(pulls: &[(u64, u64)], group: u64) -> u64 {
        pulls.iter().filter(|(of, _)| *of == group).map(|(_, bytes)| bytes).sum()
    }

    #[test]
    fn groups_share_by_weight_whatever_their_segments() {
        for (weights, sizes) in
            [((1, 1), (MIB, MIB)), ((3, 1), (MIB, MIB)), ((3, 1), (MIB, 4 * MIB))]
        {
            let outbox = outbox(&[(7, weights.0), (8, weights.1)]);
            for segment in 0..200 {
                push(&outbox, 7, segment, sizes.0);
                push(&outbox, 8, segment, sizes.1);
            }
            let pulls = pulled(&outbox, 120);
            let (left, right) = (share(&pulls, 7) as f64, share(&pulls, 8) as f64);
            let (expected, actual) = (f64::from(weights.0) / f64::from(weights.1), left / right);
            let off = (actual / expected - 1.0).abs();
            assert!(off < 0.08, "{weights:?} {sizes:?}: {actual}, {expected} expected");
        }
    }

    /// A turn of the heavier is no longer than of any other, in bytes: the lighter one moves all along.
    #[test]
    fn a_light_group_does_not_wait_long_for_a_heavy_one() {
        let outbox = outbox(&[(7, 1000), (8, 1)]);
        (0..4100).for_each(|segment| push(&outbox, 7, segment, MIB));
        (0..4).for_each(|segment| push(&outbox, 8, segment, MIB));
        let pulls = pulled(&outbox, 4004);
        let places: Vec<_> = (0..).zip(&pulls).filter(|(_, pull)| pull.0 == 8).collect();
        let gaps: Vec<u32> = places.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(places[0].0 <= 1010, "{places:?}");
        assert!(gaps.iter().all(|gap| (950..1050).contains(gap)), "{gaps:?}");
    }

    #[test]
    fn a_group_alone_has_all_and_saves_nothing_up() {
        let outbox = outbox(&[(7, 1), (8, 1)]);
        for segment in 0..100 {
            push(&outbox, 7, segment, MIB);
        }
        assert_eq!(share(&pulled(&outbox, 50), 7), 50 << 20);
        for segment in 0..40 {
            push(&outbox, 8, segment, MIB);
        }
        let pulls = pulled(&outbox, 20);
        assert!((9..=11).contains(&(share(&pulls, 8) >> 20)), "{pulls:?}");
    }

    /// Group 7 posts small operations without end, group 8 bulk.
    #[test]
    fn small_segments_of_one_group_do_not_starve_the_bulk_of_another() {
        for weights in [(1, 1), (3, 1), (1, 3)] {
            let outbox = outbox(&[(7, weights.0), (8, weights.1)]);
            (0..3500).for_each(|segment| push(&outbox, 7, segment, SMALL));
            (0..100).for_each(|segment| push(&outbox, 8, segment, MIB));
            let mut pulls = Vec::new();
            while share(&pulls, 8) < 60 << 20 {
                // As lanes do: small ones as long as there are any that may go.
                let next = outbox.pull(Class::Small, 1).or_else(|| outbox.pull(Class::Bulk, 1));
                let next = next.expect("queued");
                assert_eq!(next.order == FIRST, next.group == GroupId(7));
                pulls.push((next.group.0, next.payload.len()));
            }
            let (small, bulk) = (share(&pulls, 7) as f64, share(&pulls, 8) as f64);
            let (expected, actual) = (f64::from(weights.0) / f64::from(weights.1), small / bulk);
            let off = (actual / expected - 1.0).abs();
            assert!(off < 0.08, "{weights:?}: {actual}, {expected} expected");
        }
    }

    #[test]
    fn small_segments_of_a_group_alone_go_before_all_its_bulk() {
        let outbox = outbox(&[(7, 1), (8, 1)]);
        (0..100).for_each(|segment| push(&outbox, 7, segment, MIB));
        (100..1100).for_each(|segment| push(&outbox, 7, segment, SMALL));
        for _ in 0..1000 {
            outbox.pull(Class::Small, 1).expect("a small one");
        }
        // And what another has to send finds no debt.
        push(&outbox, 8, 0, MIB);
        push(&outbox, 7, 2000, SMALL);
        outbox.pull(Class::Small, 1).expect("a small one");
    }

    #[test]
    fn who_waits_for_a_small_one_wakes_once_bulk_has_paid() {
        let mut context = Context::from_waker(Waker::noop());
        let outbox = outbox(&[(7, 1), (8, 1)]);
        (0..10).for_each(|segment| push(&outbox, 7, segment, SMALL));
        (0..10).for_each(|segment| push(&outbox, 8, segment, MIB));
        while outbox.pull(Class::Small, 1).is_some() {}
        let mut waits = Box::pin(outbox.ready(Class::Small));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        outbox.pull(Class::Bulk, 1).expect("queued");
        assert!(waits.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn what_went_ahead_is_forgotten_with_the_peer() {
        let outbox = outbox(&[(7, 1), (8, 1)]);
        (0..10).for_each(|segment| push(&outbox, 7, segment, SMALL));
        (0..10).for_each(|segment| push(&outbox, 8, segment, MIB));
        while outbox.pull(Class::Small, 1).is_some() {}
        outbox.clear();
        push(&outbox, 7, 20, SMALL);
        push(&outbox, 8, 20, MIB);
        assert!(outbox.pull(Class::Small, 1).is_some());
    }

    /// Ten segments, the last five of which may have parity: as many as there is room for.
    fn with_tail(outbox: &Outbox, first: u32) {
        for index in 0..10 {
            let tail = Tail { parity: 4, room: u64::from(5 * MIB) };
            let tail = if index < 5 { Tail::default() } else { tail };
            push_tail(outbox, 7, (first + index, MIB), tail);
        }
    }

    fn parities(outbox: &Outbox, count: usize) -> Vec<u16> {
        let next = |_| outbox.pull(Class::Bulk, 1).expect("queued").header.parity;
        (0..count).map(next).collect()
    }

    #[test]
    fn only_what_little_follows_has_parity() {
        let outbox = outbox(&[(7, 1)]);
        with_tail(&outbox, 0);
        assert_eq!(parities(&outbox, 6), [0, 0, 0, 0, 0, 4]);
        // Of the four that are left five more follow the last.
        (10..15).for_each(|segment| push(&outbox, 7, segment, MIB));
        assert_eq!(parities(&outbox, 9), [0; 9]);
    }

    #[test]
    fn what_goes_ahead_of_bulk_that_was_posted_earlier_keeps_its_parity() {
        let outbox = outbox(&[(7, 1)]);
        (0..10).for_each(|segment| push(&outbox, 7, segment, MIB));
        let tail = Tail { parity: 4, room: u64::from(5 * MIB) };
        push_of(&outbox, GroupId(7), (2, 0, SMALL), tail);
        assert_eq!(outbox.pull(Class::Small, 1).expect("queued").header.parity, 4);
    }

    #[test]
    fn parity_has_as_much_room_as_was_said_until_receipts_come() {
        let outbox = outbox(&[(7, 1)]);
        with_tail(&outbox, 0);
        assert_eq!(parities(&outbox, 10)[5..], [4; 5]);
        with_tail(&outbox, 10);
        assert_eq!(parities(&outbox, 6), [0; 6]);
        let key = |segment| SegmentKey {
            sequence: Sequence(1),
            tree: TreeIndex(0),
            segment: SegmentIndex(segment),
        };
        [0, 8, 9].iter().for_each(|segment| outbox.receipted((GroupId(7), key(*segment))));
        assert_eq!(parities(&outbox, 4), [4, 4, 0, 0]);
    }

    #[test]
    fn what_a_lost_lane_had_goes_again_as_it_was() {
        let outbox = outbox(&[(7, 1)]);
        with_tail(&outbox, 0);
        parities(&outbox, 10);
        outbox.requeue(1);
        // What goes ahead of them finds their room taken.
        let tail = Tail { parity: 4, room: u64::from(5 * MIB) };
        push_of(&outbox, GroupId(7), (2, 0, SMALL), tail);
        assert_eq!(outbox.pull(Class::Small, 1).expect("queued").header.parity, 0);
        assert_eq!(parities(&outbox, 10), [0, 0, 0, 0, 0, 4, 4, 4, 4, 4]);
    }

    /// A lane's thread may be in the middle of a pull when another connection replaces its own.
    #[test]
    fn what_a_lane_pulls_after_it_was_replaced_goes_again_once_it_has_ended() {
        let outbox = outbox(&[(7, 1)]);
        push(&outbox, 7, 0, MIB);
        assert_eq!(outbox.requeue(1), 0);
        outbox.pull(Class::Bulk, 1).expect("queued");
        assert!(outbox.pull(Class::Bulk, 2).is_none());
        outbox.requeue(1);
        assert!(outbox.pull(Class::Bulk, 2).expect("queued").again);
    }

    /// It came over a lane that was taken for lost; nobody reads the slot once all is receipted.
    #[test]
    fn a_receipt_ends_what_is_still_being_written() {
        let outbox = outbox(&[(7, 1)]);
        push(&outbox, 7, 0, MIB);
        outbox.pull(Class::Bulk, 1).expect("queued");
        outbox.requeue(1);
        let again = outbox.pull(Class::Bulk, 2).expect("queued");
        outbox.receipted((GroupId(7), again.header.key));
        assert!(again.cancel.is_cancelled());
    }

    #[test]
    fn messages_that_are_passed_on_for_strange_groups_cost_those_here_nothing() {
        let outbox = outbox(&[(7, 1)]);
        push(&outbox, 7, 0, MIB);
        (100..200).for_each(|group| outbox.charge(GroupId(group), 1 << 20));
        let state = outbox.lock();
        assert!(state.ahead.is_empty() && state.bulk.turns.len() == 1, "{state:?}");
    }

    #[test]
    fn a_cancelled_collective_of_one_group_leaves_the_other_alone() {
        let outbox = outbox(&[(7, 1), (8, 1)]);
        push(&outbox, 7, 0, MIB);
        push(&outbox, 8, 0, MIB);
        outbox.cancel(GroupId(7), Sequence(1));
        assert_eq!(pulled(&outbox, 1), [(8, 1 << 20)]);
        assert_eq!(outbox.requeue(1), 1 << 20);
        assert_eq!(pulled(&outbox, 1), [(8, 1 << 20)]);
        let key =
            SegmentKey { sequence: Sequence(1), tree: TreeIndex(0), segment: SegmentIndex(0) };
        outbox.receipted((GroupId(8), key));
        assert_eq!(outbox.requeue(1), 0);
    }
}
