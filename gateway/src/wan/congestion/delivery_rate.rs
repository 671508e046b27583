//! The delivery rate of one lane.
//!
//! Lanes pull segments as they have window space, so a slow lane takes fewer. But at the end of a
//! collective all ranks wait for the bytes that a lane still holds. Bytes in flight beyond the capacity
//! of its path stand in a queue or are lost. So the congestion window of a lane follows its delivery
//! rate.
//!
//! The rate starts at the lane's share of the link. It rises as soon as the lane delivers more. It falls
//! after several window-limited round trips that deliver less, or at once where too much is lost.
//!
//! The tuner task of a lane owns it and calls [`DeliveryRate::end_round`] once a round trip, and
//! [`DeliveryRate::end_rest`] after a time without traffic. Its states are implied by the fields in
//! parentheses; several may hold at once.
//!
//! ```text
//!  ASSUMED (rates empty) -- a window-limited round, or one that delivers more --> MEASURED (rates)
//!    rate = assumed_rate                                          rate = max of the last 4 rounds
//!    ^                                                              |
//!    |         first fills up: 4 rounds until a lower rate counts   |
//!    |                                                              v
//!    |              loss > configured + 3 %, of >= 128 packets: CONGESTED
//!    |              (rounds_since_congestion = 0): history cleared in the first two rounds of it,
//!    |              gain 1.0 for this round, no RTT drain for 8 rounds
//!    |
//!  any state -- a round without any acknowledgement, or most bytes in flight lost at once -->
//!    OUTAGE (outage_rounds = 5): rounds only measure higher rates, and no congestion
//!  any state -- the link's rate limit changed -->
//!    RATE CHANGED (rate_change_rounds = 2): the rates are scaled; rounds only measure lower rates
//!  ECN: window_fraction x 0.8 after a round with a CE mark, x 1.1 after any other, within 1/16 .. 1
//! ```

use std::collections::VecDeque;
use units::{Span, TimeNs};

/// 4 round trips (10 ms or more each): a lane's delivery rate is the highest of the last four that
/// measured a rate. Up to three slower round trips in a row lower no rate. Congestion after four
/// round trips without any is a new congestion.
/// Tested by `a_lower_rate_counts_after_four_window_limited_rounds`.
const DELIVERY_RATE_ROUNDS: usize = 4;
/// 0.5 of a round trip: if a lane's sender waits as long or longer for the congestion window, the
/// round trip is window-limited. Without congestion, only a window-limited round trip can lower the
/// lane's delivery rate. The fraction is chosen.
const WINDOW_LIMITED_FRACTION: f64 = 0.5;
/// 0.03 of the packets that a lane sends in a round trip, or a link in a sample. Loss above the
/// configured loss plus 0.03 shows congestion, which lowers the lane's rate or the link's capacity.
/// Less is random loss of the link. The fraction is chosen.
/// Tested by `loss_above_three_percent_lowers_the_rate_at_once`.
pub(crate) const CONGESTION_LOSS_FRACTION: f64 = 0.03;
/// 8 round trips (10 ms or more each) without congestion: until so many have passed, a lane does
/// not drain its queue to measure the min RTT. The number is chosen, twice
/// [`DELIVERY_RATE_ROUNDS`].
const CONGESTION_FREE_ROUNDS: u32 = 8;
/// 5 round trips with acknowledgements (10 ms or more each), from an outage on: these lower no
/// delivery rate of the lane and show no congestion. Much of their traffic is retransmissions.
/// Tested by `the_rounds_after_an_outage_lower_no_rate`.
const OUTAGE_ROUNDS: u32 = 5;
/// 10 round trips (10 ms or more each) between two losses of most bytes in flight on a lane: if as
/// many or more, the later loss is an outage. If fewer, a full queue dropped the bytes, and the
/// loss may show congestion.
/// Tested by `losing_most_of_the_flight_repeatedly_is_a_queue`.
const OUTAGE_INTERVAL_ROUNDS: u32 = 10;
/// 2 round trips (10 ms or more each) after a change of a lane's share of the link: these may lower
/// the lane's delivery rate, but not raise it. Their acknowledgements still reflect the old share.
/// Tested by `another_assumed_rate_scales_the_measured_rate`.
const RATE_CHANGE_ROUNDS: u32 = 2;
/// 2 round trips with congestion (10 ms or more each): the first two of a congestion replace all
/// measured delivery rates of the lane. Later ones of the same congestion add their rate to the
/// last four. Else a round trip that had just filled or emptied a queue would set the rate alone.
/// Tested by `a_halved_far_capacity_is_met_soon_after_the_alarm`.
const RATE_RESET_ROUNDS: u32 = 2;
/// 4 round trips (10 ms or more each) after congestion: in these a lane's bulk leaves at no more
/// than [`WINDOW_GAIN`] (1.25) times the delivery rate. A window that is filled at the old rate
/// overflows a short queue.
/// Tested by `a_halved_far_capacity_is_met_soon_after_the_alarm`.
const PACED_ROUNDS: u32 = 4;
/// 128 packets acknowledged or lost in a round trip of a lane: with fewer, the round trip shows no
/// congestion, whatever its loss. [`CONGESTION_LOSS_FRACTION`] (0.03) of 128 packets is about four
/// packets.
const LOSS_SAMPLE_PACKETS_MIN: u64 = 128;
/// 154 kB in flight (128 packets of 1,200 bytes) at the begin of a round trip: if more, and no
/// acknowledgement comes in the round trip, the path has an outage. If no more, the peer may only
/// delay its acknowledgements.
const OUTAGE_IN_FLIGHT_BYTES_MIN: u64 = 1200 * LOSS_SAMPLE_PACKETS_MIN;
/// 0.8 of a lane's delivery rate: congestion in a round trip that was not window-limited lowers the
/// rate to no less. The lane may have had little to send.
/// Tested by `a_lane_with_little_to_do_changes_nothing`.
const RATE_DROP_FRACTION: f64 = 0.8;

