//! QUIC's settings for a link: windows from its BDP, its MTU, its congestion controller.

use super::link_share::LinkShare;
use super::silence::{DATAGRAM_BYTES, Watching};
use hier_collectives::plan;
use hier_collectives::repair::{SHARD_BYTES, parity_max};
use hier_collectives::topology::{Fabric, Link};
use quinn::{AckFrequencyConfig, IdleTimeout, TransportConfig, VarInt};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A peer that says nothing for this long is gone; it says something every [`KEEP_ALIVE`].
pub const IDLE: Duration = Duration::from_secs(15);
/// How often a silent lane says that it lives.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The largest UDP payload there is.
const MAX_DATAGRAM: u16 = 65_507;

/// Bytes of UDP payload in a full packet to `address`.
pub fn datagram_bytes(fabric: &Fabric, address: IpAddr) -> u16 {
    let headers = if address.is_ipv4() { 28 } else { 48 };
    (fabric.mtu() - headers).min(MAX_DATAGRAM)
}

/// The settings of one lane of a link.
pub fn settings(
    fabric: &Fabric,
    link: &Link,
    segment_bytes: u64,
    address: IpAddr,
) -> TransportConfig {
    let lanes = u64::from(plan::lanes(fabric));
    let bdp = plan::bdp(link).get();
    let parity = u64::from(parity_max(segment_bytes)) * SHARD_BYTES;
    let stream = segment_bytes + parity + 4096;
    let datagram = datagram_bytes(fabric, address);
    let mut transport = TransportConfig::default();
    transport
        // Streams are always read, so these bound nothing but a peer that breaks the rules:
        // grants are our back-pressure.
        .stream_receive_window(varint(stream))
        .receive_window(varint(3 * bdp + 8 * stream))
        .max_concurrent_uni_streams(varint(64 + 4 * bdp / segment_bytes.min(4096)))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        // What a lane holds unacknowledged: three BDP of its share, at least one of the link,
        // so that one lane can fill it.
        .send_window(bdp.max(3 * bdp / lanes) + 2 * stream)
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BYTES)
        // Segment by segment, so that the first are whole soon, also of what is sent again.
        .send_fairness(false)
        .initial_rtt(link.rtt.duration().max(Duration::from_millis(1)))
        .initial_mtu(datagram)
        .min_mtu(datagram)
        .mtu_discovery_config(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::try_from(IDLE).expect("seconds")))
        .ack_frequency_config(None::<AckFrequencyConfig>)
        .congestion_controller_factory(Arc::new(Watching(Arc::new(LinkShare::new(link, lanes)))));
    transport
}

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}
