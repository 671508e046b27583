//! Stories of one end: demand, trials, silence. `agreement` has both ends with late messages.

mod agreement;

use super::*;

/// 1 MB/s: the unit of the rates below.
const MB: f64 = 1e6;

/// Returns the bounds of lanes with an RTT of 80 ms, at the end that dials.
fn terms(least: u16, most: u16) -> LaneNumberTerms {
    let (least_reason, rtt) = (LaneNumberReason::Pinned, Span::from_ms(80));
    LaneNumberTerms { least, least_reason, most, dials: true, rtt }
}

/// One end, whose lanes come up as soon as they are wanted unless some are held down.
struct End {
    number: LaneNumber,
    sample: LaneSample,
    /// The most lanes that come up.
    up_max: u16,
    /// The lanes whose path is dead, from the first on.
    dead: u16,
    /// Idle time of the machine's cores in each 100 ms.
    idle: Span,
}

impl End {
    fn new(terms: LaneNumberTerms) -> Self {
        let sample = LaneSample {
            now: TimeNs::from_ns(1_000_000_000),
            waiting: false,
            carried_bytes: 0,
            delivered_bytes: 0,
            promised_rate: Some(100.0 * MB),
            busiest: 0.5,
            idle_time: Some(Span::ZERO),
            is_connected: true,
            up: terms.least,
            lower_heard: 0,
            last_up: true,
            silence: Span::ZERO,
            dead_path_time: Span::from_ms(630),
        };
        let idle = Span::from_ms(100);
        Self { number: LaneNumber::new(terms), sample, up_max: u16::MAX, dead: 0, idle }
    }

    /// Lets samples of 100 ms pass, with what the lanes in use deliver together, in bytes per second.
    fn pass(&mut self, samples: u32, rate: impl Fn(u16) -> f64) {
        for _ in 0..samples {
            let in_use = self.number.in_use();
            let up_to = |lanes: u16| lanes.min(self.up_max).saturating_sub(self.dead);
            let (up, lower) = (up_to(in_use), up_to(in_use - 1));
            let bytes = (rate(up) / 10.0) as u64;
            self.sample.now = self.sample.now + Span::from_ms(100);
            self.sample.idle_time = self.sample.idle_time.map(|time| time + self.idle);
            self.sample.carried_bytes += bytes;
            self.sample.delivered_bytes += bytes;
            let is_silent = self.sample.silence >= self.sample.dead_path_time;
            (self.sample.up, self.sample.is_connected) = (up, up > 0 || self.dead > 0);
            self.sample.lower_heard = if is_silent { 0 } else { lower };
            self.sample.last_up = up > lower;
            self.number.note_sample(&self.sample);
        }
    }

    /// Makes segments wait, with this busy part of the busiest thread.
    fn demand(&mut self, busiest: f64) {
        (self.sample.waiting, self.sample.busiest) = (true, busiest);
    }

    fn state(&self) -> (u16, LaneNumberReason) {
        (self.number.in_use(), self.number.reason())
    }
}

#[test]
fn one_lane_stays_while_the_link_is_filled() {
    let mut end = End::new(terms(1, 4));
    end.demand(0.8);
    end.pass(3000, |_| 95.0 * MB);
    assert_eq!(end.state(), (1, LaneNumberReason::Pinned));
    assert_eq!(
        end.number.wish(),
        LinkLaneWishMessage { number: 1, wanted: 1, most: 4 },
        "nothing to tell"
    );
}

#[test]
fn a_lane_that_makes_more_pass_is_kept() {
    let mut end = End::new(terms(1, 4));
    end.demand(0.95);
    end.pass(10, |lanes| 30.0 * MB * f64::from(lanes));
    assert_eq!(end.state().0, 1, "one span was the first");
    end.pass(1, |lanes| 30.0 * MB * f64::from(lanes));
    assert_eq!(end.state(), (2, LaneNumberReason::CoreFull));
    end.pass(200, |lanes| 30.0 * MB * f64::from(lanes.min(3)));
    assert_eq!(end.state(), (3, LaneNumberReason::CoreFull), "the fourth was tried in vain");
    end.sample.busiest = 0.6;
    end.pass(1000, |lanes| 30.0 * MB * f64::from(lanes.min(3)));
    assert_eq!(end.state().0, 3, "each earns its place");
}

