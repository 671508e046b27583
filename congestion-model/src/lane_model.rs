//! [`LaneModel`]: the phases of a lane, driven by its acknowledgements.

use crate::loss_counts::{LossCounts, LossKind};
use crate::min_rtt::MinRtt;
use crate::phase::{Phase, PhaseReason, Rivals};
use crate::rate_filter::RateFilter;
use crate::round::{Counters, Round, RoundSample};
use units::{Span, TimeNs};

/// The terms of a lane: the facts about its path before anything is measured.
#[derive(Debug, Clone, Copy)]
pub struct LaneTerms {
    /// The RTT to assume until one is measured.
    pub rtt: Span,
    /// The most that the lane may send, in bytes per second.
    pub rate_max: f64,
    /// Bytes of a packet.
    pub packet_bytes: u64,
    /// The seed of the pauses between probes. Both ends of a lane should have different ones.
    pub seed: u64,
}

/// The findings of a lane about its path. A new lane of the path begins with them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundPath {
    /// The delivery rate in bytes per second.
    pub rate: f64,
    /// The RTT without a queue.
    pub min_rtt: Span,
}

/// A change of a lane's phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The phase before.
    pub from: Phase,
    /// The phase after.
    pub to: Phase,
    /// The reason.
    pub reason: PhaseReason,
}

/// The measurements of a round that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundReport {
    /// The delivery rate in bytes per second.
    pub rate: f64,
    /// The least RTT of the packets acknowledged.
    pub least_rtt: Span,
    /// Whether window or pace held the sender, so that no more could arrive.
    pub is_held: bool,
    /// Whether a queue stood all the round.
    pub is_queued: bool,
}

/// The model of one lane. The module above has the drawing of its phases.
#[derive(Debug, Clone)]
pub struct LaneModel {
    terms: LaneTerms,
    phase: Phase,
    /// Rounds that ended in this phase.
    phase_rounds: u32,
    rates: RateFilter,
    min_rtt: MinRtt,
    round: Round,
    /// When the last packet left.
    last_sent: TimeNs,
    /// Whether nothing is acknowledged yet since the begin, or since idle time.
    is_resuming: bool,
    counters: Counters,
    in_flight: u64,
    /// Bytes in flight before the last acknowledgement.
    in_flight_before_ack: u64,
    latest_rtt: Span,
    /// Consecutive packets whose RTT shows a queue.
    queued_packets: u32,
    /// Bytes and length of the last round, if the lane was not idle since.
    last_sample: Option<(u64, Span)>,
    /// The rate of the last round, in bytes per second, if a queue stood all the time.
    queued_rate: Option<f64>,
    /// The window of the startup, in bytes.
    startup_window: f64,
    /// The rate from which growth is counted, in bytes per second.
    growth_base: f64,
    rounds_without_growth: u32,
    /// Probes for more rate so far.
    probes: u64,
    /// Times in a row that a queue stood although the lane had drained its own.
    drains_in_vain: u32,
    /// Rounds for which rivals still count as present.
    rivals_rounds: u32,
    /// The least RTT in the present probe of the min RTT.
    probed_rtt: Option<Span>,
    losses: LossCounts,
    transition: Option<Transition>,
    last_round: Option<RoundReport>,
}

