//! What one lane of several carries.
//!
//! Lanes pull what they have room for, so that a slow one takes less; but what it holds at the end
//! of a collective is what all wait for, and what it has in flight beyond what its path holds
//! stands in a queue there, or is lost. So each lane's windows follow what it delivers: its part of
//! the link, until it shows that it carries more, or for a while no more than less.

use std::collections::VecDeque;
use units::{Span, TimeNs};

/// Rounds of which the best counts, among those which say what a lane carries.
const ROUNDS: usize = 4;
/// A lane carries what it delivered in a round in which it waited for room for this part of it,
const WAITED: f64 = 0.5;
/// or in which it lost this much beyond the fabric's expectation: less is the link's own.
pub(crate) const CONGESTION_LOSS: f64 = 0.03;
/// Rounds without it after which a queue may have been drained.
const CALM: u32 = 8;
/// But a cut says nothing, nor do so many rounds once something comes again: what it lost is sent
/// again in them.
const CUT_ROUNDS: u32 = 5;
/// What loses most of its flight again within so many rounds is a queue, whatever it looks like. One
/// is never silent.
const CUT_AGAIN_ROUNDS: u32 = 10;
/// Nor is what still comes of a higher rate what it carries at a lower one.
const CHANGE_ROUNDS: u32 = 2;
/// A round in which nothing of more than this is acknowledged was cut: the peer takes its time with
/// a few packets.
const SILENT_BYTES: u64 = 1200 * SAMPLE_PACKETS;

/// Packets that a loss is told by, at least.
const SAMPLE_PACKETS: u64 = 128;
/// In a round in which it did not wait, a lane may have had little to do: it carries no less than
/// this part of what it did before.
const DROP: f64 = 0.8;

/// A lane has in flight what it carries in so many round trips: more than one shows whether there
/// is room for more,
pub(crate) const MORE: f64 = 1.25;
/// unless it lost too much lately.
const NO_MORE: f64 = 1.0;

/// The part of its window that a lane uses falls so each round with a mark of congestion,
const NARROWER: f64 = 0.8;
/// rises so each other round,
const WIDER: f64 = 1.1;
/// and is no less than this.
const SHARE_MIN: f64 = 1.0 / 16.0;

/// What one lane has done so far, by its counters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub at: TimeNs,
    /// Time that its writer spent waiting for room.
    pub waited: Span,
    /// Packets acknowledged, and their bytes,
    pub acked: u64,
    pub acked_bytes: u64,
    /// and given up as lost.
    pub lost: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Whether a mark of congestion came since it was last asked,
    pub marked: bool,
    /// and whether most of a flight was lost at once.
    pub most_lost: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Carried {
    expected_loss: f64,
    /// What it has of the link, in bytes per second.
    part: f64,
    before: Option<Done>,
    /// What the last round delivered, in bytes per second.
    last: f64,
    /// In bytes per second, the newest last.
    rounds: VecDeque<f64>,
    /// The part of its packets that was lost in the last round.
    loss: f64,
    /// The part of its window that is in use.
    share: f64,
    waits: bool,
    /// Rounds since it lost too much.
    calm: u32,
    /// Rounds since most of a flight was lost at once.
    since_most: u32,
    /// Rounds to come that still show a cut,
    after_cut: u32,
    /// and that still show another rate of the link.
    after_change: u32,
}

impl Carried {
    /// Of a lane that has this part of a link, in bytes per second, which loses so much at random.
    pub fn new(part: f64, expected_loss: f64) -> Self {
        let rounds = VecDeque::with_capacity(ROUNDS);
        let (loss, share, waits) = (expected_loss, 1.0, false);
        Self {
            expected_loss,
            part,
            before: None,
            last: 0.0,
            rounds,
            loss,
            share,
            waits,
            calm: CALM,
            since_most: CUT_AGAIN_ROUNDS,
            after_cut: 0,
            after_change: 0,
        }
    }

    /// It has another part, and may carry more or less accordingly.
    pub fn divide(&mut self, part: f64) {
        if part != self.part {
            let by = part / self.part;
            self.rounds.iter_mut().for_each(|rate| *rate *= by);
            (self.part, self.last) = (part, self.last * by);
            self.after_change = CHANGE_ROUNDS;
        }
    }

    /// Bytes per second: its part, until it has shown otherwise.
    pub fn rate(&self) -> f64 {
        self.rounds.iter().copied().reduce(f64::max).unwrap_or(self.part)
    }

    /// Whether it waited for room in the last round, and not because of a queue that it was seen to
    /// overflow.
    pub fn waits(&self) -> bool {
        self.waits && self.calm >= CALM
    }

    /// The part of its packets that was lost lately.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// In how many round trips it carries what it may have in flight.
    pub fn round_trips(&self) -> f64 {
        if self.calm == 0 { NO_MORE } else { MORE }
    }