/// 1.25: the factor on the min RTT in a lane's congestion window, delivery rate x (1.25 x min RTT +
/// slack). A factor above 1 keeps a small queue, which shows whether the path delivers more.
/// Tested by `one_lane_at_half_speed_does_not_halve_the_others`.
pub(crate) const WINDOW_GAIN: f64 = 1.25;
/// 1.0: the factor on the min RTT in a lane's congestion window in the round trip after a congested
/// one, in place of [`WINDOW_GAIN`] (1.25). Apart from the slack, a window with this factor keeps
/// no queue.
const CONGESTED_WINDOW_GAIN: f64 = 1.0;

/// 0.8: the factor by which a lane's congestion window changes after each round trip with an ECN CE
/// mark. It is nearer to 1 than the factors after loss, since a mark comes before the queue is full
/// (RFC 8511).
/// Tested by `ecn_marks_narrow_the_window_round_by_round`.
const ECN_DECREASE_FACTOR: f64 = 0.8;
/// 1.1: the factor by which a congestion window that ECN CE marks made smaller grows again, after
/// each round trip without a mark. The full window ends the growth. Three round trips without marks
/// undo one mark.
const ECN_INCREASE_FACTOR: f64 = 1.1;
/// 1/16 of a lane's full congestion window: the least to which ECN CE marks narrow the window;
/// further marks change nothing. The fraction is chosen.
const ECN_WINDOW_FRACTION_MIN: f64 = 1.0 / 16.0;

/// The counters of one lane at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeliveryCounters {
    /// The time at which the counters were read.
    pub at: TimeNs,
    /// Time that the sender has waited for window space so far.
    pub waited: Span,
    /// Packets acknowledged so far.
    pub acked_packets: u64,
    /// Bytes of the packets acknowledged so far.
    pub acked_bytes: u64,
    /// Packets given up as lost so far.
    pub lost_packets: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Whether an ECN CE mark came since the last counters.
    pub ecn_marked: bool,
    /// Whether most of the bytes in flight were lost at once since the last counters.
    pub most_lost: bool,
}