impl LaneModel {
    /// Creates the model of a lane that begins at `now`. It cruises at the rate that another lane
    /// of the path has `found`. Without one it begins a startup with a congestion window of 10 to
    /// 64 packets.
    pub fn new(terms: LaneTerms, found: Option<FoundPath>, now: TimeNs) -> Self {
        let packets = (STARTUP_WINDOW_PACKETS_MAX * terms.packet_bytes) as f64;
        let rate = FIRST_WINDOW_RATE_MAX.min(terms.rate_max);
        let mut rates = RateFilter::default();
        if let Some(found) = found {
            rates.push(found.rate);
        }
        let mut min_rtt = MinRtt::new(terms.rtt, now);
        if let Some(found) = found {
            min_rtt.replace(found.min_rtt, now);
        }
        let counters = Counters { at: now, newest_sent: now, ..Counters::default() };
        let mut model = Self {
            terms,
            phase: if found.is_some() { Phase::Cruise } else { Phase::Startup },
            phase_rounds: 0,
            rates,
            min_rtt,
            round: Round::new(counters, now),
            last_sent: now,
            is_resuming: true,
            counters,
            in_flight: 0,
            in_flight_before_ack: 0,
            latest_rtt: Span::ZERO,
            queued_packets: 0,
            last_sample: None,
            queued_rate: None,
            startup_window: 0.0,
            growth_base: 0.0,
            rounds_without_growth: 0,
            probes: 0,
            drains_in_vain: 0,
            rivals_rounds: 0,
            probed_rtt: None,
            losses: LossCounts::default(),
            transition: None,
            last_round: None,
        };
        let least = (STARTUP_WINDOW_PACKETS_MIN * terms.packet_bytes) as f64;
        model.startup_window = packets.min(rate * model.rtt_seconds()).max(least);
        model
    }

    /// Adds `bytes` sent bytes to those in flight. Leaves the time since the last acknowledgement
    /// out of the measurements if nothing was in flight. It also leaves out a time above 3 min RTTs
    /// plus 100 ms.
    pub fn note_sent(&mut self, now: TimeNs, bytes: u64) {
        let silence = now.since(self.counters.at);
        let silence_max =
            Span::from_ns(SILENCE_MAX_RTTS * self.min_rtt().ns()) + SILENCE_MAX_MARGIN;
        if self.in_flight == 0 && silence > Span::ZERO || silence > silence_max {
            self.min_rtt.exclude_idle_time(silence);
            (self.counters.at, self.is_resuming) = (now, true);
        }
        self.last_sent = now;
        self.in_flight += bytes;
    }

    /// Adds the RTT and the `bytes` bytes of a packet sent at `sent` to min RTT and round. Ends the
    /// round before, if it is complete. In a startup without a queue, adds `bytes` to a congestion
    /// window of which at least half was in flight.
    pub fn note_acked(&mut self, now: TimeNs, sent: TimeNs, bytes: u64) {
        if !self.is_resuming
            && let Some(sample) = self.round.end_before(now, sent, self.last_sent)
        {
            self.end_round(&sample);
        }
        let rtt = now.since(sent);
        self.latest_rtt = rtt;
        self.min_rtt.note(rtt, now);
        self.round.add_packet(sent, rtt);
        self.counters.delivered += bytes;
        self.counters.newest_sent = self.counters.newest_sent.max(sent);
        let is_queued = self.min_rtt.shows_queue(rtt);
        self.queued_packets = if is_queued { self.queued_packets.saturating_add(1) } else { 0 };
        if self.phase == Phase::ProbeRtt && self.phase_rounds >= PROBE_RTT_ROUNDS_BEFORE {
            self.probed_rtt = self.probed_rtt.into_iter().chain([rtt]).min();
        }
        let is_full = 2 * self.in_flight >= self.startup_window as u64;
        if self.phase == Phase::Startup && is_full && !is_queued {
            self.startup_window += bytes as f64;
        }
    }

