//! The trace of congestion control: records of the measurements of each lane and link, for a file.
//!
//! Lanes and engine offer records to a bounded queue and never wait. A record that finds the queue
//! full is lost, and counted. `landbridge run --trace` writes the other end of the queue as JSON lines.

use crate::host::Host;
use crate::observe::versioned::JSON_VERSION;
use congestion_model::{LossCounts, PhaseReason};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use units::TimeNs;

/// 8,192 records, about 2 MB: the most that wait for the reader of a trace; a record that finds the
/// queue full is lost, and counted. Eight lanes make as many in ten seconds, at a round each 10 ms.
const TRACE_QUEUE_RECORDS: usize = 8192;

/// A line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum TraceRecord {
    /// The gateway has started.
    Begin(TraceBegin),
    /// A round trip of a lane has passed.
    Lane(TraceLane),
    /// A lane has changed its phase.
    Transition(TraceTransition),
    /// A link was sampled.
    Link(TraceLink),
    /// Records found the queue full.
    Lost {
        /// How many, since the start.
        records: u64,
    },
}

/// The start of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceBegin {
    /// The version of the keys of all lines; 1 in traces from before it was stated.
    #[serde(default = "first_trace_version")]
    pub version: u32,
    /// The name of the gateway that writes the trace.
    pub gateway: String,
    /// Seconds since 1970 at which the times of the trace begin.
    pub unix_seconds: u64,
}

/// Returns the version of the traces that do not state theirs.
const fn first_trace_version() -> u32 {
    1
}

/// A round trip of a lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceLane {
    /// Seconds since the start of the gateway.
    pub at_seconds: f64,
    /// The name of the peer.
    pub peer: String,
    /// The number of the lane.
    pub lane: u16,
    /// The phase of the model on a shared link, or the controller of the link.
    pub phase: String,
    /// The delivery rate that the controller reckons with, in bits per second.
    pub rate_bits_per_second: u64,
    /// The rate at which this round's bytes were acknowledged, in bits per second.
    pub round_bits_per_second: u64,
    /// The pacing rate in bits per second; `None` without one.
    pub pace_bits_per_second: Option<u64>,
    /// The congestion window in bytes.
    pub window_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// The least RTT of the round in seconds; the smoothed RTT on links that are not shared.
    pub rtt_seconds: f64,
    /// The RTT without a queue in seconds.
    pub min_rtt_seconds: f64,
    /// Whether window or pace held the sender.
    pub is_held: bool,
    /// Whether a queue stood all the round; `None` on links that are not shared.
    pub is_queued: Option<bool>,
    /// Lost packets so far; `None` on shared links, which count bytes.
    pub lost_packets: Option<u64>,
    /// Bytes lost so far, by kind; `None` on links that are not shared.
    pub losses: Option<TraceLosses>,
}

/// Lost bytes by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLosses {
    /// Bytes lost at random.
    pub random_bytes: u64,
    /// Bytes dropped by a queue.
    pub queue_bytes: u64,
    /// Bytes lost in outages.
    pub outage_bytes: u64,
}

/// A change of a lane's phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceTransition {
    /// Seconds since the start of the gateway.
    pub at_seconds: f64,
    /// The name of the peer.
    pub peer: String,
    /// The number of the lane.
    pub lane: u16,
    /// The phase before.
    pub from: String,
    /// The phase after.
    pub to: String,
    /// The reason in words.
    pub reason: String,
    /// The delivery rate in bits per second.
    pub rate_bits_per_second: u64,
    /// The RTT without a queue in seconds.
    pub min_rtt_seconds: f64,
}

/// A sample of the link to a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceLink {
    /// Seconds since the start of the gateway.
    pub at_seconds: f64,
    /// The name of the peer.
    pub peer: String,
    /// Lanes that are up.
    pub lanes: u16,
    /// The rate limit of the link in bits per second.
    pub limit_bits_per_second: u64,
    /// The measured capacity in bits per second; `None` while no lower one than the limit is known.
    pub capacity_bits_per_second: Option<u64>,
    /// The least RTT since the last sample in seconds; `None` without an acknowledgement.
    pub rtt_seconds: Option<f64>,
    /// Packets sent so far.
    pub sent_packets: u64,
    /// Packets lost so far.
    pub lost_packets: u64,
    /// Bytes acknowledged so far.
    pub delivered_bytes: u64,
    /// Whether segments wait to be sent.
    pub is_waiting: bool,
}

