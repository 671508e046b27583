//! A model of rate and round trip, with the phases of BBR version 1.

use super::ack_sample::AckSample;
use super::new_reno::WINDOW_PACKETS_INITIAL;
use crate::random_stream::RandomStream;
use std::collections::VecDeque;
use units::{Span, TimeNs};

/// The model of a BBR-like flow, in packets and seconds.
#[derive(Debug)]
pub(super) struct Bbr {
    phase: Phase,
    window: f64,
    /// Delivery rates of the last rounds: each with its round, in falling order of rate.
    rates: VecDeque<(u64, f64)>,
    round_trip: Span,
    round_trip_at: TimeNs,
    rounds: u64,
    /// Packets delivered when the current round ends.
    round_ends_at: u64,
    /// The rate from which the last growth by a quarter is counted.
    full_rate: f64,
    rounds_without_growth: u32,
    /// Whether the flow has found that more in flight does not raise the rate.
    filled: bool,
    /// The window before it was reduced for a loss or a probe.
    window_saved: f64,
    stream: RandomStream,
}

/// A phase of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Doubles the rate each round trip.
    Startup,
    /// Empties the queue that `Startup` left.
    Drain,
    /// Sends at the rate of the link, a little above and below in turn.
    ProbeRate { place: usize, began: TimeNs },
    /// Sends next to nothing, to see the round trip without a queue.
    ProbeRoundTrip { done_at: Option<TimeNs>, round_passed: bool },
}

impl Bbr {
    /// Makes the model of a new flow; `stream` draws the places at which its cycles begin.
    pub(super) fn new(stream: RandomStream) -> Self {
        Self {
            phase: Phase::Startup,
            window: WINDOW_PACKETS_INITIAL,
            rates: VecDeque::new(),
            round_trip: Span::ZERO,
            round_trip_at: TimeNs::default(),
            rounds: 0,
            round_ends_at: 0,
            full_rate: 0.0,
            rounds_without_growth: 0,
            filled: false,
            window_saved: 0.0,
            stream,
        }
    }

    /// Returns the window in packets.
    pub(super) fn window(&self) -> f64 {
        self.window
    }

    /// Returns the rate at which packets may leave, in packets a second; `None` while none is
    /// known.
    pub(super) fn pacing_rate(&self) -> Option<f64> {
        let gain = match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => 1.0 / STARTUP_GAIN,
            Phase::ProbeRate { place, .. } => CYCLE_GAINS[place],
            Phase::ProbeRoundTrip { .. } => 1.0,
        };
        self.rate().map(|rate| gain * rate)
    }

    /// Updates round, delivery rate, phase, round trip and window of the model by an acknowledged
    /// packet.
    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        let new_round = ack.delivered_before >= self.round_ends_at;
        if new_round {
            self.rounds += 1;
            self.round_ends_at = ack.delivered;
        }
        self.add_rate(ack.rate);
        if new_round {
            self.look_for_growth();
        }
        self.update_phase(ack);
        self.update_round_trip(ack, new_round);
        self.update_window(ack);
    }

    /// Reduces the window to the packets in flight at a loss, but not below 4, until the loss is
    /// repaired.
    pub(super) fn on_congestion(&mut self, in_flight: u64) {
        self.window_saved = self.window_saved.max(self.window);
        self.window = (in_flight as f64).max(WINDOW_PACKETS_MIN);
    }

    /// Gives back the window from before a loss or a probe of the round trip.
    pub(super) fn on_recovered(&mut self) {
        self.window = self.window.max(self.window_saved);
        self.window_saved = 0.0;
    }

    /// Begins anew with one packet after a timeout, and keeps the model.
    pub(super) fn on_timeout(&mut self) {
        self.window_saved = self.window_saved.max(self.window);
        self.window = 1.0;
    }

    /// Returns the greatest delivery rate of the last rounds, in packets a second.
    fn rate(&self) -> Option<f64> {
        self.rates.front().map(|(_, rate)| *rate)
    }

    /// Returns the packets that fill the link without a queue, times `gain`; 10 packets while no
    /// rate is known.
    fn target(&self, gain: f64) -> f64 {
        self.rate()
            .map_or(WINDOW_PACKETS_INITIAL, |rate| gain * rate * self.round_trip.as_secs_f64())
    }

    /// Adds a delivery rate to those of the last 10 rounds, and keeps of them those that no later
    /// one reaches.
    fn add_rate(&mut self, rate: Option<f64>) {
        while self.rates.front().is_some_and(|(round, _)| round + RATE_ROUNDS <= self.rounds) {
            self.rates.pop_front();
        }
        let Some(rate) = rate else { return };
        while self.rates.back().is_some_and(|(_, other)| *other <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.rounds, rate));
    }

    /// Counts rounds in which the rate did not grow by a quarter; after three the link counts as
    /// filled.
    fn look_for_growth(&mut self) {
        let Some(rate) = self.rate().filter(|_| !self.filled) else { return };
        if rate >= self.full_rate * STARTUP_GROWTH {
            (self.full_rate, self.rounds_without_growth) = (rate, 0);
        } else {
            self.rounds_without_growth += 1;
            self.filled = self.rounds_without_growth >= ROUNDS_WITHOUT_GROWTH;
        }
    }

    /// Goes on to the next phase, or to the next place of the cycle, where it is time.
    fn update_phase(&mut self, ack: &AckSample) {
        let in_flight = ack.in_flight as f64;
        match self.phase {
            Phase::Startup if self.filled => self.phase = Phase::Drain,
            Phase::Drain if in_flight <= self.target(1.0) => self.begin_cycle(ack.now),
            Phase::ProbeRate { place, began } => {
                let passed = ack.now.since(began) > self.round_trip;
                let gain = CYCLE_GAINS[place];
                let next = if gain > 1.0 {
                    passed && (ack.found_losses || in_flight >= self.target(gain))
                } else if gain < 1.0 {
                    passed || in_flight <= self.target(1.0)
                } else {
                    passed
                };
                if next {
                    let place = (place + 1) % CYCLE_GAINS.len();
                    self.phase = Phase::ProbeRate { place, began: ack.now };
                }
            }
            _ => {}
        }
    }

    /// Begins to probe the rate, at any place of the cycle but the one below the rate.
    fn begin_cycle(&mut self, now: TimeNs) {
        let drawn = self.stream.random_below(CYCLE_GAINS.len() as u64 - 1) as usize;
        let place = (CYCLE_LOW_PLACE + 1 + drawn) % CYCLE_GAINS.len();
        self.phase = Phase::ProbeRate { place, began: now };
    }

    /// Keeps the least round trip of the last 10 s, and probes it where it is older.
    fn update_round_trip(&mut self, ack: &AckSample, new_round: bool) {
        let known = self.round_trip > Span::ZERO;
        let expired = known && ack.now.since(self.round_trip_at) > ROUND_TRIP_MAX_AGE;
        if !known || expired || ack.rtt <= self.round_trip {
            (self.round_trip, self.round_trip_at) = (ack.rtt, ack.now);
        }
        match self.phase {
            Phase::ProbeRoundTrip { done_at: None, .. }
                if ack.in_flight as f64 <= WINDOW_PACKETS_MIN =>
            {
                let done_at = Some(ack.now + ROUND_TRIP_PROBE);
                self.round_ends_at = ack.delivered;
                self.phase = Phase::ProbeRoundTrip { done_at, round_passed: false };
            }
            Phase::ProbeRoundTrip { done_at: Some(at), round_passed } => {
                let round_passed = round_passed || new_round;
                self.phase = Phase::ProbeRoundTrip { done_at: Some(at), round_passed };
                if round_passed && ack.now > at {
                    self.round_trip_at = ack.now;
                    self.on_recovered();
                    if self.filled {
                        self.begin_cycle(ack.now);
                    } else {
                        self.phase = Phase::Startup;
                    }
                }
            }
            _ if expired => {
                self.window_saved = self.window_saved.max(self.window);
                self.phase = Phase::ProbeRoundTrip { done_at: None, round_passed: false };
            }
            _ => {}
        }
    }

    /// Grows the window by one packet, up to the target. A probe of the round trip limits the
    /// window to 4 packets; recovery from a loss lets one packet leave for each acknowledged.
    fn update_window(&mut self, ack: &AckSample) {
        if let Phase::ProbeRoundTrip { .. } = self.phase {
            self.window = self.window.min(WINDOW_PACKETS_MIN);
            return;
        }
        if ack.in_recovery {
            // A packet for each delivered, until the loss is repaired.
            self.window = self.window.max(ack.in_flight as f64 + 1.0);
            return;
        }
        let gain = if self.filled { WINDOW_GAIN } else { STARTUP_GAIN };
        let target = self.target(gain) + QUANTA_PACKETS;
        if self.filled {
            self.window = (self.window + 1.0).min(target);
        } else if self.window < target || (ack.delivered as f64) < WINDOW_PACKETS_INITIAL {
            self.window += 1.0;
        }
        self.window = self.window.max(WINDOW_PACKETS_MIN);
    }
}