/// The delivery rate filter of one lane.
#[derive(Debug)]
pub(crate) struct DeliveryRate {
    /// The configured loss, from 0 to 1.
    configured_loss: f64,
    /// The lane's share of the link, in bytes per second.
    assumed_rate: f64,
    /// The counters at the end of the last round.
    before: Option<DeliveryCounters>,
    /// The delivery rate of the last round, in bytes per second.
    last_rate: f64,
    /// Measured rates in bytes per second, the newest last.
    rates: VecDeque<f64>,
    /// The loss of the last round that lost no more than [`CONGESTION_LOSS_FRACTION`] beyond the
    /// configured loss, from 0 to 1; at first the configured loss.
    loss: f64,
    /// The part of the congestion window that ECN leaves, from 1/16 to 1.
    window_fraction: f64,
    /// Whether the last round was window-limited.
    window_limited: bool,
    /// Rounds since the last congested one.
    rounds_since_congestion: u32,
    /// Congested rounds of the present congestion, or of the last one.
    congested_rounds: u32,
    /// Rounds since most of the bytes in flight were lost at once.
    rounds_since_most_lost: u32,
    /// Rounds to come that still show an outage.
    outage_rounds: u32,
    /// Rounds to come that still show another rate of the link.
    rate_change_rounds: u32,
}

/// The measurements of one round that had acknowledgements.
struct RateSample {
    /// The delivery rate in bytes per second.
    rate: f64,
    /// The loss, from 0 to 1.
    loss: f64,
    /// Packets acknowledged or lost.
    packets: u64,
    ecn_marked: bool,
}

impl DeliveryRate {
    /// Creates the filter of one lane. It assumes `assumed_rate` bytes per second until a rate is
    /// measured; `configured_loss` of the link is from 0 to 1.
    pub fn new(assumed_rate: f64, configured_loss: f64) -> Self {
        Self {
            configured_loss,
            assumed_rate,
            before: None,
            last_rate: 0.0,
            rates: VecDeque::with_capacity(DELIVERY_RATE_ROUNDS),
            loss: configured_loss,
            window_fraction: 1.0,
            window_limited: false,
            rounds_since_congestion: CONGESTION_FREE_ROUNDS,
            congested_rounds: 0,
            rounds_since_most_lost: OUTAGE_INTERVAL_ROUNDS,
            outage_rounds: 0,
            rate_change_rounds: 0,
        }
    }

    /// Changes the lane's share of the link, in bytes per second, and scales the measured delivery
    /// rates with it.
    pub fn set_assumed_rate(&mut self, assumed_rate: f64) {
        if assumed_rate != self.assumed_rate {
            let factor = assumed_rate / self.assumed_rate;
            self.rates.iter_mut().for_each(|rate| *rate *= factor);
            (self.assumed_rate, self.last_rate) = (assumed_rate, self.last_rate * factor);
            self.rate_change_rounds = RATE_CHANGE_ROUNDS;
        }
    }

    /// Returns the delivery rate in bytes per second: the assumed rate until one is measured.
    pub fn rate(&self) -> f64 {
        self.rates.iter().copied().reduce(f64::max).unwrap_or(self.assumed_rate)
    }

    /// Returns the delivery rate of the last round in bytes per second.
    pub fn round_rate(&self) -> f64 {
        self.last_rate
    }

    /// Returns whether the lane waited half of the last round or longer for window space, and had
    /// no congestion in the last eight rounds.
    pub fn is_window_limited(&self) -> bool {
        self.window_limited && self.rounds_since_congestion >= CONGESTION_FREE_ROUNDS
    }

    /// Returns the fraction of packets lost in the last round that lost no more than
    /// [`CONGESTION_LOSS_FRACTION`] beyond the configured loss, from 0 to 1.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// Returns the factor on the min RTT in the congestion window: 1.25, or 1.0 after a congested
    /// round.
    pub fn window_gain(&self) -> f64 {
        if self.rounds_since_congestion == 0 { CONGESTED_WINDOW_GAIN } else { WINDOW_GAIN }
    }

