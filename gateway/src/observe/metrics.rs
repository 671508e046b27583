//! The one table of metric names. A handle is an atomic: take it once, then count with it.

use super::status::StragglerStatus;
use crate::memory::arena::Mapped;
use hier_collectives::ids::RankId;
use hier_collectives::session::Discard;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// A gauge of a real number.
pub type RealGauge = Gauge<f64, AtomicU64>;

/// How a collective ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Every local rank has its result.
    Completed,
    /// Trainers posted what does not fit together.
    Disagreed,
    /// Anything else: a lost peer, an epoch's end, a deadline.
    Failed,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Disagreed => "disagreed",
            Self::Failed => "failed",
        }
    }
}

const fn reason(discard: Discard) -> &'static str {
    match discard {
        Discard::Group => "other_group",
        Discard::Epoch => "other_epoch",
        Discard::Duplicate => "duplicate",
        Discard::Failed => "failed_collective",
        Discard::Disagreement => "disagreement",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabel {
    peer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PayloadLabel {
    peer: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabel {
    job: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabel {
    job: String,
    rank: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StragglerLabel {
    job: String,
    kind: String,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CollectiveLabel {
    job: String,
    op: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpLabel {
    job: String,
    op: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabel {
    reason: &'static str,
}

/// All metrics of one gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    epoch: Family<JobLabel, Gauge>,
    scratch_bytes: Family<JobLabel, Gauge>,
    scratch_bytes_max: Family<JobLabel, Gauge>,
    mapped_bytes: Family<JobLabel, Gauge>,
    mapped_bytes_max: Family<JobLabel, Gauge>,
    awaited_seconds: Family<RankLabel, RealGauge>,
    straggler_seconds: Family<StragglerLabel, RealGauge>,
    waiting_commits: Family<JobLabel, Gauge>,
    commit_awaited_seconds: Family<JobLabel, RealGauge>,
    draining: Family<JobLabel, Gauge>,
    /// Segments in place.
    pub segments: Counter,
    collectives: Family<CollectiveLabel, Counter>,
    seconds: Family<OpLabel, Histogram>,
    dropped_segments: Family<DropLabel, Counter>,
    payload_bytes: Family<PayloadLabel, Counter>,
    resent_bytes: Family<PeerLabel, Counter>,
    parity_bytes: Family<PeerLabel, Counter>,
    restored_segments: Family<PeerLabel, Counter>,
    lost_packets: Family<PeerLabel, Counter>,
    loss_ratio: Family<PeerLabel, RealGauge>,
    loss_alarm: Family<PeerLabel, Gauge>,
    loss_alarms: Family<PeerLabel, Counter>,
    lanes_up: Family<PeerLabel, Gauge>,
    rtt_seconds: Family<PeerLabel, RealGauge>,
}

/// The counters that concern one job.
#[derive(Debug, Clone)]
pub struct JobMetrics {
    job: String,
    /// The epoch under way; 0 while there is none.
    pub epoch: Gauge,
    /// Memory of the gateway in use for partials and for segments that landed early, in bytes.
    pub scratch_bytes: Gauge,
    /// The most that it ever was.
    pub scratch_bytes_max: Gauge,
    /// Memory of the gateway that is mapped for the job: in use, kept for what comes next, or
    /// still read by QUIC.
    pub mapped: Mapped,
    awaited_seconds: Family<RankLabel, RealGauge>,
    straggler_seconds: Family<StragglerLabel, RealGauge>,
    /// Commits of local ranks that wait.
    pub waiting_commits: Gauge,
    /// How long the oldest of them has waited, in seconds; 0 when there is none.
    pub commit_awaited_seconds: RealGauge,
    /// 1 while the gateway shuts down in order.
    pub draining: Gauge,
    /// The one that is shown.
    straggler: Arc<Mutex<Option<StragglerLabel>>>,
    collectives: Family<CollectiveLabel, Counter>,
    seconds: Family<OpLabel, Histogram>,
}

/// The counters that concern one peer.
#[derive(Debug, Clone)]
pub struct PeerMetrics {
    /// Payload sent for the first time, in bytes.
    pub sent_bytes: Counter,
    /// Payload that arrived for the first time, in bytes.
    pub received_bytes: Counter,
    /// Payload sent again after a lost lane, in bytes.
    pub resent_bytes: Counter,
    /// Parity sent behind tail segments, in bytes.
    pub parity_bytes: Counter,
    /// Segments in place thanks to parity, before what was lost came again.
    pub restored_segments: Counter,
    /// Packets that the lanes declared lost.
    pub lost_packets: Counter,
    /// Share of packets lost in the last ten seconds, from 0 to 1.
    pub loss_ratio: RealGauge,
    /// 1 while that is more than the fabric expects.
    pub loss_alarm: Gauge,
    /// How often it became more.
    pub loss_alarms: Counter,
    /// Lanes connected.
    pub lanes_up: Gauge,
    /// Smoothed round-trip time of the fastest lane, in seconds.
    pub rtt_seconds: RealGauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("landbridge"),
            epoch: Family::default(),
            scratch_bytes: Family::default(),
            scratch_bytes_max: Family::default(),
            mapped_bytes: Family::default(),
            mapped_bytes_max: Family::default(),
            awaited_seconds: Family::default(),
            straggler_seconds: Family::default(),
            waiting_commits: Family::default(),
            commit_awaited_seconds: Family::default(),
            draining: Family::default(),
            segments: Counter::default(),
            collectives: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, SECONDS_BUCKETS))
            }),
            dropped_segments: Family::default(),
            payload_bytes: Family::default(),
            resent_bytes: Family::default(),
            parity_bytes: Family::default(),
            restored_segments: Family::default(),
            lost_packets: Family::default(),
            loss_ratio: Family::default(),
            loss_alarm: Family::default(),
            loss_alarms: Family::default(),
            lanes_up: Family::default(),
            rtt_seconds: Family::default(),
        };
        metrics.register();
        metrics
    }

    /// The counters of one job; the same ones at each call.
    pub fn job(&self, job: &str) -> JobMetrics {
        let label = JobLabel { job: job.to_owned() };
        JobMetrics {
            epoch: self.epoch.get_or_create_owned(&label),
            scratch_bytes: self.scratch_bytes.get_or_create_owned(&label),
            scratch_bytes_max: self.scratch_bytes_max.get_or_create_owned(&label),
            mapped: Mapped {
                bytes: self.mapped_bytes.get_or_create_owned(&label),
                most: self.mapped_bytes_max.get_or_create_owned(&label),
            },
            awaited_seconds: self.awaited_seconds.clone(),
            straggler_seconds: self.straggler_seconds.clone(),
            waiting_commits: self.waiting_commits.get_or_create_owned(&label),
            commit_awaited_seconds: self.commit_awaited_seconds.get_or_create_owned(&label),
            draining: self.draining.get_or_create_owned(&label),
            straggler: Arc::default(),
            collectives: self.collectives.clone(),
            seconds: self.seconds.clone(),
            job: label.job,
        }
    }

    /// Segments that arrived and were not used.
    pub fn dropped_segments(&self, discard: Discard) -> Counter {
        self.dropped_segments.get_or_create_owned(&DropLabel { reason: reason(discard) })
    }

    /// The counters of one peer; the same ones at each call.
    pub fn peer(&self, gateway: &str) -> PeerMetrics {
        let payload = |direction| {
            let label = PayloadLabel { peer: gateway.to_owned(), direction };
            self.payload_bytes.get_or_create_owned(&label)
        };
        let label = PeerLabel { peer: gateway.to_owned() };
        PeerMetrics {
            sent_bytes: payload("sent"),
            received_bytes: payload("received"),
            resent_bytes: self.resent_bytes.get_or_create_owned(&label),
            parity_bytes: self.parity_bytes.get_or_create_owned(&label),
            restored_segments: self.restored_segments.get_or_create_owned(&label),
            lost_packets: self.lost_packets.get_or_create_owned(&label),
            loss_ratio: self.loss_ratio.get_or_create_owned(&label),
            loss_alarm: self.loss_alarm.get_or_create_owned(&label),
            loss_alarms: self.loss_alarms.get_or_create_owned(&label),
            lanes_up: self.lanes_up.get_or_create_owned(&label),
            rtt_seconds: self.rtt_seconds.get_or_create_owned(&label),
        }
    }

    /// All of them in OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("a string takes all");
        text
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("epoch", "Epoch under way, 0 while there is none", self.epoch.clone());
        let help = "Memory of the gateway in use for a job";
        registry.register_with_unit("scratch", help, Unit::Bytes, self.scratch_bytes.clone());
        let help = "The most memory of the gateway that was ever in use for a job";
        let most = self.scratch_bytes_max.clone();
        registry.register_with_unit("scratch_max", help, Unit::Bytes, most);
        let help = "Memory of the gateway mapped for a job: in use, kept, or still read by QUIC";
        registry.register_with_unit("mapped", help, Unit::Bytes, self.mapped_bytes.clone());
        let help = "The most memory of the gateway that was ever mapped for a job";
        let most = self.mapped_bytes_max.clone();
        registry.register_with_unit("mapped_max", help, Unit::Bytes, most);
        let help = "How long the post of a rank has been awaited";
        let awaited = self.awaited_seconds.clone();
        registry.register_with_unit("awaited", help, Unit::Seconds, awaited);
        let help = "By how much the one that holds the others up was late the last time";
        let straggler = self.straggler_seconds.clone();
        registry.register_with_unit("straggler_behind", help, Unit::Seconds, straggler);
        let help = "Commits of local ranks that wait for some region";
        registry.register("waiting_commits", help, self.waiting_commits.clone());
        let help = "How long the oldest commit that waits has waited, 0 when there is none";
        let waited = self.commit_awaited_seconds.clone();
        registry.register_with_unit("commit_awaited", help, Unit::Seconds, waited);
        let help = "1 while the gateway finishes what is posted, to end then";
        registry.register("draining", help, self.draining.clone());
        registry.register("segments", "Segments in place", self.segments.clone());
        let help = "Collectives that ended, by operation and outcome";
        registry.register("collectives", help, self.collectives.clone());
        let help = "From the last local post to the last local result";
        registry.register_with_unit("collective", help, Unit::Seconds, self.seconds.clone());
        let help = "Segments that arrived and were not used";
        registry.register("dropped_segments", help, self.dropped_segments.clone());
        let help = "Payload over the long haul, counted when first sent or first arrived";
        registry.register_with_unit("wan_payload", help, Unit::Bytes, self.payload_bytes.clone());
        let help = "Payload sent again after a lost lane";
        registry.register_with_unit("wan_resent", help, Unit::Bytes, self.resent_bytes.clone());
        let help = "Parity sent behind the last segments of a collective";
        registry.register_with_unit("wan_parity", help, Unit::Bytes, self.parity_bytes.clone());
        let help = "Segments in place thanks to parity";
        registry.register("restored_segments", help, self.restored_segments.clone());
        registry.register("lost_packets", "Packets declared lost", self.lost_packets.clone());
        let help = "Share of packets lost in the last ten seconds";
        registry.register("loss_ratio", help, self.loss_ratio.clone());
        let help = "1 while more is lost than the fabric expects";
        registry.register("loss_alarm", help, self.loss_alarm.clone());
        let help = "How often the loss rose above what the fabric expects";
        registry.register("loss_alarms", help, self.loss_alarms.clone());
        registry.register("lanes_up", "Lanes connected", self.lanes_up.clone());
        let help = "Smoothed round-trip time of the fastest lane";
        registry.register_with_unit("peer_rtt", help, Unit::Seconds, self.rtt_seconds.clone());
    }
}