    /// The part of its window that it is to use.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Another round is over.
    pub fn round(&mut self, done: Done) {
        let Some(before) = self.before.replace(done) else { return };
        let took = done.at.since(before.at).as_secs_f64();
        let waited = done.waited.as_secs_f64() - before.waited.as_secs_f64();
        self.waits = waited >= WAITED * took;
        let (acked, lost) = (done.acked - before.acked, done.lost - before.lost);
        let silent = acked == 0 && done.in_flight > 0 && before.in_flight > SILENT_BYTES;
        if silent || done.most_lost && self.since_most >= CUT_AGAIN_ROUNDS {
            self.after_cut = CUT_ROUNDS;
        }
        self.since_most = if done.most_lost { 0 } else { self.since_most.saturating_add(1) };
        if acked == 0 || took == 0.0 {
            if done.in_flight == 0 {
                self.share = (self.share * WIDER).min(1.0);
            }
            return;
        }
        // Acknowledgements come in bursts: two rounds say more than one.
        let rate = (done.acked_bytes - before.acked_bytes) as f64 / took;
        let last = std::mem::replace(&mut self.last, rate);
        let rate = if last > 0.0 { (last + rate) / 2.0 } else { rate };
        let loss = lost as f64 / (acked + lost) as f64;
        let much = loss > self.expected_loss + CONGESTION_LOSS;
        if !much {
            self.loss = loss;
        }
        let (after_cut, after_change) = (self.after_cut > 0, self.after_change > 0);
        self.after_cut = self.after_cut.saturating_sub(1);
        self.after_change = self.after_change.saturating_sub(1);
        let congested = much && !after_cut && acked + lost >= SAMPLE_PACKETS;
        self.calm = if congested { 0 } else { self.calm.saturating_add(1) };
        let factor = if done.marked { NARROWER } else { WIDER };
        self.share = (self.share * factor).clamp(SHARE_MIN, 1.0);
        // With less of its window in use it delivers less than it carries.
        let limited = self.waits && self.share >= 1.0 && !after_cut;
        let more = rate > self.rate() && !after_change;
        if !(limited || more || congested) {
            return;
        }
        let rate = if limited { rate } else { rate.max(DROP * self.rate()) };
        let rate = if after_change { rate.min(self.rate()) } else { rate };
        if congested {
            self.rounds.clear();
        } else if self.rounds.is_empty() {
            self.rounds.extend([self.part; ROUNDS - 1]);
        }
        self.rounds.push_back(rate);
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Span = Span::from_ms(80);
    const PART: f64 = 1_000_000.0;
    const PACKET: u64 = 10;

    struct Bench {
        carried: Carried,
        done: Done,
    }

    impl Bench {
        fn new() -> Self {
            let (waited, acked, acked_bytes, lost) = (Span::ZERO, 0, 0, 0);
            let at = TimeNs::default();
            let done = Done {
                at,
                waited,
                acked,
                acked_bytes,
                lost,
                in_flight: 2 * SILENT_BYTES,
                marked: false,
                most_lost: false,
            };
            let mut carried = Carried::new(PART, 0.001);
            carried.round(done);
            Self { carried, done }
        }

        /// Rounds in which this part of a lane's part was acknowledged, and of what was sent this
        /// part lost.
        fn pass(&mut self, rounds: u32, delivered: f64, lost: f64, waits: bool) -> f64 {
            for _ in 0..rounds {
                self.done.at = self.done.at + ROUND;
                let acked = (delivered * PART * ROUND.as_secs_f64()) as u64 / PACKET;
                self.done.acked += acked;
                self.done.acked_bytes += acked * PACKET;
                self.done.lost += (acked as f64 * lost / (1.0 - lost)) as u64;
                if waits {
                    self.done.waited = self.done.waited + ROUND;
                }
                self.carried.round(self.done);
            }
            self.carried.rate() / PART
        }
    }

    #[test]
    fn a_lane_that_has_little_to_do_shows_nothing() {
        let mut bench = Bench::new();
        assert_eq!(bench.pass(20, 0.1, 0.001, false), 1.0);
        assert_eq!(bench.carried.share(), 1.0);
        // A few packets, of which one was lost.
        assert_eq!(bench.pass(3, 0.01, 0.1, false), 1.0);
        assert_eq!(bench.carried.round_trips(), MORE);
    }

    #[test]
    fn a_lane_that_waits_for_four_rounds_carries_no_more_than_it_delivers() {
        let mut bench = Bench::new();
        assert_eq!(bench.pass(3, 0.5, 0.0, true), 1.0);
        assert_eq!(bench.pass(1, 0.5, 0.0, true), 0.5);
        // With some more in flight it may deliver that, again and again.
        assert!(bench.pass(2, 0.625, 0.0, true) > 0.6);
        assert!(bench.pass(2, 2.0, 0.0, false) > 1.9);
    }

    #[test]
    fn loss_above_three_percent_shows_it_at_once_and_less_than_that_nothing() {
        let mut bench = Bench::new();
        bench.pass(4, 0.96, 0.03, false);
        assert!(bench.carried.rate() == PART && bench.carried.round_trips() == MORE);
        assert!((0.029..0.031).contains(&bench.carried.loss()), "kept behind holes");
        let mut little = Bench::new();
        assert_eq!(little.pass(1, 0.5, 0.3, false), DROP, "it may have had little to do");
        let rate = bench.pass(2, 0.5, 0.3, true);
        assert!(rate == 0.5 && bench.carried.round_trips() == NO_MORE);
        assert!(bench.carried.loss() < 0.04, "its own queue's");
        bench.pass(1, 0.5, 0.0, true);
        assert_eq!(bench.carried.round_trips(), MORE);
    }

    #[test]
    fn marks_narrow_the_window_round_by_round() {
        let mut bench = Bench::new();
        bench.done.marked = true;
        bench.pass(2, 1.0, 0.0, false);
        assert!((0.63..0.65).contains(&bench.carried.share()));
        bench.pass(40, 1.0, 0.0, false);
        assert_eq!(bench.carried.share(), SHARE_MIN);
        assert_eq!(bench.carried.rate(), PART);
        bench.done.marked = false;
        bench.pass(10, 1.0, 0.0, true);
        assert!((0.16..0.17).contains(&bench.carried.share()));
        assert_eq!(bench.carried.rate(), PART, "it did not use all of its window");
        bench.done.in_flight = 0;
        bench.pass(40, 0.0, 0.0, false);
        assert_eq!(bench.carried.share(), 1.0, "for who comes next");
    }

    /// A far peer answers the first packets of a transfer after their round.
    #[test]
    fn rounds_without_an_acknowledgement_of_a_few_packets_are_no_cut() {
        let mut bench = Bench::new();
        bench.done.in_flight = SILENT_BYTES;
        bench.pass(1, 0.1, 0.0, false);
        bench.pass(3, 0.0, 0.0, false);
        assert!(bench.pass(2, 0.5, 0.3, true) < 0.6);
    }

    #[test]
    fn the_first_round_of_a_transfer_is_no_cut() {
        let mut bench = Bench::new();
        bench.done.in_flight = 0;
        bench.pass(3, 0.0, 0.0, false);
        bench.done.in_flight = 2 * SILENT_BYTES;
        bench.pass(1, 0.0, 0.0, false);
        assert!(bench.pass(2, 0.5, 0.3, true) < 0.6);
    }

    #[test]
    fn a_cut_shows_nothing_nor_does_what_is_sent_again_after_it() {
        for silent_rounds in [20, 0] {
            let mut bench = Bench::new();
            bench.pass(silent_rounds, 0.0, 0.0, true);
            // Of one of little more than a round trip what it lost is seen at once.
            bench.done.most_lost = silent_rounds == 0;
            assert_eq!(bench.pass(1, 0.01, 0.99, true), 1.0);
            bench.done.most_lost = false;
            assert_eq!(bench.pass(CUT_ROUNDS - 1, 0.2, 0.3, true), 1.0);
            assert_eq!(bench.carried.round_trips(), MORE);
            let rate = bench.pass(4, 0.2, 0.0, true);
            assert_eq!(rate, 0.2, "that is how it stays");
        }
    }

    #[test]
    fn what_loses_most_of_its_flight_again_and_again_is_a_queue() {
        let mut bench = Bench::new();
        bench.done.most_lost = true;
        assert_eq!(bench.pass(CUT_ROUNDS, 0.3, 0.6, true), 1.0);
        for _ in 0..3 * CUT_AGAIN_ROUNDS {
            assert_eq!(bench.pass(1, 0.3, 0.6, true), 0.3);
            assert_eq!(bench.carried.round_trips(), NO_MORE);
        }
        bench.done.most_lost = false;
        assert_eq!(bench.pass(CUT_AGAIN_ROUNDS, 1.0, 0.0, true), 1.0);
        bench.done.most_lost = true;
        assert_eq!(bench.pass(1, 0.3, 0.6, true), 1.0, "one that comes later is a cut");
    }

    #[test]
    fn who_has_another_part_carries_accordingly() {
        let mut bench = Bench::new();
        bench.carried.divide(2.0 * PART);
        assert_eq!(bench.carried.rate(), 2.0 * PART);
        bench.pass(8, 0.5, 0.0, true);
        bench.carried.divide(PART);
        assert_eq!(bench.carried.rate(), 0.25 * PART);
        // What is still acknowledged of the time before shows nothing, whatever it is held to.
        for waits in [false, true] {
            let mut bench = Bench::new();
            bench.carried.divide(0.1 * PART);
            bench.pass(2, 1.0, 0.0, waits);
            bench.carried.divide(PART);
            assert_eq!(bench.carried.rate(), PART);
        }
    }
}