    /// Returns the most that the lane's bulk should send, in bytes per second, in the four rounds
    /// after congestion; `None` in all others. A window that is filled at twice the capacity
    /// overflows a queue of less than half a round trip. The lane then sends in bursts.
    pub fn pace(&self) -> Option<f64> {
        (self.rounds_since_congestion < PACED_ROUNDS).then(|| WINDOW_GAIN * self.rate())
    }

    /// Returns the part of the congestion window that ECN CE marks leave, from 1/16 to 1.
    pub fn window_fraction(&self) -> f64 {
        self.window_fraction
    }

    /// Ends a round trip, and measures the delivery rate from the lane's counters `now` and those
    /// of the round's begin. The first call only begins a round. A round without acknowledgements
    /// measures no rate.
    pub fn end_round(&mut self, now: DeliveryCounters) {
        let Some(before) = self.before.replace(now) else { return };
        let took = now.at.since(before.at).as_secs_f64();
        let waited = now.waited.as_secs_f64() - before.waited.as_secs_f64();
        self.window_limited = waited >= WINDOW_LIMITED_FRACTION * took;
        let acked_packets = now.acked_packets - before.acked_packets;
        let lost_packets = now.lost_packets - before.lost_packets;
        self.note_outage(&before, &now, acked_packets);
        if acked_packets == 0 || took == 0.0 {
            if now.in_flight_bytes == 0 {
                self.window_fraction = (self.window_fraction * ECN_INCREASE_FACTOR).min(1.0);
            }
            return;
        }
        let packets = acked_packets + lost_packets;
        self.measure_round(&RateSample {
            rate: (now.acked_bytes - before.acked_bytes) as f64 / took,
            loss: lost_packets as f64 / packets as f64,
            packets,
            ecn_marked: now.ecn_marked,
        });
    }

    /// Ends a time of `idle_rounds` round trips without traffic. The next round begins with the
    /// lane's counters `now`, so that it measures nothing of that time. Bytes that are in flight
    /// have left just now, and count as bytes of that round.
    pub fn end_rest(&mut self, now: DeliveryCounters, idle_rounds: u64) {
        let rounds = u32::try_from(idle_rounds).unwrap_or(u32::MAX);
        let factor = ECN_INCREASE_FACTOR.powf(f64::from(rounds));
        self.window_fraction = (self.window_fraction * factor).min(1.0);
        self.rounds_since_most_lost = self.rounds_since_most_lost.saturating_add(rounds);
        self.rounds_since_congestion = self.rounds_since_congestion.saturating_add(rounds);
        self.window_limited = false;
        self.before = Some(DeliveryCounters { in_flight_bytes: 0, ..now });
    }

    /// Begins an outage after a round without acknowledgements that had much in flight, or after
    /// one that lost most of its bytes in flight. A loss of most bytes begins none within ten
    /// rounds of another.
    fn note_outage(
        &mut self,
        before: &DeliveryCounters,
        now: &DeliveryCounters,
        acked_packets: u64,
    ) {
        let silent = acked_packets == 0
            && now.in_flight_bytes > 0
            && before.in_flight_bytes > OUTAGE_IN_FLIGHT_BYTES_MIN;
        if silent || now.most_lost && self.rounds_since_most_lost >= OUTAGE_INTERVAL_ROUNDS {
            self.outage_rounds = OUTAGE_ROUNDS;
        }
        self.rounds_since_most_lost =
            if now.most_lost { 0 } else { self.rounds_since_most_lost.saturating_add(1) };
    }

    /// Counts the congested rounds of a congestion, and the rounds since the last congested one;
    /// `congested` is about this round. After four rounds without congestion the next congested one
    /// begins a new congestion.
    fn note_congestion(&mut self, congested: bool) {
        if !congested {
            self.rounds_since_congestion = self.rounds_since_congestion.saturating_add(1);
            return;
        }
        let is_first = self.rounds_since_congestion >= DELIVERY_RATE_ROUNDS as u32;
        self.congested_rounds = if is_first { 1 } else { self.congested_rounds.saturating_add(1) };
        self.rounds_since_congestion = 0;
    }

