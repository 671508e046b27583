//! The table of all metrics: their names, help texts and labels.

use super::job::JobMetrics;
use super::labels::{
    CollectiveLabel, DropLabel, JobLabel, LaneLabel, LinkLabel, OpLabel, PayloadLabel, PeerLabel,
    RankLabel, StragglerLabel, discard_label,
};
use super::lane::LaneMetrics;
use super::peer::{PeerMetrics, RealCounter, RealGauge};
use crate::memory::arena::MappedGauges;
use hier_collectives::session::Discard;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::net::SocketAddr;
use std::sync::Arc;

/// All metrics of one gateway.
#[derive(Debug)]
pub struct MetricsRegistry {
    registry: Registry,
    epoch: Family<JobLabel, Gauge>,
    scratch_bytes: Family<JobLabel, Gauge>,
    scratch_bytes_max: Family<JobLabel, Gauge>,
    mapped_bytes: Family<JobLabel, Gauge>,
    mapped_bytes_max: Family<JobLabel, Gauge>,
    awaited_seconds: Family<RankLabel, RealGauge>,
    straggler_seconds: Family<StragglerLabel, RealGauge>,
    straggler_lost: Family<StragglerLabel, RealCounter>,
    waiting_commits: Family<JobLabel, Gauge>,
    commit_awaited_seconds: Family<JobLabel, RealGauge>,
    draining: Family<JobLabel, Gauge>,
    /// Segments that arrived and were used.
    pub segments: Counter,
    /// 1 while collectives can run, else 0. The problem of a socket is not part of it.
    pub ready: Gauge,
    /// Differences between the jobs of this gateway and of others.
    pub job_differences: Gauge,
    /// Log lines that could not be written, or that nobody read.
    pub lost_log_lines: Counter,
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
    lanes_missing: Family<PeerLabel, Gauge>,
    link_down: Family<LinkLabel, Gauge>,
    rtt_seconds: Family<PeerLabel, RealGauge>,
    udp_send_calls: Family<LaneLabel, Counter>,
    udp_sent_packets: Family<LaneLabel, Counter>,
}

impl Default for MetricsRegistry {
    /// Makes all metrics, at zero.
    fn default() -> Self {
        Self::new()
    }
}

