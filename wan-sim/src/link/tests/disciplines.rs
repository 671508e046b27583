//! Queue disciplines and policers against their definitions.

use super::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// CoDel as the pseudo code of RFC 8289 has it, word for word; `None` for the time 0.
#[derive(Default)]
struct Pseudocode {
    queue: VecDeque<(usize, u64)>,
    first_above_time: Option<u64>,
    drop_next: u64,
    count: u64,
    lastcount: u64,
    dropping: bool,
}

const TARGET: u64 = 5_000_000;
const INTERVAL: u64 = 100_000_000;
const PACKET: u64 = 1000;

impl Pseudocode {
    fn control_law(&self, t: u64) -> u64 {
        t + (INTERVAL as f64 / (self.count as f64).sqrt()) as u64
    }

    fn dodequeue(&mut self, now: u64) -> (Option<usize>, bool) {
        let Some((packet, tstamp)) = self.queue.pop_front() else {
            self.first_above_time = None;
            return (None, false);
        };
        if now - tstamp < TARGET || self.queue.len() as u64 * PACKET <= PACKET {
            self.first_above_time = None;
        } else if self.first_above_time.is_none() {
            self.first_above_time = Some(now + INTERVAL);
        } else if self.first_above_time.is_some_and(|at| now >= at) {
            return (Some(packet), true);
        }
        (Some(packet), false)
    }

