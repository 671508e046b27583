//! A lane of a shared link: the [`LaneModel`] in quinn's times, and what its lanes have found so far.
//!
//! The congestion controller feeds it (`lane_controller.rs`), on the lane's thread. Its window goes to
//! [`InFlight`](super::in_flight::InFlight), its pacing rate to the lane's pace (`lane_telemetry.rs`). The
//! engine reads its state for plans, status and metrics.

use super::lane_path::LanePath;
use super::path_memory::PathMemory;
use crate::wan::link_trace::LaneTrace;
use congestion_model::{FoundPath, LaneModel, LaneTerms, LossCounts, Phase, Rivals, Transition};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::debug;
use units::{Span, TimeNs};

/// The log target of a line for each change of a lane's phase on a shared link, with its reason. A
/// log filter that names the target at level debug switches the lines on.
const PHASE_LOG_TARGET: &str = "landbridge::phase";
/// 1 h: the time at which a lane begins in its model's clock, so that packets sent up to an hour
/// before have a time too. Earlier packets get the time 0.
const MODEL_BEGIN_TIME: TimeNs = TimeNs::from_ns(3600 * 1_000_000_000);

/// The model of one lane.
#[derive(Debug)]
pub(crate) struct SharedLane {
    model: LaneModel,
    memory: Arc<PathMemory>,
    begin: Instant,
    /// The trace of rounds and transitions.
    trace: Option<LaneTrace>,
}

/// The state of a lane of a shared link.
#[derive(Debug, Clone, Copy)]
pub struct SharedLaneView {
    /// Its phase.
    pub phase: Phase,
    /// Whether others seem to fill the queue of the link.
    pub rivals: Rivals,
    /// The rate and RTT that it has found; `None` during the start.
    pub found: Option<FoundPath>,
    /// The lost bytes by kind.
    pub losses: LossCounts,
}

impl SharedLane {
    /// Creates the model of a lane on `path` that begins at `now`, with packets of `mtu` bytes of UDP
    /// payload.
    pub fn new(path: &LanePath, mtu: u16, now: Instant) -> Self {
        let terms = LaneTerms {
            rtt: path.link.rtt,
            rate_max: path.link.rate.bytes_per_second(),
            packet_bytes: mtu.into(),
            seed: path.probe_seed,
        };
        let memory = Arc::clone(&path.memory);
        Self {
            model: LaneModel::new(terms, memory.found(), MODEL_BEGIN_TIME),
            memory,
            begin: now,
            trace: None,
        }
    }

    /// Tells the model that `bytes` bytes were sent at `now`.
    pub fn note_sent(&mut self, now: Instant, bytes: u64) {
        self.model.note_sent(self.time(now), bytes);
    }

    /// Tells the model that a packet of `bytes` bytes, sent at `sent`, was acknowledged at `now`.
    pub fn note_acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.model.note_acked(self.time(now), self.time(sent), bytes);
    }

    /// Tells the model that all packets that one packet of the peer acknowledged were noted;
    /// `is_held` says whether the sender waits for window or pace.
    pub fn end_acks(&mut self, now: Instant, in_flight: u64, is_held: bool) {
        self.model.end_acks(self.time(now), in_flight, is_held);
        self.trace_round(now, in_flight);
        self.follow_transition(now);
    }

    /// Tells the model that `bytes` bytes were lost at once; 0 stands for an ECN CE mark.
    pub fn note_congestion(&mut self, now: Instant, bytes: u64) {
        if bytes > 0 {
            self.model.note_lost(bytes);
        } else {
            self.model.note_marked();
            self.follow_transition(now);
        }
    }

    /// Begins the measurement of the capacity by packet trains, in a startup.
    pub fn begin_packet_trains(&mut self, now: Instant) {
        self.model.begin_packet_trains();
        self.follow_transition(now);
    }

    /// Ends the measurement by packet trains, which found `capacity` bytes per second for this lane.
    /// Without, the lane takes what another lane has found meanwhile, or goes on with its startup.
    pub fn end_packet_trains(&mut self, now: Instant, capacity: Option<f64>) {
        let found = || self.memory.found().map(|found| found.rate);
        self.model.end_packet_trains(capacity.or_else(found));
        self.follow_transition(now);
    }

    /// Changes the packet size, in bytes of UDP payload.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.model.set_packet_bytes(mtu.into());
    }

    /// Sets the most that the lane may send to the rate limit of `path`.
    pub fn set_path(&mut self, path: &LanePath) {
        self.model.set_rate_max(path.link.rate.bytes_per_second());
    }

    /// Returns the congestion window of the model in bytes.
    pub fn window(&self) -> u64 {
        self.model.window()
    }

    /// Returns the rate in bytes per second at which the model lets the lane send.
    pub fn pacing_rate(&self) -> f64 {
        self.model.pacing_rate()
    }

    /// Returns the delivery rate that the model measured, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.model.rate()
    }

    /// Returns phase, rivals, found rate and RTT, and losses of the lane, for status and metrics.
    pub fn view(&self) -> SharedLaneView {
        let model = &self.model;
        SharedLaneView {
            phase: model.phase(),
            rivals: model.rivals(),
            found: model.found(),
            losses: model.losses(),
        }
    }

    /// Traces rounds and transitions from now on.
    pub fn trace_to(&mut self, trace: LaneTrace) {
        self.trace = Some(trace);
    }

    /// Writes the round that has ended last, if it is new, to the trace.
    fn trace_round(&mut self, now: Instant, in_flight: u64) {
        let (Some(round), Some(trace)) = (self.model.take_round(), &self.trace) else { return };
        let model = &self.model;
        let bits = |bytes: f64| (8.0 * bytes) as u64;
        trace.record_round(now, model.phase().name(), |record| {
            record.rate_bits_per_second = bits(model.rate());
            record.round_bits_per_second = bits(round.rate);
            record.pace_bits_per_second = Some(bits(model.pacing_rate()));
            record.window_bytes = model.window();
            record.in_flight_bytes = in_flight;
            record.rtt_seconds = round.least_rtt.as_secs_f64();
            record.min_rtt_seconds = model.min_rtt().as_secs_f64();
            record.is_held = round.is_held;
            record.is_queued = Some(round.is_queued);
            record.losses = Some(model.losses().into());
        });
    }

    /// Logs and traces a new transition of the phase, and stores rate and RTT found so far in the path
    /// memory.
    fn follow_transition(&mut self, now: Instant) {
        let Some(Transition { from, to, reason }) = self.model.take_transition() else { return };
        if let Some(found) = self.model.found() {
            self.memory.set_found(found);
        }
        if let Some(trace) = &self.trace {
            let found = (self.model.rate(), self.model.min_rtt().as_secs_f64());
            trace.record_transition(now, (from.name(), to.name()), reason, found);
        }
        debug!(
            target: PHASE_LOG_TARGET,
            from = from.name(),
            to = to.name(),
            rate_bits_per_second = (8.0 * self.model.rate()) as u64,
            min_rtt = %self.model.min_rtt(),
            rivals = ?self.model.rivals(),
            "phase {} after {}: {}",
            to.name(),
            from.name(),
            reason.text()
        );
    }

    /// Converts an instant to the model's time, which begins at [`MODEL_BEGIN_TIME`] with the lane.
    fn time(&self, at: Instant) -> TimeNs {
        let span = |duration: Duration| {
            Span::from_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
        };
        let before = span(self.begin.saturating_duration_since(at));
        let after = span(at.saturating_duration_since(self.begin));
        TimeNs::from_ns(MODEL_BEGIN_TIME.ns().saturating_sub(before.ns())) + after
    }
}