    /// Ends the acknowledgements that came in one packet of the peer, with `in_flight` bytes left.
    /// `is_held` says that window or pace held the sender. Ends a startup or a probe for more rate
    /// if a queue stands, and a drain that is done.
    pub fn end_acks(&mut self, now: TimeNs, in_flight: u64, is_held: bool) {
        (self.in_flight_before_ack, self.in_flight) = (self.in_flight, in_flight);
        self.counters.at = now;
        self.counters.acks += 1;
        self.counters.held_acks += u64::from(is_held);
        self.round.add_counters(self.counters);
        // A round begins with what comes back: nothing does so for a round trip.
        if std::mem::take(&mut self.is_resuming) {
            self.round = Round::new(self.counters, self.last_sent);
            self.last_sample = None;
        }
        if self.queued_packets >= QUEUED_PACKETS_MIN {
            self.note_queue();
        }
        let drained = self.phase.drained_gain() * self.rate() * self.rtt_seconds();
        let is_drained = in_flight as f64 <= drained;
        match self.phase {
            Phase::Drain if is_drained && self.phase_rounds > 0 => {
                self.enter(Phase::Cruise, PhaseReason::Drained);
            }
            Phase::ProbeDown if is_drained => self.enter(Phase::Cruise, PhaseReason::Drained),
            _ => {}
        }
    }

    /// Ends a startup, or a probe for more rate without rivals, because an ECN CE mark shows a
    /// queue.
    pub fn note_marked(&mut self) {
        self.note_queue();
    }

    /// Removes `bytes` lost bytes from those in flight, and counts and returns the kind of the
    /// loss.
    pub fn note_lost(&mut self, bytes: u64) -> LossKind {
        let in_flight = self.in_flight.max(self.in_flight_before_ack);
        let queued = self.min_rtt.shows_queue(self.latest_rtt);
        let kind = LossKind::judge(bytes, in_flight, queued);
        self.losses.add(kind, bytes);
        self.in_flight = self.in_flight.saturating_sub(bytes);
        kind
    }

    /// Begins the measurement of the capacity by packet trains, in a startup. Until
    /// [`LaneModel::end_packet_trains`] no acknowledgement counts as a measurement of the rate.
    pub fn begin_packet_trains(&mut self) {
        if self.phase == Phase::Startup {
            self.enter(Phase::PacketTrains, PhaseReason::NewPath);
        }
    }

    /// Ends the measurement by packet trains: cruises at `capacity`, in bytes per second, but at no
    /// more than the lane may send. Goes back to the startup if the trains measured none.
    pub fn end_packet_trains(&mut self, capacity: Option<f64>) {
        if self.phase != Phase::PacketTrains {
            return;
        }
        match capacity {
            Some(capacity) => {
                self.rates.replace(capacity.min(self.terms.rate_max));
                self.round = Round::new(self.counters, self.last_sent);
                self.enter(Phase::Cruise, PhaseReason::CapacityMeasured);
            }
            None => self.enter(Phase::Startup, PhaseReason::TrainsUnanswered),
        }
    }

    /// Changes the most that the lane may send, in bytes per second.
    pub fn set_rate_max(&mut self, rate_max: f64) {
        self.terms.rate_max = rate_max;
    }

    /// Changes the bytes of a packet.
    pub fn set_packet_bytes(&mut self, packet_bytes: u64) {
        self.terms.packet_bytes = packet_bytes;
    }

    /// Returns the congestion window: the most bytes that may be in flight.
    pub fn window(&self) -> u64 {
        self.target_window().max(self.window_min()) as u64
    }

    /// Returns the pacing rate in bytes per second.
    pub fn pacing_rate(&self) -> f64 {
        let rate = match self.phase {
            Phase::Startup | Phase::PacketTrains => {
                STARTUP_PACING_GAIN * self.startup_window / self.rtt_seconds()
            }
            phase => phase.pacing_gain() * self.rate(),
        };
        rate.max(self.window_min() / self.rtt_seconds()).min(self.terms.rate_max)
    }

    /// Returns the delivery rate in bytes per second, the greatest of the last rounds. Before the
    /// first round it is the startup's window over the min RTT.
    pub fn rate(&self) -> f64 {
        self.rates.max().unwrap_or(self.startup_window / self.rtt_seconds())
    }

    /// Returns the min RTT: the least RTT of the path, without a queue.
    pub fn min_rtt(&self) -> Span {
        self.min_rtt.get()
    }

