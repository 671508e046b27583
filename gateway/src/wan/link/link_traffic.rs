//! Counters of the traffic between one pair of gateways.

/// The traffic over all lanes to a peer since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets given up as lost.
    pub lost_packets: u64,
    /// Bytes of packets acknowledged, IP headers included.
    pub delivered_bytes: u64,
}