    fn deque(&mut self, now: u64, drops: &mut Vec<(usize, u64)>) -> Option<usize> {
        let (mut packet, mut ok_to_drop) = self.dodequeue(now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                drops.extend(packet.map(|packet| (packet, now)));
                self.count += 1;
                (packet, ok_to_drop) = self.dodequeue(now);
                if !ok_to_drop {
                    self.dropping = false;
                } else {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if ok_to_drop {
            drops.extend(packet.map(|packet| (packet, now)));
            (packet, _) = self.dodequeue(now);
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && (now as i64 - self.drop_next as i64) < 16 * INTERVAL as i64 {
                self.count = delta;
            }
            self.drop_next = self.control_law(now);
            self.lastcount = self.count;
        }
        packet
    }

    /// Serves a packet each millisecond; returns when each was sent, and the drops with their
    /// times.
    fn run(&mut self, arrivals: &[u64]) -> (Vec<Option<u64>>, Vec<(usize, u64)>) {
        let (mut sent, mut drops) = (vec![None; arrivals.len()], Vec::new());
        let (mut free, mut next) = (0, 0);
        loop {
            let due = self.queue.front().map(|(_, came)| free.max(*came));
            let arrival = arrivals.get(next).copied();
            let Some(now) = due.into_iter().chain(arrival).min() else { return (sent, drops) };
            if due.is_none_or(|due| now < due) {
                self.queue.push_back((next, now));
                next += 1;
                if free > now || self.queue.len() > 1 {
                    continue;
                }
            }
            if let Some(packet) = self.deque(now, &mut drops) {
                free = now + 1_000_000;
                sent[packet] = Some(free);
            }
        }
    }
}

/// A packet each `gap_us` for each phase; times avoid those at which packets leave.
fn phases(phases: &[(u64, u64)]) -> Vec<u64> {
    let mut now = 7;
    let mut arrivals = Vec::new();
    for (packets, gap_us) in phases {
        for _ in 0..*packets {
            arrivals.push(now);
            now += gap_us * 1000 + 1;
        }
    }
    arrivals
}

fn codel_link() -> EmulatedLink {
    let link = spec("8 Mbit/s", "0 ns").with_queue(ByteCount::new(100_000_000));
    EmulatedLink::new(link.with_discipline(Discipline::Codel(Codel::RECOMMENDED)).unwrap(), 1)
}

fn arrival_of(fate: Fate) -> Option<u64> {
    fate.delivery().map(|delivery| delivery.at.ns())
}

/// Arrivals and drops of packets of 1,000 bytes on a link under CoDel.
fn offer_to_codel(arrivals: &[u64]) -> (Vec<Option<u64>>, Vec<(usize, u64)>) {
    let mut link = codel_link();
    let mut sent = vec![None; arrivals.len()];
    let mut drops = Vec::new();
    for (index, now) in arrivals.iter().enumerate() {
        sent[index] = arrival_of(link.fate(*now, PACKET as u32));
    }
    while let Some(at) = link.next_decision() {
        for decided in link.take_decided(at) {
            let index = decided.packet.number as usize;
            sent[index] = arrival_of(decided.fate);
            if decided.fate == Fate::Drop(DropReason::Codel) {
                drops.push((index, decided.at.ns()));
            }
        }
    }
    (sent, drops)
}

#[test]
fn codel_drops_at_the_times_of_the_rfc() {
    // Overload, a pause that empties the queue, overload again soon, a long pause, overload.
    let arrivals = phases(&[(2000, 600), (600, 5000), (900, 500), (20, 200_000), (900, 700)]);
    let found = offer_to_codel(&arrivals);
    let expected = Pseudocode::default().run(&arrivals);
    assert!(expected.1.len() > 50, "{}", expected.1.len());
    assert_eq!(found, expected);
    // The intervals between the first drops: 100 ms over the square root of the count.
    let times: Vec<_> = found.1.iter().map(|(_, at)| *at as f64 / 1e6).collect();
    for (count, pair) in (1..20).zip(times.windows(2)) {
        let expected = 100.0 / f64::from(count).sqrt();
        assert!((pair[1] - pair[0] - expected).abs() <= 1.0, "{count}: {pair:?} {expected}");
    }
}

proptest! {
    #[test]
    fn codel_follows_the_rfc_whatever_comes(
        bursts in prop::collection::vec((1u64..400, 300u64..3000), 1..8),
    ) {
        let arrivals = phases(&bursts);
        prop_assert_eq!(offer_to_codel(&arrivals), Pseudocode::default().run(&arrivals));
    }
}

#[test]
fn codel_marks_where_packets_allow() {
    let mut link = codel_link();
    let events = events_of(&mut link);
    for now in phases(&[(1000, 600)]) {
        link.offer(ns(now), Packet::ecn_capable(1000));
    }
    let marks = link.take_decided(ns(u64::MAX / 2));
    let marks = marks.iter().filter_map(|decided| decided.fate.delivery()?.marked).count() as u64;
    let counters = link.counters();
    assert_eq!((counters.drops(), counters.marked_codel), (0, marks));
    assert!(marks > 5, "{marks}");
    let labels: Vec<_> = events.lock().unwrap().iter().map(|event| event.label).collect();
    assert_eq!(labels, vec![LinkEventLabel::Marked(MarkReason::Codel); marks as usize]);
}

/// Collects the events of a link.
pub(super) fn events_of(link: &mut EmulatedLink) -> Arc<Mutex<Vec<LinkEvent>>> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    link.send_events_to(move |event| sink.lock().unwrap().push(*event));
    events
}

#[test]
fn a_discipline_taken_away_lets_the_queue_out() {
    let mut link = codel_link();
    for now in 0..10 {
        link.fate(now, 1000);
    }
    let plain = spec("8 Mbit/s", "0 ns").with_queue(ByteCount::new(100_000_000));
    link.set_spec(ns(100), plain);
    // Behind those that wait.
    assert_eq!(link.fate(101, 1000), Fate::Queued);
    let decided = link.take_decided(ns(20_000_000));
    let arrivals: Vec<_> = decided.iter().filter_map(|decided| arrival_of(decided.fate)).collect();
    assert_eq!(arrivals, (2..=11).map(|ms| ms * 1_000_000).collect::<Vec<_>>());
    assert_eq!(link.next_decision(), None);
    assert_eq!(link.fate(20_000_000, 1000), at(21_000_000));
}

#[test]
fn packets_under_codel_are_sent_at_a_new_rate() {
    let mut link = codel_link();
    let fates: Vec<_> = (0..4).map(|_| link.fate(0, 1000)).collect();
    assert_eq!(fates, [at(1_000_000), Fate::Queued, Fate::Queued, Fate::Queued]);
    assert_eq!(link.next_decision(), Some(ns(1_000_000)));
    let fast = spec("16 Mbit/s", "0 ns").with_queue(ByteCount::new(100_000_000));
    let fast = fast.with_discipline(Discipline::Codel(Codel::RECOMMENDED)).unwrap();
    // The second is half sent, by a decision that nobody has taken yet.
    let moved = link.set_spec(ns(1_500_000), fast);
    let second = PacketName { number: 1, copy: false };
    assert_eq!(moved, [Moved { packet: second, at: ns(1_750_000) }]);
    let decided = link.take_decided(ns(3_000_000));
    let arrivals: Vec<_> = decided.iter().map(|decided| (decided.at.ns(), decided.fate)).collect();
    let expected =
        [(1_000_000, at(2_000_000)), (1_750_000, at(2_250_000)), (2_250_000, at(2_750_000))];
    assert_eq!(arrivals, expected);
}

const RED: Red = Red {
    min: ByteCount::new(20_000),
    max: ByteCount::new(40_000),
    probability: Fraction::from_ppb(100_000_000).unwrap(),
    weight: Fraction::from_ppb(1_000_000_000).unwrap(),
};

/// A link under RED with `level` waiting bytes just after time 0, when the first packet is sent.
fn red_link(level: u64, seed: u64) -> EmulatedLink {
    let plain = spec("8 Mbit/s", "0 ns").with_queue(ByteCount::new(200_000));
    let mut link = EmulatedLink::new(plain, seed);
    for _ in 0..=level / 1000 {
        link.fate(0, 1000);
    }
    link.set_spec(ns(0), plain.with_discipline(Discipline::Red(RED)).unwrap());
    assert_eq!(link.queue_bytes(ns(0)).get(), level);
    link
}

/// The share of drops where each packet since the last is dropped with RED's rising probability.
fn share_of_drops(base: f64) -> f64 {
    let (mut left, mut mean_gap) = (1.0, 0.0);
    for passed in 0.. {
        let drop = (base / (1.0 - f64::from(passed) * base).max(base)).min(1.0);
        mean_gap += left * drop * f64::from(passed + 1);
        left *= 1.0 - drop;
        if left < 1e-12 {
            break;
        }
    }
    1.0 / mean_gap
}

#[test]
fn red_drops_with_the_probability_of_its_curve() {
    let curve = [
        (0.0, 0.0),
        (19_999.0, 0.0),
        (20_000.0, 0.0),
        (30_000.0, 0.05),
        (40_000.0, 0.1),
        (60_000.0, 0.55),
        (80_000.0, 1.0),
        (1e9, 1.0),
    ];
    for (average, probability) in curve {
        assert!((RED.probability_at(average) - probability).abs() < 1e-9, "{average}");
    }
    for (level, base) in
        [(10_000, 0.0), (24_000, 0.02), (30_000, 0.05), (38_000, 0.09), (50_000, 0.325)]
    {
        let mut link = red_link(level, level);
        let (mut offered, mut dropped) = (0u32, 0u32);
        for ms in 0..20_000u64 {
            // One has left the queue, and one comes in: RED always sees the same length.
            let now = ms * 1_000_000;
            assert_eq!(link.queue_bytes(ns(now)).get(), level);
            loop {
                offered += 1;
                match link.fate(now, 1000) {
                    Fate::Drop(DropReason::Red) => dropped += 1,
                    Fate::Deliver(_) => break,
                    other => panic!("{other:?}"),
                }
            }
        }
        let share = f64::from(dropped) / f64::from(offered);
        let expected = if base > 0.0 { share_of_drops(base) } else { 0.0 };
        assert!((share - expected).abs() < 0.05 * expected + 1e-9, "{level}: {share} {expected}");
    }
}

#[test]
fn red_marks_below_twice_the_threshold_and_drops_above() {
    let capable = Packet::ecn_capable(1000);
    let mut link = red_link(50_000, 1);
    let events = events_of(&mut link);
    for _ in 0..10 {
        link.offer(ns(0), capable);
    }
    let counters = link.counters();
    assert_eq!(counters.drops(), 0);
    assert!(counters.marked_red > 0);
    let marked = events.lock().unwrap().len() as u64;
    assert_eq!(marked, counters.marked_red);
    let mut full = red_link(90_000, 1);
    assert_eq!(full.offer(ns(0), capable).fate, Fate::Drop(DropReason::Red));
    assert_eq!(full.counters().drops_red, 1);
}

#[test]
fn red_forgets_a_queue_while_nothing_comes() {
    let plain = spec("8 Mbit/s", "0 ns").with_queue(ByteCount::new(200_000));
    let slow = Red { weight: percent(1), ..RED };
    let mut link = EmulatedLink::new(plain.with_discipline(Discipline::Red(slow)).unwrap(), 1);
    let mut now = 0;
    while link.counters().drops_red == 0 {
        now += 500_000;
        link.fate(now, 1000);
    }
    // Idle for as long as hundreds of packets take, the average is near nothing.
    now += 2_000_000_000;
    for i in 0..20 {
        assert!(link.fate(now + i, 1000).delivery().is_some());
    }
}

proptest! {
    #[test]
    fn no_window_passes_more_than_a_policer_allows(
        kbits in 100u64..100_000,
        burst in 1500u64..50_000,
        gaps in prop::collection::vec((0u64..5_000_000, 40u32..1500), 1..200),
    ) {
        let rate = BitRate::from_bits_per_second(kbits * 1000);
        let policer = Policer { rate, burst: ByteCount::new(burst) };
        let policed = LinkSpec::unlimited(Span::ZERO).unwrap().with_policer(policer).unwrap();
        let mut link = EmulatedLink::new(policed, 1);
        let (mut now, mut passed) = (0, Vec::new());
        for (gap, bytes) in gaps {
            now += gap;
            match link.fate(now, bytes) {
                Fate::Deliver(delivery) => {
                    prop_assert_eq!(delivery.at, ns(now));
                    passed.push((now, u64::from(bytes)));
                }
                fate => prop_assert_eq!(fate, Fate::Drop(DropReason::Policer)),
            }
        }
        for (start, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (until, bytes) in &passed[start..] {
                sum += bytes;
                let most = u128::from(until - from) * u128::from(kbits) / 8_000_000;
                prop_assert!(u128::from(sum) <= most + 1 + u128::from(burst));
            }
        }
    }
}

#[test]
fn a_policer_passes_its_rate_and_one_burst() {
    // 10 Mbit/s and 20,000 bytes; offered: 40 Mbit/s in packets of 100 bytes, for 10 s.
    let policed = link_in_words("policer 10mbit 20kB limit none");
    let mut link = EmulatedLink::new(policed, 1);
    let flood = (0..500_000u64).filter(|i| link.fate(i * 20_000, 100).delivery().is_some());
    let bytes = flood.count() as u64 * 100;
    assert!(bytes.abs_diff(12_500_000 + 20_000) <= 100, "{bytes}");
    let counters = link.counters();
    assert_eq!(counters.drops_policer * 100 + bytes, counters.ip_bytes);
}

fn link_in_words(words: &str) -> LinkSpec {
    words.parse::<crate::netem::Netem>().unwrap().link
}