    /// Returns the present phase of the lane, such as startup.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether others seem to fill the queue.
    pub fn rivals(&self) -> Rivals {
        if self.rivals_rounds > 0 { Rivals::Present } else { Rivals::Absent }
    }

    /// Returns the lost bytes by kind.
    pub fn losses(&self) -> LossCounts {
        self.losses
    }

    /// Returns the delivery rate and the min RTT that the lane has found, for a new lane of its
    /// path. `None` during startup and packet trains, and before the first round has ended.
    pub fn found(&self) -> Option<FoundPath> {
        let is_starting = matches!(self.phase, Phase::Startup | Phase::PacketTrains);
        let rate = self.rates.max().filter(|_| !is_starting)?;
        Some(FoundPath { rate, min_rtt: self.min_rtt() })
    }

    /// Returns the last change of the phase that was not taken yet.
    pub fn take_transition(&mut self) -> Option<Transition> {
        self.transition.take()
    }

    /// Returns the last round that has ended and was not taken yet.
    pub fn take_round(&mut self) -> Option<RoundReport> {
        self.last_round.take()
    }

    /// Ends a round: adds its delivery rate to the filter, and goes on to the next phase where it
    /// is time.
    fn end_round(&mut self, sample: &RoundSample) {
        let now = self.counters.at;
        self.phase_rounds += 1;
        self.rivals_rounds = self.rivals_rounds.saturating_sub(1);
        let is_queued = self.min_rtt.shows_queue(sample.min_rtt);
        let RoundSample { rate, min_rtt: least_rtt, is_limited: is_held, .. } = *sample;
        self.last_round = Some(RoundReport { rate, least_rtt, is_held, is_queued });
        if !is_queued {
            self.drains_in_vain = 0;
        }
        self.take_rate(sample, is_queued);
        self.last_sample = Some((sample.delivered, sample.length));
        match self.phase {
            Phase::Startup => self.look_for_end_of_growth(sample),
            Phase::ProbeUp if self.phase_rounds >= PROBE_UP_ROUNDS => {
                if !is_queued && sample.rate >= PROBE_GROWTH * self.growth_base {
                    self.enter(Phase::Startup, PhaseReason::Growth);
                } else {
                    self.enter(Phase::ProbeDown, PhaseReason::RoundsPassed);
                }
            }
            Phase::ProbeRtt if self.phase_rounds >= PROBE_RTT_ROUNDS_BEFORE + PROBE_RTT_ROUNDS => {
                if let Some(rtt) = self.probed_rtt.take() {
                    self.min_rtt.replace(rtt, now);
                }
                self.enter(Phase::ProbeDown, PhaseReason::RoundsPassed);
            }
            Phase::ProbeDown if self.phase_rounds >= PROBE_DOWN_ROUNDS_MAX => {
                self.enter(Phase::Cruise, PhaseReason::RoundsPassed);
            }
            Phase::Cruise | Phase::ProbeDown if self.min_rtt.is_unseen(now) => {
                self.enter(Phase::ProbeRtt, PhaseReason::RttUnseen);
            }
            Phase::Cruise if is_queued && sample.is_limited && self.rivals() == Rivals::Absent => {
                self.note_standing_queue();
            }
            Phase::Cruise if sample.is_limited && self.phase_rounds >= self.cruise_rounds() => {
                self.enter(Phase::ProbeUp, PhaseReason::RoundsPassed);
            }
            _ => {}
        }
    }