/// The writing end of a trace, or none. Copies write to the same trace.
#[derive(Debug, Clone, Default)]
pub struct LinkTrace(Option<Arc<TraceSink>>);

#[derive(Debug)]
struct TraceSink {
    queue: SyncSender<TraceRecord>,
    lost: Arc<AtomicU64>,
    /// The start of the gateway, on both of its clocks.
    begin: OnceLock<(Instant, TimeNs)>,
}

/// The reading end of a trace.
#[derive(Debug)]
pub struct LinkTraceReader {
    records: Receiver<TraceRecord>,
    lost: Arc<AtomicU64>,
    /// Lost records of which [`TraceRecord::Lost`] has told.
    told: u64,
}

/// The trace of one lane.
#[derive(Debug, Clone)]
pub(crate) struct LaneTrace {
    trace: LinkTrace,
    peer: Arc<str>,
    lane: u16,
}

/// The trace of the link to one peer.
#[derive(Debug, Clone)]
pub struct PeerTrace {
    trace: LinkTrace,
    peer: Arc<str>,
}

impl LinkTrace {
    /// Makes the two ends of a trace.
    pub fn with_reader() -> (Self, LinkTraceReader) {
        let (queue, records) = sync_channel(TRACE_QUEUE_RECORDS);
        let lost = Arc::new(AtomicU64::new(0));
        let sink = TraceSink { queue, lost: Arc::clone(&lost), begin: OnceLock::new() };
        (Self(Some(Arc::new(sink))), LinkTraceReader { records, lost, told: 0 })
    }

    /// Begins the times of the trace, at the start of the gateway of this name.
    pub(crate) fn begin(&self, host: &dyn Host, gateway: &str) {
        let Some(sink) = &self.0 else { return };
        // A gateway starts once.
        let _ = sink.begin.set((host.quic_runtime().now(), host.now()));
        let (version, unix_seconds) = (JSON_VERSION, host.unix_seconds());
        let gateway = gateway.to_owned();
        self.offer(TraceRecord::Begin(TraceBegin { version, gateway, unix_seconds }));
    }

    /// Returns the part of the trace on the link to the peer of this name.
    pub(crate) fn of_peer(&self, peer: &str) -> PeerTrace {
        PeerTrace { trace: self.clone(), peer: peer.into() }
    }

    /// Hands a record to the reader, or counts it as lost.
    fn offer(&self, record: TraceRecord) {
        if let Some(sink) = &self.0
            && sink.queue.try_send(record).is_err()
        {
            sink.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the seconds from the start of the gateway to an instant.
    fn seconds_at(&self, at: Instant) -> f64 {
        let begin = self.0.as_ref().and_then(|sink| sink.begin.get());
        begin.map_or(0.0, |(begin, _)| at.saturating_duration_since(*begin).as_secs_f64())
    }

    /// Returns the seconds from the start of the gateway to a time of its host.
    fn seconds_at_time(&self, at: TimeNs) -> f64 {
        let begin = self.0.as_ref().and_then(|sink| sink.begin.get());
        begin.map_or(0.0, |(_, begin)| at.since(*begin).as_secs_f64())
    }
}

impl LinkTraceReader {
    /// Waits up to `patience` for the next record of the trace. Returns `None` if none comes.
    /// Returns the number of lost records first, if more were lost since the last call.
    ///
    /// # Errors
    /// [`TraceEnded`]: there is no writer any more, and no record is left.
    pub fn next_record(&mut self, patience: Duration) -> Result<Option<TraceRecord>, TraceEnded> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > self.told {
            self.told = lost;
            return Ok(Some(TraceRecord::Lost { records: lost }));
        }
        match self.records.recv_timeout(patience) {
            Ok(record) => Ok(Some(record)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TraceEnded),
        }
    }

    /// Returns the next record of the trace if one waits, without waiting for it.
    pub fn waiting_record(&mut self) -> Option<TraceRecord> {
        self.records.try_recv().ok()
    }
}

/// A trace has ended: its gateway is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway of the trace is gone")]
pub struct TraceEnded;

impl PeerTrace {
    /// Returns the part of the trace on one lane to this peer.
    pub(crate) fn of_lane(&self, lane: u16) -> LaneTrace {
        LaneTrace { trace: self.trace.clone(), peer: Arc::clone(&self.peer), lane }
    }