/// 2.885, which is 2 / ln 2: the factor on delivery rate and BDP, for pace and window of simulated
/// BBR during startup. The rate then doubles each round trip. The drain after startup is paced by
/// the inverse factor.
const STARTUP_GAIN: f64 = 2.885;
/// 2 BDP: the window of simulated BBR after its startup, so that delayed acknowledgements do not
/// stop the flow; as in BBR version 1.
const WINDOW_GAIN: f64 = 2.0;
/// Factors on the delivery rate: the pace of simulated BBR in one cycle, a round trip each. One is
/// above 1, one below 1, and six are 1.
const CYCLE_GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// 1: the index in [`CYCLE_GAINS`] of the factor below 1, with which simulated BBR begins no cycle.
const CYCLE_LOW_PLACE: usize = 1;
/// 10 rounds: simulated BBR takes the greatest delivery rate of its last 10 rounds for the rate of
/// the link; as in BBR version 1.
const RATE_ROUNDS: u64 = 10;
/// 1.25 times the rate at the last growth: a round of simulated BBR with a lower rate is one
/// without growth. Three such rounds end the startup; as in BBR version 1.
const STARTUP_GROWTH: f64 = 1.25;
/// 3 rounds of simulated BBR since the rate last grew by a quarter: the link is then filled, and
/// the startup ends. BBR version 1 has the same number.
const ROUNDS_WITHOUT_GROWTH: u32 = 3;
/// 10 s: a least round trip of simulated BBR that is older is measured again, with a window of 4
/// packets; as in BBR version 1.
const ROUND_TRIP_MAX_AGE: Span = Span::from_secs(10);
/// 200 ms: the least time for which simulated BBR has at most 4 packets in flight, to see the round
/// trip without a queue. BBR version 1 has the same time.
const ROUND_TRIP_PROBE: Span = Span::from_ms(200);
/// 4 packets: the least window of simulated BBR, except that of 1 packet after a timeout. With it
/// acknowledgements still come; as in BBR version 1.
const WINDOW_PACKETS_MIN: f64 = 4.0;
/// 3 packets, added to the BDP in the target window of simulated BBR: room for packets that leave
/// together; as in BBR version 1.
const QUANTA_PACKETS: f64 = 3.0;