    /// Adds the delivery rate of a round to the rate filter, except in phases that drain. Without
    /// rivals, two rounds in a row with a queue all the time (`is_queued`) measure the capacity:
    /// the better one replaces the filter's rates. Any other round adds its
    /// [`LaneModel::proven_rate`].
    fn take_rate(&mut self, sample: &RoundSample, is_queued: bool) {
        if matches!(self.phase, Phase::PacketTrains | Phase::ProbeRtt | Phase::ProbeDown) {
            return;
        }
        if self.phase == Phase::Drain {
            // What comes back later left while the window was closed.
            if self.phase_rounds == 1 {
                self.rates.replace(sample.rate);
            }
            return;
        }
        let shows_capacity = is_queued && sample.is_limited && self.rivals() == Rivals::Absent;
        let before =
            std::mem::replace(&mut self.queued_rate, Some(sample.rate).filter(|_| shows_capacity));
        let known = self.rates.max().unwrap_or(0.0);
        if shows_capacity && sample.rate < FALLEN_FRACTION * known {
            self.rates.replace(sample.rate);
        } else if let (Some(before), true) = (before, shows_capacity) {
            self.rates.replace(self.proven_rate(sample, before).max(before));
        } else if sample.is_limited || sample.rate > known {
            self.rates.push(self.proven_rate(sample, known));
        }
    }

    /// Returns the rate of a round, but above the `known` rate no more than this round and the one
    /// before delivered together. A queue on the way back holds acknowledgements of one round and lets
    /// them go in the next, which then looks faster than the link. Each round counts alone in a startup,
    /// where the rate doubles, and beside rivals, where the lane keeps its place.
    fn proven_rate(&self, sample: &RoundSample, known: f64) -> f64 {
        let counts_alone = self.phase == Phase::Startup || self.rivals() == Rivals::Present;
        if counts_alone || sample.rate <= known {
            return sample.rate;
        }
        let both = self.last_sample.map(|(bytes, length)| {
            (bytes + sample.delivered) as f64 / (length + sample.length).as_secs_f64()
        });
        both.unwrap_or(known).clamp(known, sample.rate)
    }

    /// Ends the startup after three rounds in which the rate did not grow by a quarter. A round
    /// counts only if window or pace held the sender, and 10 packets or more were delivered: else
    /// the sender had little data.
    fn look_for_end_of_growth(&mut self, sample: &RoundSample) {
        if sample.rate >= STARTUP_GROWTH * self.growth_base {
            (self.growth_base, self.rounds_without_growth) = (sample.rate, 0);
        } else if sample.is_limited
            && sample.delivered >= STARTUP_WINDOW_PACKETS_MIN * self.terms.packet_bytes
        {
            self.rounds_without_growth += 1;
            if self.rounds_without_growth >= STARTUP_ROUNDS_WITHOUT_GROWTH {
                self.enter(Phase::Drain, PhaseReason::NoGrowth);
            }
        }
    }

    /// Ends a startup, or without rivals a probe for more rate after its first round, because a
    /// queue stands.
    fn note_queue(&mut self) {
        match self.phase {
            Phase::Startup => self.enter(Phase::Drain, PhaseReason::Queue),
            Phase::ProbeUp if self.rivals() == Rivals::Absent && self.phase_rounds > 0 => {
                self.enter(Phase::ProbeDown, PhaseReason::Queue);
            }
            _ => {}
        }
    }

    /// Starts a drain, because a queue stood all of a cruise round. Where two drains in a row have
    /// left a queue, counts rivals as present for 24 rounds instead.
    fn note_standing_queue(&mut self) {
        let after_drain = self.phase_rounds <= DRAIN_IN_VAIN_ROUNDS_MAX;
        self.drains_in_vain = if after_drain { self.drains_in_vain + 1 } else { 0 };
        if self.drains_in_vain >= DRAINS_IN_VAIN_MAX {
            (self.drains_in_vain, self.rivals_rounds) = (0, RIVALS_ROUNDS);
        } else {
            self.enter(Phase::ProbeDown, PhaseReason::Queue);
        }
    }