impl MetricsRegistry {
    /// Makes all metrics, at zero.
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
            straggler_lost: Family::default(),
            waiting_commits: Family::default(),
            commit_awaited_seconds: Family::default(),
            draining: Family::default(),
            segments: Counter::default(),
            ready: Gauge::default(),
            job_differences: Gauge::default(),
            lost_log_lines: Counter::default(),
            collectives: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, COLLECTIVE_SECONDS_BUCKETS))
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
            lanes_missing: Family::default(),
            link_down: Family::default(),
            rtt_seconds: Family::default(),
            udp_send_calls: Family::default(),
            udp_sent_packets: Family::default(),
        };
        metrics.register_all();
        metrics.register_lanes();
        metrics
    }

    /// Returns the metrics of one job; every call for a job returns the same ones.
    pub fn job_metrics(&self, job: &str) -> JobMetrics {
        let label = JobLabel { job: job.to_owned() };
        JobMetrics {
            epoch: self.epoch.get_or_create_owned(&label),
            scratch_bytes: self.scratch_bytes.get_or_create_owned(&label),
            scratch_bytes_max: self.scratch_bytes_max.get_or_create_owned(&label),
            mapped: MappedGauges {
                bytes: self.mapped_bytes.get_or_create_owned(&label),
                most: self.mapped_bytes_max.get_or_create_owned(&label),
            },
            awaited_seconds: self.awaited_seconds.clone(),
            straggler_seconds: self.straggler_seconds.clone(),
            straggler_lost: self.straggler_lost.clone(),
            waiting_commits: self.waiting_commits.get_or_create_owned(&label),
            commit_awaited_seconds: self.commit_awaited_seconds.get_or_create_owned(&label),
            draining: self.draining.get_or_create_owned(&label),
            straggler: Arc::default(),
            collectives: self.collectives.clone(),
            seconds: self.seconds.clone(),
            job: label.job,
        }
    }

    /// Returns the counter of segments that arrived and were not used for this reason.
    pub fn dropped_segments(&self, discard: Discard) -> Counter {
        self.dropped_segments.get_or_create_owned(&DropLabel { reason: discard_label(discard) })
    }

    /// Returns the gauge that is 1 while a link is down and gone round, else 0.
    pub fn link_down(&self, link: &str) -> Gauge {
        self.link_down.get_or_create_owned(&LinkLabel { link: link.to_owned() })
    }

    /// Returns the metrics of one peer from the registry; all calls with an equal gateway name
    /// share them.
    pub fn peer_metrics(&self, gateway: &str) -> PeerMetrics {
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
            lanes_missing: self.lanes_missing.get_or_create_owned(&label),
            rtt_seconds: self.rtt_seconds.get_or_create_owned(&label),
        }
    }

    /// Returns the counters of the UDP socket of a lane that listens on `address`.
    pub fn lane_metrics(&self, lane: u16, address: SocketAddr) -> LaneMetrics {
        let label = LaneLabel { lane, address: address.to_string() };
        LaneMetrics {
            send_calls: self.udp_send_calls.get_or_create_owned(&label),
            sent_packets: self.udp_sent_packets.get_or_create_owned(&label),
        }
    }

    /// Returns all metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("a string takes every write");
        text
    }

    /// Registers all metrics but those of lanes under their names, with help texts and units.
    fn register_all(&mut self) {
        let registry = &mut self.registry;
        registry.register("epoch", "Current epoch; 0 while there is none", self.epoch.clone());
        let help =
            "Scratch memory of the gateway in use for a job: partial sums and early segments";
        registry.register_with_unit("scratch", help, Unit::Bytes, self.scratch_bytes.clone());
        let help = "Peak of the scratch memory in use for a job";
        let most = self.scratch_bytes_max.clone();
        registry.register_with_unit("scratch_max", help, Unit::Bytes, most);
        let help = "Scratch memory mapped for a job: in use, kept for reuse, or still read by QUIC";
        registry.register_with_unit("mapped", help, Unit::Bytes, self.mapped_bytes.clone());
        let help = "Peak of the scratch memory mapped for a job";
        let most = self.mapped_bytes_max.clone();
        registry.register_with_unit("mapped_max", help, Unit::Bytes, most);
        let help = "Time since the other ranks began to wait for the post of a rank";
        let awaited = self.awaited_seconds.clone();
        registry.register_with_unit("awaited", help, Unit::Seconds, awaited);
        let help = "Delay that the straggler caused in the last collective";
        let straggler = self.straggler_seconds.clone();
        registry.register_with_unit("straggler_behind", help, Unit::Seconds, straggler);
        let help = "Time that a straggler cost the others, over all collectives";
        let lost = self.straggler_lost.clone();
        registry.register_with_unit("straggler_lost", help, Unit::Seconds, lost);
        let help = "Commits of local ranks that wait for a region";
        registry.register("waiting_commits", help, self.waiting_commits.clone());
        let help = "Age of the oldest commit that waits; 0 when there is none";
        let waited = self.commit_awaited_seconds.clone();
        registry.register_with_unit("commit_awaited", help, Unit::Seconds, waited);
        let help = "1 while the gateway finishes posted collectives before it exits, else 0";
        registry.register("draining", help, self.draining.clone());
        registry.register("segments", "Segments that arrived and were used", self.segments.clone());
        let help = "Collectives that ended, by operation and outcome";
        registry.register("collectives", help, self.collectives.clone());
        let help = "Time from the last local post to the last local result";
        registry.register_with_unit("collective", help, Unit::Seconds, self.seconds.clone());
        let help = "Segments that arrived and were not used";
        registry.register("dropped_segments", help, self.dropped_segments.clone());
        let help = "Payload over the WAN, without retransmissions and duplicates";
        registry.register_with_unit("wan_payload", help, Unit::Bytes, self.payload_bytes.clone());
        let help = "Payload requeued because its lane was lost";
        registry.register_with_unit("wan_resent", help, Unit::Bytes, self.resent_bytes.clone());
        let help = "FEC parity sent behind the last segments of collectives";
        registry.register_with_unit("wan_parity", help, Unit::Bytes, self.parity_bytes.clone());
        let help = "Segments restored by FEC before their retransmissions arrived";
        registry.register("restored_segments", help, self.restored_segments.clone());
        registry.register(
            "lost_packets",
            "Packets that the lanes declared lost",
            self.lost_packets.clone(),
        );
        let help = "Fraction of packets lost in the last 10 s, from 0 to 1";
        registry.register("loss_ratio", help, self.loss_ratio.clone());
        let help = "1 while the loss exceeds what the fabric file expects, else 0";
        registry.register("loss_alarm", help, self.loss_alarm.clone());
        let help = "Times that the loss rose above what the fabric file expects";
        registry.register("loss_alarms", help, self.loss_alarms.clone());
        let help = "Log lines lost, because they could not be written or nobody read them";
        registry.register("lost_log_lines", help, self.lost_log_lines.clone());
        registry.register("lanes_up", "Number of lanes connected", self.lanes_up.clone());
        let help = "Number of lanes in use that are not connected";
        registry.register("lanes_missing", help, self.lanes_missing.clone());
        let help = "1 while the link is down and gone round, else 0; shown once it was down";
        registry.register("link_down", help, self.link_down.clone());
        let help = "1 while collectives can run: every job has an epoch, and none drains; else 0";
        registry.register("ready", help, self.ready.clone());
        let help = "Differences between the jobs of this gateway and those of others";
        registry.register("job_differences", help, self.job_differences.clone());
        let help = "Smoothed round-trip time of the fastest lane";
        registry.register_with_unit("peer_rtt", help, Unit::Seconds, self.rtt_seconds.clone());
    }

    /// Registers the metrics of lanes under their names, with help texts.
    fn register_lanes(&mut self) {
        let registry = &mut self.registry;
        let help = "Calls by which a lane handed packets to the system";
        registry.register("udp_send_calls", help, self.udp_send_calls.clone());
        let help = "Packets that a lane handed to the system, often several in one call";
        registry.register("udp_sent_packets", help, self.udp_sent_packets.clone());
    }
}

/// 18 buckets: number in the histogram of seconds that collectives take. The upper bounds double
/// from 1 ms to 131 s, above any sound collective.
const COLLECTIVE_SECONDS_BUCKETS: u16 = 18;
