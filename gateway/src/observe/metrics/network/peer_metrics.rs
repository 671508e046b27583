//! The metrics of one peer.

use crate::observe::metrics::exposition::MetricsExposition;
use crate::observe::metrics::labels::{LossLabel, PayloadLabel, PeerInfoLabel, PeerLabel};
use crate::observe::metrics::metric_description::MetricDescription;
use congestion_model::LossCounts;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::atomic::AtomicU64;

/// A gauge of a real number.
pub type RealGauge = Gauge<f64, AtomicU64>;

/// A counter of a real number.
pub type RealCounter = Counter<f64, AtomicU64>;

/// The metrics of one peer. Clones share them.
#[derive(Debug, Clone)]
pub struct PeerMetrics {
    /// Payload sent, without retransmissions, in bytes.
    pub sent_bytes: Counter,
    /// Payload received, without duplicates, in bytes.
    pub received_bytes: Counter,
    /// Payload requeued because its lane was lost, in bytes.
    pub resent_bytes: Counter,
    /// FEC parity sent behind the last segments of collectives, in bytes.
    pub parity_bytes: Counter,
    /// Segments restored by FEC before their retransmissions arrived.
    pub restored_segments: Counter,
    /// Packets sent by the lanes.
    pub sent_packets: Counter,
    /// Packets that the lanes declared lost.
    pub lost_packets: Counter,
    /// Bytes lost on a `shared` link: at random, by a queue, and in outages.
    lost_bytes: [Counter; 3],
    /// Fraction of packets lost in the last 10 s, from 0 to 1.
    pub loss_ratio: RealGauge,
    /// 1 while the loss exceeds what the fabric file expects, else 0.
    pub loss_alarm: Gauge,
    /// Number of times that the loss alarm was raised.
    pub loss_alarms: Counter,
    /// Number of lanes in use that are connected.
    pub lanes_up: Gauge,
    /// Number of lanes in use that are not connected.
    pub lanes_missing: Gauge,
    /// Smoothed round-trip time of the fastest lane, in seconds.
    pub rtt_seconds: RealGauge,
}

/// The place of a peer in the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerPlace<'a> {
    /// The peer's gateway name.
    pub gateway: &'a str,
    /// Its region.
    pub region: &'a str,
    /// The link to it; empty for a peer of the same region.
    pub link: &'a str,
}

/// The metrics of all peers. Their number is that of the gateways in the fabric file.
#[derive(Debug, Default)]
pub(in crate::observe::metrics) struct PeerMetricFamilies {
    info: Family<PeerInfoLabel, Gauge>,
    payload_bytes: Family<PayloadLabel, Counter>,
    resent_bytes: Family<PeerLabel, Counter>,
    parity_bytes: Family<PeerLabel, Counter>,
    restored_segments: Family<PeerLabel, Counter>,
    sent_packets: Family<PeerLabel, Counter>,
    lost_packets: Family<PeerLabel, Counter>,
    lost_bytes: Family<LossLabel, Counter>,
    loss_ratio: Family<PeerLabel, RealGauge>,
    loss_alarm: Family<PeerLabel, Gauge>,
    loss_alarms: Family<PeerLabel, Counter>,
    lanes_up: Family<PeerLabel, Gauge>,
    lanes_missing: Family<PeerLabel, Gauge>,
    rtt_seconds: Family<PeerLabel, RealGauge>,
}

/// The kinds of lost bytes, as the label `kind` names them, in the order of `lost_bytes`.
const LOSS_KINDS: [&str; 3] = ["random", "queue", "outage"];

impl PeerMetrics {
    /// Raises the counters of lost bytes, by kind, to these totals since the start.
    pub(crate) fn count_losses(&self, losses: LossCounts) {
        let bytes = [losses.random_bytes, losses.queue_bytes, losses.outage_bytes];
        for (counter, bytes) in self.lost_bytes.iter().zip(bytes) {
            counter.inc_by(bytes.saturating_sub(counter.get()));
        }
    }
}

impl PeerMetricFamilies {
    /// Returns the metrics of one peer; all calls with an equal place share them.
    pub fn peer_metrics(&self, place: PeerPlace<'_>) -> PeerMetrics {
        let PeerPlace { gateway, region, link } = place;
        let [peer, region, link] = [gateway, region, link].map(str::to_owned);
        let payload = |direction| {
            let label = PayloadLabel { peer: peer.clone(), direction };
            self.payload_bytes.get_or_create_owned(&label)
        };
        let lost_bytes = LOSS_KINDS.map(|kind| {
            let label = LossLabel { peer: peer.clone(), kind };
            self.lost_bytes.get_or_create_owned(&label)
        });
        let label = PeerLabel { peer: peer.clone() };
        self.info.get_or_create_owned(&PeerInfoLabel { peer: peer.clone(), region, link }).set(1);
        PeerMetrics {
            sent_bytes: payload("sent"),
            received_bytes: payload("received"),
            resent_bytes: self.resent_bytes.get_or_create_owned(&label),
            parity_bytes: self.parity_bytes.get_or_create_owned(&label),
            restored_segments: self.restored_segments.get_or_create_owned(&label),
            sent_packets: self.sent_packets.get_or_create_owned(&label),
            lost_packets: self.lost_packets.get_or_create_owned(&label),
            lost_bytes,
            loss_ratio: self.loss_ratio.get_or_create_owned(&label),
            loss_alarm: self.loss_alarm.get_or_create_owned(&label),
            loss_alarms: self.loss_alarms.get_or_create_owned(&label),
            lanes_up: self.lanes_up.get_or_create_owned(&label),
            lanes_missing: self.lanes_missing.get_or_create_owned(&label),
            rtt_seconds: self.rtt_seconds.get_or_create_owned(&label),
        }
    }