    /// Enters the phase `to`, resets the counters of a phase, and keeps transition and `reason` for
    /// the log.
    fn enter(&mut self, to: Phase, reason: PhaseReason) {
        debug_assert!(self.phase.may_lead_to(to), "{:?} to {to:?}", self.phase);
        match to {
            Phase::Startup => {
                self.probes = 0;
                self.startup_window = self.rate() * self.rtt_seconds();
                (self.growth_base, self.rounds_without_growth) = (self.rate(), 0);
            }
            // A round from now on brings back what is in flight, with a queue all the time.
            Phase::Drain => self.round = Round::new(self.counters, self.last_sent),
            Phase::ProbeUp => (self.growth_base, self.probes) = (self.rate(), self.probes + 1),
            _ => {}
        }
        self.transition = Some(Transition { from: self.phase, to, reason });
        (self.phase, self.phase_rounds, self.queued_packets) = (to, 0, 0);
    }

    /// Returns the number of rounds of a cruise until the next probe for more rate. It varies,
    /// since the probes of both ends leave queues that delay the acknowledgements of the other. The
    /// first probe comes soon, since the startup may have ended at a queue of the peer's.
    fn cruise_rounds(&self) -> u32 {
        if self.probes == 0 {
            return FIRST_CRUISE_ROUNDS;
        }
        // The multiplier of SplitMix64 spreads the seed over the upper bits.
        let mixed = (self.terms.seed ^ (self.probes << 32)).wrapping_add(1);
        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        CRUISE_ROUNDS_MIN + (mixed % u64::from(CRUISE_ROUNDS_SPREAD)) as u32
    }

    /// Returns the congestion window of the phase in bytes, which [`Self::window_min`] may exceed.
    fn target_window(&self) -> f64 {
        if matches!(self.phase, Phase::Startup | Phase::PacketTrains) {
            return self.startup_window;
        }
        let rtt = self.phase.window_gain(self.rivals()) * self.rtt_seconds();
        // Phases that drain leave no room for late acknowledgements.
        let drains = matches!(self.phase, Phase::Drain | Phase::ProbeDown | Phase::ProbeRtt);
        let slack = if drains { 0.0 } else { WINDOW_SLACK.as_secs_f64() };
        self.rate() * (rtt + slack)
    }

    /// Returns the least congestion window in bytes.
    fn window_min(&self) -> f64 {
        (WINDOW_PACKETS_MIN * self.terms.packet_bytes) as f64
    }

    /// Returns the RTT without a queue, in seconds.
    fn rtt_seconds(&self) -> f64 {
        self.min_rtt.get().max(Span::from_ns(1)).as_secs_f64()
    }
}

