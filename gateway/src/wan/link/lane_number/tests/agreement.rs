//! Two ends whose wishes and ends of lanes arrive late: they agree, and neither waits forever.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// 1,200 samples of 100 ms: three lanes in a row have earned nothing for 30 s each.
const SETTLING_SAMPLES: u32 = 1200;

/// One connection of a lane, as both ends see it. The first end dials.
#[derive(Debug, Default)]
struct Connection {
    /// Whether each end has segments on it without a receipt.
    has_pulled: [bool; 2],
    /// Whether each end has ended its control stream.
    finished: [bool; 2],
    /// Whether each end has heard that the other did.
    heard: [bool; 2],
}

/// Two gateways, and what is under way between them.
struct Pair {
    ends: [End; 2],
    lanes: BTreeMap<u16, Connection>,
    /// Wishes under way to each end, in any order.
    wishes: [Vec<LinkLaneWishMessage>; 2],
    told: [u64; 2],
}

/// An event at one of the ends.
#[derive(Debug, Clone)]
enum Step {
    /// A sample at an end, with this demand.
    Sample { end: usize, busy: bool, rate: u8 },
    /// One of the wishes under way to an end arrives, or is lost with its lane and repeated.
    Wish { end: usize, which: usize },
    /// The end of a control stream arrives.
    Finish { end: usize, lane: u16 },
    /// An end pulls a segment on a lane, or has its receipt.
    Segment { end: usize, lane: u16, pulls: bool },
    /// The dialler opens lanes in use, and closes those that both ends have finished.
    Dial,
}

impl Pair {
    fn new() -> Self {
        let acceptor = LaneNumberTerms { dials: false, ..terms(1, 3) };
        let ends = [End::new(terms(1, 4)), End::new(acceptor)];
        let lanes = BTreeMap::from([(0, Connection::default())]);
        Self { ends, lanes, wishes: [Vec::new(), Vec::new()], told: [0, 0] }
    }

    /// Returns the lanes that an end may send on: it has not finished them, and the other has not.
    fn kept(&self, end: usize) -> BTreeSet<u16> {
        let in_use = self.ends[end].number.in_use();
        let kept = self.lanes.iter().filter(|(lane, connection)| {
            **lane < in_use && !connection.finished[end] && !connection.heard[end]
        });
        kept.map(|(lane, _)| *lane).collect()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Sample { end, busy, rate } => self.sample(end, busy, rate),
            Step::Wish { end, which } => {
                if !self.wishes[end].is_empty() {
                    let at = which % self.wishes[end].len();
                    let wish = self.wishes[end].swap_remove(at);
                    self.ends[end].number.note_wish(wish);
                }
            }
            Step::Finish { end, lane } => {
                if let Some(connection) = self.lanes.get_mut(&lane) {
                    connection.heard[end] |= connection.finished[1 - end];
                }
            }
            Step::Segment { end, lane, pulls } => {
                let may_pull = self.kept(end).contains(&lane);
                if let Some(connection) = self.lanes.get_mut(&lane) {
                    assert!(!(connection.finished[end] && connection.has_pulled[end]));
                    connection.has_pulled[end] = pulls && may_pull;
                }
            }
            Step::Dial => {
                let in_use = self.ends[0].number.in_use().min(3);
                self.lanes.retain(|_, connection| !(connection.finished[0] && connection.heard[0]));
                for lane in 0..in_use {
                    self.lanes.entry(lane).or_default();
                }
            }
        }
    }

    /// A sample of an end: its number may change, and it finishes lanes as the engine does.
    fn sample(&mut self, end: usize, busy: bool, rate: u8) {
        let this = &mut self.ends[end];
        (this.sample.waiting, this.sample.busiest) = (busy, if busy { 1.0 } else { 0.1 });
        this.pass(1, |lanes| f64::from(rate) * MB * f64::from(lanes));
        let wish = this.number.wish();
        if wish.number != self.told[end] {
            self.told[end] = wish.number;
            self.wishes[1 - end].push(wish);
        }
        let kept = self.kept(end);
        for (lane, connection) in &mut self.lanes {
            if !kept.is_empty() && !kept.contains(lane) && !connection.has_pulled[end] {
                connection.finished[end] = true;
            }
        }
    }

    /// Lets all that is under way arrive, without demand and without further loss.
    fn settle(&mut self) {
        for _ in 0..SETTLING_SAMPLES {
            for end in [0, 1] {
                self.sample(end, false, 0);
                while !self.wishes[end].is_empty() {
                    self.step(&Step::Wish { end, which: 0 });
                }
                for lane in 0..4 {
                    self.step(&Step::Segment { end, lane, pulls: false });
                    self.step(&Step::Finish { end, lane });
                }
            }
            self.step(&Step::Dial);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => (0..2usize, any::<bool>(), 20..60u8)
            .prop_map(|(end, busy, rate)| Step::Sample { end, busy, rate }),
        2 => (0..2usize, any::<usize>()).prop_map(|(end, which)| Step::Wish { end, which }),
        2 => (0..2usize, 0..4u16).prop_map(|(end, lane)| Step::Finish { end, lane }),
        4 => (0..2usize, 0..4u16, any::<bool>())
            .prop_map(|(end, lane, pulls)| Step::Segment { end, lane, pulls }),
        2 => Just(Step::Dial),
    ];
    proptest::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn both_ends_agree_and_no_lane_waits_forever(steps in steps(), busy in 0..2usize) {
        let mut pair = Pair::new();
        // One end is busy for a while, so that lanes are added.
        (0..60).for_each(|_| pair.sample(busy, true, 30));
        steps.iter().for_each(|step| pair.step(step));
        pair.settle();
        let numbers = pair.ends.each_ref().map(|end| end.number.in_use());
        prop_assert_eq!(numbers, [1, 1]);
        prop_assert_eq!(pair.lanes.keys().copied().collect::<Vec<_>>(), [0]);
        prop_assert!(!pair.lanes[&0].finished.contains(&true), "{:?}", pair.lanes);
    }
}

#[test]
fn the_larger_wish_that_both_can_have_is_in_use() {
    let mut pair = Pair::new();
    (0..11).for_each(|_| pair.sample(0, true, 30));
    assert_eq!(pair.ends.each_ref().map(|end| end.number.in_use()), [2, 1]);
    // The first wish of a gateway is the number with which it begins.
    (0..2).for_each(|_| pair.step(&Step::Wish { end: 1, which: 0 }));
    assert_eq!(pair.ends[1].state(), (2, LaneNumberReason::Peer));
    pair.ends[0].number.note_wish(LinkLaneWishMessage { number: 5, wanted: 3, most: 3 });
    pair.ends[0].number.note_wish(LinkLaneWishMessage { number: 4, wanted: 1, most: 3 });
    assert_eq!(pair.ends[0].state(), (3, LaneNumberReason::Peer), "an old wish has no effect");
    pair.ends[0].number.note_wish(LinkLaneWishMessage { number: 6, wanted: 1, most: 1 });
    assert_eq!(pair.ends[0].number.in_use(), 1, "the peer can have no more");
}
