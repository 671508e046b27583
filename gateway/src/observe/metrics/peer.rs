//! The metrics of one peer.

use prometheus_client::metrics::counter::Counter;
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
    /// Packets that the lanes declared lost.
    pub lost_packets: Counter,
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