/// 1,250,000 bytes per second (10 Mbit/s): the highest rate at which a lane starts. Its first
/// congestion window is at most this rate times the RTT. Most links carry this rate, and ten round
/// trips of doubling make 10 Gbit/s of it.
const FIRST_WINDOW_RATE_MAX: f64 = 1_250_000.0;
/// 64 packets: the largest first congestion window of a lane. More would make a queue of hundreds
/// of packets on a long thin link.
const STARTUP_WINDOW_PACKETS_MAX: u64 = 64;
/// 10 packets: the smallest first congestion window of a lane, as every QUIC sender may have (RFC
/// 9002). With fewer, acknowledgements wait for a timer of the receiver. A startup round that
/// delivers fewer does not count as one without growth.
const STARTUP_WINDOW_PACKETS_MIN: u64 = 10;
/// 2: during startup a lane sends at this multiple of its congestion window over its min RTT, since
/// the window doubles within a round trip.
const STARTUP_PACING_GAIN: f64 = 2.0;
/// 1.25 times the delivery rate at the last growth: a startup round that delivers at least this
/// counts as growth, and the startup goes on. Below the capacity a round reaches twice the rate
/// before.
const STARTUP_GROWTH: f64 = 1.25;
/// 3 rounds since the delivery rate last grew by a quarter: they end the startup, and the lane
/// drains, as in BBR. With 2, a first round that was acknowledged in one burst ended the startup at
/// a fifth of the capacity.
const STARTUP_ROUNDS_WITHOUT_GROWTH: u32 = 3;
/// 8 acknowledged packets in a row whose RTT shows a queue: they prove that a queue stands. That
/// ends a startup or, without rivals, a probe for more rate. The number is chosen; a late timer
/// alone may delay fewer packets.
const QUEUED_PACKETS_MIN: u32 = 8;
/// 2 rounds: the length of the cruise between a startup and the first probe for more rate. This
/// cruise is short, since a startup may end below the capacity.
const FIRST_CRUISE_ROUNDS: u32 = 2;
/// 6 rounds: the shortest cruise between two probes for more rate. The number is chosen, since a
/// probe costs a tenth of a round trip.
const CRUISE_ROUNDS_MIN: u32 = 6;
/// 5 lengths: a cruise between two probes for more rate lasts 6, 7, 8, 9 or 10 rounds. The lane's
/// seed draws the length, so that lanes probe at different times.
const CRUISE_ROUNDS_SPREAD: u32 = 5;
/// 2 rounds: a probe for more rate ends after them, or earlier at a queue. The second round brings
/// the acknowledgements of packets that the first round sent.
const PROBE_UP_ROUNDS: u32 = 2;
/// 2 rounds: the longest time for which a lane sends below its delivery rate to drain a queue; then
/// the lane cruises. A queue that still stands is not the lane's, or waits on the way back.
const PROBE_DOWN_ROUNDS_MAX: u32 = 2;
/// 1.08 times the delivery rate before a probe: a probe that delivers at least this without a queue
/// has found capacity, and a startup follows. The probe sends at 1.15 times the rate before.
const PROBE_GROWTH: f64 = 1.08;
/// 2 rounds after a drain: a queue that stands in one of them was left by the drain, which was then
/// in vain. The number is chosen.
const DRAIN_IN_VAIN_ROUNDS_MAX: u32 = 2;
/// 2 drains in a row that leave a queue: the queue is then of rivals (other flows), and the lane
/// drains no more for it. The first drain may have used a rate that was too high.
const DRAINS_IN_VAIN_MAX: u32 = 2;
/// 24 rounds, about two cycles of probes: for so long after two drains in vain, rivals (other flows
/// that fill the queue) count as present. Meanwhile the lane's congestion window is larger.
const RIVALS_ROUNDS: u32 = 24;
/// 0.6 times the known delivery rate: one round with a queue that delivers less shows that the
/// capacity has fallen. Its rate then replaces the known one. The peer's probes delay
/// acknowledgements by less.
const FALLEN_FRACTION: f64 = 0.6;
/// 2 rounds at the start of a probe of the min RTT. The RTT is not measured in them, since the
/// lane's own queue still drains.
const PROBE_RTT_ROUNDS_BEFORE: u32 = 2;
/// 1 round of a probe of the min RTT in which the RTT is measured, after 2 rounds of draining; then
/// the probe ends. Every packet of this round left without a queue of the lane.
const PROBE_RTT_ROUNDS: u32 = 1;
/// 4 packets: the least congestion window of a lane in every phase, with which acknowledgements
/// still come, as in BBR.
const WINDOW_PACKETS_MIN: u64 = 4;
/// 3 times the min RTT, plus [`SILENCE_MAX_MARGIN`]: a longer time without an acknowledgement is left out
/// of a lane's measurements. The lane was idle, or its path was out. The number is chosen.
const SILENCE_MAX_RTTS: u64 = 3;
/// 100 ms, added to 3 times the min RTT: a longer time without an acknowledgement is left out of a
/// lane's measurements. The time is chosen, since a peer may delay an acknowledgement by 25 ms.
const SILENCE_MAX_MARGIN: Span = Span::from_ms(100);
/// 2 ms times the delivery rate: bytes added to the congestion window, except in phases that drain,
/// for late acknowledgements. A timer has steps of 1 ms; the time is that of two steps.
const WINDOW_SLACK: Span = Span::from_ms(2);