#[test]
fn a_full_machine_has_no_lane_tried() {
    let mut end = End::new(terms(1, 4));
    end.demand(1.0);
    end.idle = Span::from_ms(40);
    end.pass(3000, |lanes| 95.0 * MB * f64::from(lanes));
    assert_eq!(end.state(), (1, LaneNumberReason::Pinned), "0.4 of a core is idle");
    end.idle = Span::from_ms(60);
    end.pass(12, |lanes| 95.0 * MB * f64::from(lanes));
    assert_eq!(end.state(), (2, LaneNumberReason::CoreFull), "0.6 of a core is idle");
}

#[test]
fn a_lane_that_is_not_needed_is_taken_away() {
    let mut end = End::new(terms(1, 4));
    end.demand(0.95);
    end.pass(40, |lanes| 30.0 * MB * f64::from(lanes));
    assert!(end.state().0 > 1);
    // A training step: half a second of demand, then ten seconds of computing.
    end.sample.busiest = 0.6;
    for _ in 0..20 {
        end.sample.waiting = true;
        end.pass(5, |lanes| 30.0 * MB * f64::from(lanes));
        end.sample.waiting = false;
        end.pass(100, |_| 0.0);
    }
    assert!(end.state().0 > 1, "it earns its place in each step");
    end.pass(1000, |_| 10.0 * MB);
    assert_eq!(end.state(), (1, LaneNumberReason::EarnsNothing));
}