    /// Writes a sample of the link, which `sample` makes from seconds and name only if there is a
    /// trace.
    pub(crate) fn record_sample(&self, at: TimeNs, sample: impl FnOnce(f64, String) -> TraceLink) {
        if self.trace.0.is_some() {
            let sample = sample(self.trace.seconds_at_time(at), self.peer.to_string());
            self.trace.offer(TraceRecord::Link(sample));
        }
    }
}

impl LaneTrace {
    /// Writes a round of the lane, if there is a trace: `round` adds its measurements.
    pub fn record_round(&self, at: Instant, phase: &str, round: impl FnOnce(&mut TraceLane)) {
        if self.trace.0.is_none() {
            return;
        }
        let mut record = TraceLane {
            at_seconds: self.trace.seconds_at(at),
            peer: self.peer.to_string(),
            lane: self.lane,
            phase: phase.to_owned(),
            rate_bits_per_second: 0,
            round_bits_per_second: 0,
            pace_bits_per_second: None,
            window_bytes: 0,
            in_flight_bytes: 0,
            rtt_seconds: 0.0,
            min_rtt_seconds: 0.0,
            is_held: false,
            is_queued: None,
            lost_packets: None,
            losses: None,
        };
        round(&mut record);
        self.trace.offer(TraceRecord::Lane(record));
    }

    /// Writes a change of the lane's phase, if there is a trace. `found` is the delivery rate in bytes
    /// per second and the min RTT in seconds.
    pub fn record_transition(
        &self,
        at: Instant,
        (from, to): (&str, &str),
        reason: PhaseReason,
        (rate, min_rtt_seconds): (f64, f64),
    ) {
        if self.trace.0.is_some() {
            self.trace.offer(TraceRecord::Transition(TraceTransition {
                at_seconds: self.trace.seconds_at(at),
                peer: self.peer.to_string(),
                lane: self.lane,
                from: from.to_owned(),
                to: to.to_owned(),
                reason: reason.text().to_owned(),
                rate_bits_per_second: (8.0 * rate) as u64,
                min_rtt_seconds,
            }));
        }
    }
}

impl From<LossCounts> for TraceLosses {
    /// Copies the counts of lost bytes.
    fn from(counts: LossCounts) -> Self {
        let LossCounts { random_bytes, queue_bytes, outage_bytes } = counts;
        Self { random_bytes, queue_bytes, outage_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_trace_queue_loses_records_and_counts_them() {
        let (trace, mut reader) = LinkTrace::with_reader();
        let lane = trace.of_peer("west-0").of_lane(3);
        for _ in 0..TRACE_QUEUE_RECORDS + 5 {
            lane.record_round(Instant::now(), "cruise", |round| round.window_bytes = 7);
        }
        let next = reader.next_record(Duration::ZERO);
        assert_eq!(next, Ok(Some(TraceRecord::Lost { records: 5 })));
        let kept = std::iter::from_fn(|| reader.waiting_record());
        assert_eq!(kept.count(), TRACE_QUEUE_RECORDS);
        assert_eq!(reader.next_record(Duration::ZERO), Ok(None), "told once");
        drop((trace, lane));
        assert_eq!(reader.next_record(Duration::ZERO), Err(TraceEnded));
    }

    #[test]
    fn no_trace_costs_no_record() {
        let lane = LinkTrace::default().of_peer("west-0").of_lane(0);
        lane.record_round(Instant::now(), "cruise", |_| unreachable!("no trace"));
    }
}