    /// Adds the metrics of peers to the exposition.
    pub fn register(&self, exposition: &mut MetricsExposition) {
        self.register_lanes(exposition);
        self.register_payload(exposition);
        self.register_packets(exposition);
    }

    /// Adds the metrics of a peer's lanes and of its place to the exposition.
    fn register_lanes(&self, exposition: &mut MetricsExposition) {
        let info = MetricDescription {
            name: "landbridge_peer_info",
            unit: "",
            labels: &["peer", "region", "link"],
            meaning: "1 for each peer, with its region and link; `link` is empty within a region",
            advice: "Join it on `peer` to sum other metrics by region or link",
        };
        exposition.add(info, self.info.clone());
        let up = peer_metric(
            ["landbridge_lanes_up", ""],
            "Number of lanes in use that are connected",
            "0 means that the peer cannot be reached: see `landbridge status`, then \
             `landbridge doctor`",
        );
        exposition.add(up, self.lanes_up.clone());
        let missing = peer_metric(
            ["landbridge_lanes_missing", ""],
            "Number of lanes in use that are not connected",
            "Some of several are mostly UDP ports that a firewall shuts: see `landbridge ports`",
        );
        exposition.add(missing, self.lanes_missing.clone());
        let rtt = peer_metric(
            ["landbridge_peer_rtt_seconds", "seconds"],
            "Smoothed round-trip time of the fastest lane",
            "Far above `rtt` of the fabric file it tells of a queue or of another route",
        );
        exposition.add(rtt, self.rtt_seconds.clone());
    }

    /// Adds the metrics of payload to and from a peer to the exposition.
    fn register_payload(&self, exposition: &mut MetricsExposition) {
        let payload = MetricDescription {
            name: "landbridge_wan_payload_bytes",
            unit: "bytes",
            labels: &["peer", "direction"],
            meaning: "Payload over the WAN, without retransmissions and duplicates",
            advice: "Compare its rate with `landbridge_link_limit_bytes_per_second`",
        };
        exposition.add(payload, self.payload_bytes.clone());
        let resent = peer_metric(
            ["landbridge_wan_resent_bytes", "bytes"],
            "Payload requeued because its lane was lost",
            "If it grows steadily, lanes are lost again and again: see the log for the reason",
        );
        exposition.add(resent, self.resent_bytes.clone());
        let parity = peer_metric(
            ["landbridge_wan_parity_bytes", "bytes"],
            "FEC parity sent behind the last segments of collectives",
            "None: it shows the price of repair without a round trip",
        );
        exposition.add(parity, self.parity_bytes.clone());
        let restored = peer_metric(
            ["landbridge_restored_segments", ""],
            "Segments restored by FEC before their retransmissions arrived",
            "None: it shows the use of FEC",
        );
        exposition.add(restored, self.restored_segments.clone());
    }

    /// Adds the metrics of a peer's packets and their loss to the exposition.
    fn register_packets(&self, exposition: &mut MetricsExposition) {
        let sent = peer_metric(
            ["landbridge_sent_packets", ""],
            "Packets sent by the lanes",
            "Divide the rate of `landbridge_lost_packets_total` by its rate for the loss",
        );
        exposition.add(sent, self.sent_packets.clone());
        let lost = peer_metric(
            ["landbridge_lost_packets", ""],
            "Packets that the lanes declared lost",
            "See `landbridge_loss_alarm`",
        );
        exposition.add(lost, self.lost_packets.clone());
        let kinds = MetricDescription {
            name: "landbridge_lost_bytes",
            unit: "bytes",
            labels: &["peer", "kind"],
            meaning: "Bytes lost on a `shared` link, by kind: `random`, `queue` or `outage`",
            advice: "Much `queue` means that others fill the link; much `random` that it is faulty",
        };
        exposition.add(kinds, self.lost_bytes.clone());
        let ratio = peer_metric(
            ["landbridge_loss_ratio", ""],
            "Fraction of packets lost in the last 10 s, from 0 to 1",
            "Deprecated, since it is an average over a fixed time: use \
             `landbridge_lost_packets_total` and `landbridge_sent_packets_total`",
        );
        exposition.add(ratio, self.loss_ratio.clone());
        let alarm = peer_metric(
            ["landbridge_loss_alarm", ""],
            "1 while the loss exceeds what the fabric file expects, else 0",
            "Ask whoever runs the link; set `loss` of the link in the fabric file where packets are \
             lost at random, or lower its `rate` where a queue overflows",
        );
        exposition.add(alarm, self.loss_alarm.clone());
        let alarms = peer_metric(
            ["landbridge_loss_alarms", ""],
            "Times that the loss rose above what the fabric file expects",
            "See `landbridge_loss_alarm`",
        );
        exposition.add(alarms, self.loss_alarms.clone());
    }
}

/// Describes a metric that has one value for each peer.
const fn peer_metric(
    [name, unit]: [&'static str; 2],
    meaning: &'static str,
    advice: &'static str,
) -> MetricDescription {
    MetricDescription { name, unit, labels: &["peer"], meaning, advice }
}