#[test]
fn trials_in_vain_become_rare() {
    let mut end = End::new(terms(1, 4));
    end.demand(1.0);
    let mut begun = Vec::new();
    for second in 0..3600 {
        let before = end.state().0;
        end.pass(10, |_| 50.0 * MB);
        assert!(end.state().0 <= 2, "one at a time");
        if before == 1 && end.state().0 == 2 {
            begun.push(second);
        }
    }
    let pauses: Vec<i32> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((7..=11).contains(&begun.len()), "{begun:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] > pair[0] + pair[0] / 3), "{pauses:?}");
    assert_eq!(end.state().0, 1);
}

#[test]
fn an_unfilled_link_has_another_path_tried() {
    let mut end = End::new(terms(1, 4));
    end.demand(0.3);
    end.pass(45, |lanes| 40.0 * MB * f64::from(lanes.min(2)));
    assert_eq!(end.state().0, 1, "congestion is over sooner");
    end.pass(10, |lanes| 40.0 * MB * f64::from(lanes.min(2)));
    assert_eq!(end.state(), (2, LaneNumberReason::MorePaths));
    assert!(end.number.is_trying_path());
    end.pass(100, |lanes| 40.0 * MB * f64::from(lanes.min(2)));
    assert_eq!(end.state(), (2, LaneNumberReason::MorePaths), "the link is filled");
    assert!(!end.number.is_trying_path());
    let mut region = End::new(terms(1, 4));
    region.demand(0.3);
    region.sample.promised_rate = None;
    region.pass(1000, |_| 40.0 * MB);
    assert_eq!(region.state().0, 1, "no rate is promised within a region");
}

#[test]
fn a_core_that_others_fill_is_no_reason() {
    let mut end = End::new(terms(1, 4));
    (end.sample.waiting, end.sample.busiest) = (false, 1.0);
    end.pass(1000, |_| 0.5 * MB);
    assert_eq!(end.state().0, 1);
    end.pass(20, |_| 50.0 * MB);
    assert_eq!(end.state(), (2, LaneNumberReason::CoreFull), "the receiver's core fills too");
}

#[test]
fn a_silent_only_lane_is_replaced_at_once() {
    let mut end = End::new(terms(1, 4));
    end.up_max = 1;
    let silent_for = |end: &mut End, ms: u64| {
        end.sample.silence = Span::from_ms(ms);
        end.pass(1, |_| 0.0);
        end.state()
    };
    assert_eq!(silent_for(&mut end, 600), (1, LaneNumberReason::Pinned));
    assert_eq!(silent_for(&mut end, 700), (2, LaneNumberReason::SilentLane));
    assert_eq!(silent_for(&mut end, 1200).0, 2, "it has to be dialled first");
    assert_eq!(silent_for(&mut end, 1300).0, 3);
    assert_eq!(silent_for(&mut end, 0).0, 2, "the only lane was heard before others came up");
    assert_eq!(silent_for(&mut end, 0), (1, LaneNumberReason::EarnsNothing));
    assert_eq!(silent_for(&mut end, 700).0, 2);
    (end.sample.silence, end.up_max, end.dead) = (Span::ZERO, 3, 1);
    end.pass(600, |_| 50.0 * MB);
    assert_eq!(end.state(), (2, LaneNumberReason::SilentLane), "the first path is dead");
    end.dead = 0;
    end.pass(45, |_| 50.0 * MB);
    assert_eq!(end.state().0, 2);
    end.pass(10, |_| 50.0 * MB);
    assert_eq!(end.state(), (1, LaneNumberReason::EarnsNothing));
    let mut acceptor = End::new(LaneNumberTerms { dials: false, ..terms(1, 4) });
    assert_eq!(silent_for(&mut acceptor, 5000), (1, LaneNumberReason::Pinned), "it cannot dial");
}

#[test]
fn an_absent_peer_is_dialled_on_more_and_more_lanes() {
    let mut end = End::new(terms(1, 3));
    end.up_max = 0;
    let lanes: Vec<u16> = (0..6)
        .map(|_| {
            end.pass(60, |_| 0.0);
            end.state().0
        })
        .collect();
    assert_eq!(lanes, [1, 2, 2, 3, 3, 3]);
    end.up_max = 3;
    end.pass(120, |_| 0.0);
    assert_eq!(end.state().0, 1, "all came up");
}

#[test]
fn a_lane_that_does_not_come_up_is_given_up() {
    let mut end = End::new(terms(1, 4));
    end.demand(1.0);
    end.up_max = 1;
    end.pass(20, |_| 50.0 * MB);
    assert_eq!(end.state().0, 2);
    end.pass(100, |_| 50.0 * MB);
    assert_eq!(end.state(), (1, LaneNumberReason::EarnsNothing));
}

#[test]
fn the_number_stays_between_least_and_most() {
    let mut end = End::new(terms(4, 4));
    end.demand(1.0);
    end.pass(1000, |_| 50.0 * MB);
    assert_eq!(end.state(), (4, LaneNumberReason::Pinned));
    end.sample.waiting = false;
    end.pass(1000, |_| 0.0);
    assert_eq!(end.state().0, 4);
}

#[test]
fn a_trial_of_the_peer_is_awaited() {
    let mut end = End::new(terms(1, 4));
    end.demand(1.0);
    end.number.note_wish(LinkLaneWishMessage { number: 2, wanted: 2, most: 4 });
    end.pass(99, |lanes| 30.0 * MB * f64::from(lanes));
    assert_eq!(end.state(), (2, LaneNumberReason::Peer));
    end.pass(10, |lanes| 30.0 * MB * f64::from(lanes));
    assert_eq!(end.state(), (3, LaneNumberReason::CoreFull), "two still fill the core here");
}

/// The trial of a second lane was over while the path of the first had died.
#[test]
fn the_only_lane_that_is_up_is_in_use() {
    let mut end = End::new(terms(1, 4));
    (end.up_max, end.dead) = (2, 1);
    end.pass(2, |_| 50.0 * MB);
    assert_eq!(end.state(), (2, LaneNumberReason::SilentLane));
    end.pass(1000, |_| 50.0 * MB);
    assert_eq!(end.state().0, 2);
}