    /// Adds the rate and loss of a round to the delivery rate, and adapts the window fraction to
    /// ECN CE marks.
    fn measure_round(&mut self, sample: &RateSample) {
        // Acknowledgements come in bursts: the mean of two rounds is a better measure than one.
        let last = std::mem::replace(&mut self.last_rate, sample.rate);
        let mean = if last > 0.0 { (last + sample.rate) / 2.0 } else { sample.rate };
        let much_loss = sample.loss > self.configured_loss + CONGESTION_LOSS_FRACTION;
        if !much_loss {
            self.loss = sample.loss;
        }
        let (after_outage, after_change) = (self.outage_rounds > 0, self.rate_change_rounds > 0);
        self.outage_rounds = self.outage_rounds.saturating_sub(1);
        self.rate_change_rounds = self.rate_change_rounds.saturating_sub(1);
        let congested = much_loss && !after_outage && sample.packets >= LOSS_SAMPLE_PACKETS_MIN;
        self.note_congestion(congested);
        let factor = if sample.ecn_marked { ECN_DECREASE_FACTOR } else { ECN_INCREASE_FACTOR };
        self.window_fraction = (self.window_fraction * factor).clamp(ECN_WINDOW_FRACTION_MIN, 1.0);
        // The first rounds of congestion show a lower rate, and little before them counts any more:
        // a round of two short outages may deliver next to nothing.
        let begins_anew = congested && self.congested_rounds <= RATE_RESET_ROUNDS;
        let rate = if begins_anew { sample.rate.max(mean / 2.0) } else { mean };
        // With only a part of its window the lane delivers less than it could.
        let limited = self.window_limited && self.window_fraction >= 1.0 && !after_outage;
        let higher = rate > self.rate() && !after_change;
        if !(limited || higher || congested) {
            return;
        }
        let rate = if limited { rate } else { rate.max(RATE_DROP_FRACTION * self.rate()) };
        let rate = if after_change { rate.min(self.rate()) } else { rate };
        if begins_anew {
            self.rates.clear();
        } else if self.rates.is_empty() {
            self.rates.extend([self.assumed_rate; DELIVERY_RATE_ROUNDS - 1]);
        }
        self.rates.push_back(rate);
        if self.rates.len() > DELIVERY_RATE_ROUNDS {
            self.rates.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Span = Span::from_ms(80);
    const ASSUMED: f64 = 1_000_000.0;
    const PACKET: u64 = 10;

    /// A lane whose rounds are made up.
    struct Lane {
        rate: DeliveryRate,
        counters: DeliveryCounters,
    }

    impl Lane {
        fn new() -> Self {
            let counters = DeliveryCounters {
                at: TimeNs::default(),
                waited: Span::ZERO,
                acked_packets: 0,
                acked_bytes: 0,
                lost_packets: 0,
                in_flight_bytes: 2 * OUTAGE_IN_FLIGHT_BYTES_MIN,
                ecn_marked: false,
                most_lost: false,
            };
            let mut rate = DeliveryRate::new(ASSUMED, 0.001);
            rate.end_round(counters);
            Self { rate, counters }
        }

        /// Rounds that deliver a part of the assumed rate, and lose a part of the packets. Returns
        /// the rate as a part of the assumed one.
        fn pass(&mut self, rounds: u32, delivered: f64, lost: f64, window_limited: bool) -> f64 {
            for _ in 0..rounds {
                self.counters.at = self.counters.at + ROUND;
                let acked = (delivered * ASSUMED * ROUND.as_secs_f64()) as u64 / PACKET;
                self.counters.acked_packets += acked;
                self.counters.acked_bytes += acked * PACKET;
                self.counters.lost_packets += (acked as f64 * lost / (1.0 - lost)) as u64;
                if window_limited {
                    self.counters.waited = self.counters.waited + ROUND;
                }
                self.rate.end_round(self.counters);
            }
            self.rate.rate() / ASSUMED
        }
    }

    #[test]
    fn a_lane_with_little_to_do_changes_nothing() {
        let mut lane = Lane::new();
        assert_eq!(lane.pass(20, 0.1, 0.001, false), 1.0);
        assert_eq!(lane.rate.window_fraction(), 1.0);
        // A few packets, of which one was lost.
        assert_eq!(lane.pass(3, 0.01, 0.1, false), 1.0);
        assert_eq!(lane.rate.window_gain(), WINDOW_GAIN);
    }

    #[test]
    fn a_lower_rate_counts_after_four_window_limited_rounds() {
        let mut lane = Lane::new();
        assert_eq!(lane.pass(3, 0.5, 0.0, true), 1.0);
        assert_eq!(lane.pass(1, 0.5, 0.0, true), 0.5);
        // With some more in flight it may deliver more, again and again.
        assert!(lane.pass(2, 0.625, 0.0, true) > 0.6);
        assert!(lane.pass(2, 2.0, 0.0, false) > 1.9);
    }

    #[test]
    fn loss_above_three_percent_lowers_the_rate_at_once() {
        let mut lane = Lane::new();
        lane.pass(4, 0.96, 0.03, false);
        assert!(lane.rate.rate() == ASSUMED && lane.rate.window_gain() == WINDOW_GAIN);
        assert!((0.029..0.031).contains(&lane.rate.loss()), "for the send window");
        let mut idle = Lane::new();
        assert_eq!(
            idle.pass(1, 0.5, 0.3, false),
            RATE_DROP_FRACTION,
            "it may have had little to do"
        );
        assert_eq!(lane.rate.pace(), None);
        let rate = lane.pass(2, 0.5, 0.3, true);
        assert!(rate == 0.5 && lane.rate.window_gain() == CONGESTED_WINDOW_GAIN);
        assert_eq!(lane.rate.pace(), Some(0.625 * ASSUMED));
        assert!(lane.rate.loss() < 0.04, "its own queue's");
        lane.pass(1, 0.5, 0.0, true);
        assert_eq!(lane.rate.window_gain(), WINDOW_GAIN);
        lane.pass(PACED_ROUNDS - 1, 0.5, 0.0, true);
        assert_eq!(lane.rate.pace(), None, "long after");
    }

    #[test]
    fn ecn_marks_narrow_the_window_round_by_round() {
        let mut lane = Lane::new();
        lane.counters.ecn_marked = true;
        lane.pass(2, 1.0, 0.0, false);
        assert!((0.63..0.65).contains(&lane.rate.window_fraction()));
        lane.pass(40, 1.0, 0.0, false);
        assert_eq!(lane.rate.window_fraction(), ECN_WINDOW_FRACTION_MIN);
        assert_eq!(lane.rate.rate(), ASSUMED);
        lane.counters.ecn_marked = false;
        lane.pass(10, 1.0, 0.0, true);
        assert!((0.16..0.17).contains(&lane.rate.window_fraction()));
        assert_eq!(lane.rate.rate(), ASSUMED, "it did not use all of its window");
        lane.counters.in_flight_bytes = 0;
        lane.pass(40, 0.0, 0.0, false);
        assert_eq!(lane.rate.window_fraction(), 1.0, "idle rounds widen it as well");
    }

    /// A far peer answers the first packets of a transfer after their round.
    #[test]
    fn unacknowledged_rounds_of_few_packets_are_no_outage() {
        let mut lane = Lane::new();
        lane.counters.in_flight_bytes = OUTAGE_IN_FLIGHT_BYTES_MIN;
        lane.pass(1, 0.1, 0.0, false);
        lane.pass(3, 0.0, 0.0, false);
        assert!(lane.pass(2, 0.5, 0.3, true) < 0.6);
    }

    #[test]
    fn the_first_round_of_a_transfer_is_no_outage() {
        let mut lane = Lane::new();
        lane.counters.in_flight_bytes = 0;
        lane.pass(3, 0.0, 0.0, false);
        lane.counters.in_flight_bytes = 2 * OUTAGE_IN_FLIGHT_BYTES_MIN;
        lane.pass(1, 0.0, 0.0, false);
        assert!(lane.pass(2, 0.5, 0.3, true) < 0.6);
    }

    #[test]
    fn a_rest_shows_no_rate_and_no_outage() {
        let mut lane = Lane::new();
        assert_eq!(lane.pass(4, 0.5, 0.0, true), 0.5);
        // Much has left in the moment after a minute of rest.
        lane.counters.at = lane.counters.at + Span::from_secs(60);
        lane.rate.end_rest(lane.counters, 750);
        assert_eq!(lane.pass(1, 0.0, 0.0, false), 0.5);
        assert!(lane.pass(2, 0.25, 0.3, true) < 0.3, "congestion counts");
        let mut marked = Lane::new();
        marked.counters.ecn_marked = true;
        marked.pass(20, 1.0, 0.0, false);
        marked.rate.end_rest(marked.counters, 10);
        assert!((0.16..0.17).contains(&marked.rate.window_fraction()));
        marked.rate.end_rest(marked.counters, u64::MAX);
        assert_eq!(marked.rate.window_fraction(), 1.0);
    }

    #[test]
    fn the_rounds_after_an_outage_lower_no_rate() {
        for silent_rounds in [20, 0] {
            let mut lane = Lane::new();
            lane.pass(silent_rounds, 0.0, 0.0, true);
            // After an outage of little more than a round trip its losses are found at once.
            lane.counters.most_lost = silent_rounds == 0;
            assert_eq!(lane.pass(1, 0.01, 0.99, true), 1.0);
            lane.counters.most_lost = false;
            assert_eq!(lane.pass(OUTAGE_ROUNDS - 1, 0.2, 0.3, true), 1.0);
            assert_eq!(lane.rate.window_gain(), WINDOW_GAIN);
            let rate = lane.pass(4, 0.2, 0.0, true);
            assert_eq!(rate, 0.2, "the rate stays low");
        }
    }

    #[test]
    fn losing_most_of_the_flight_repeatedly_is_a_queue() {
        let mut lane = Lane::new();
        lane.counters.most_lost = true;
        assert_eq!(lane.pass(OUTAGE_ROUNDS, 0.3, 0.6, true), 1.0);
        for _ in 0..3 * OUTAGE_INTERVAL_ROUNDS {
            assert_eq!(lane.pass(1, 0.3, 0.6, true), 0.3);
            assert_eq!(lane.rate.window_gain(), CONGESTED_WINDOW_GAIN);
        }
        lane.counters.most_lost = false;
        assert_eq!(lane.pass(OUTAGE_INTERVAL_ROUNDS, 1.0, 0.0, true), 1.0);
        lane.counters.most_lost = true;
        assert_eq!(lane.pass(1, 0.3, 0.6, true), 1.0, "a later one is an outage");
    }

    #[test]
    fn another_assumed_rate_scales_the_measured_rate() {
        let mut lane = Lane::new();
        lane.rate.set_assumed_rate(2.0 * ASSUMED);
        assert_eq!(lane.rate.rate(), 2.0 * ASSUMED);
        lane.pass(8, 0.5, 0.0, true);
        lane.rate.set_assumed_rate(ASSUMED);
        assert_eq!(lane.rate.rate(), 0.25 * ASSUMED);
        // Acknowledgements of packets sent before show nothing, in either direction.
        for window_limited in [false, true] {
            let mut lane = Lane::new();
            lane.rate.set_assumed_rate(0.1 * ASSUMED);
            lane.pass(2, 1.0, 0.0, window_limited);
            lane.rate.set_assumed_rate(ASSUMED);
            assert_eq!(lane.rate.rate(), ASSUMED);
        }
    }
}