impl JobMetrics {
    /// How much of the gateway's memory is in use now.
    pub fn uses_scratch(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.scratch_bytes.set(bytes) < bytes && self.scratch_bytes_max.get() < bytes {
            self.scratch_bytes_max.set(bytes);
        }
    }

    /// Collectives of an operation that ended so.
    pub fn collectives(&self, op: &'static str, outcome: Outcome) -> Counter {
        let label = CollectiveLabel { job: self.job.clone(), op, outcome: outcome.name() };
        self.collectives.get_or_create_owned(&label)
    }

    /// Seconds from the last local post to the last local result, by operation.
    pub fn seconds(&self, op: &'static str) -> Histogram {
        self.seconds.get_or_create_owned(&OpLabel { job: self.job.clone(), op })
    }

    /// Who holds the others up; `None` when nobody does.
    pub fn straggles(&self, straggler: Option<&StragglerStatus>) {
        let of = |straggler: &StragglerStatus| StragglerLabel {
            job: self.job.clone(),
            kind: straggler.kind.clone(),
            name: straggler.name.clone(),
        };
        let mut shown = self.straggler.lock().unwrap_or_else(PoisonError::into_inner);
        let now = straggler.map(of);
        if let Some(before) = shown.take().filter(|before| now.as_ref() != Some(before)) {
            self.straggler_seconds.remove(&before);
        }
        if let (Some(label), Some(straggler)) = (&now, straggler) {
            self.straggler_seconds.get_or_create_owned(label).set(straggler.behind_seconds);
        }
        *shown = now;
    }

    /// For how many seconds a rank has been awaited; `None` when it is not.
    pub fn awaits(&self, rank: RankId, seconds: Option<f64>) {
        let label = RankLabel { job: self.job.clone(), rank: rank.0 };
        match seconds {
            Some(seconds) => {
                self.awaited_seconds.get_or_create_owned(&label).set(seconds);
            }
            None => {
                self.awaited_seconds.remove(&label);
            }
        }
    }
}

/// Doubling from 1 ms: the last bound is 131 s.
const SECONDS_BUCKETS: u16 = 18;
