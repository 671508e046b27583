//! The QUIC settings of a lane: windows from its path, packet size, congestion controller, timeouts;
//! and the keys by which a restarted gateway ends the connections of its predecessor.

use super::lane_connection_ids::LaneConnectionIds;
use super::liveness::PROBE_BUFFER_BYTES;
use super::packet_size::PacketSize;
use super::tls::Credentials;
use crate::wan::congestion::lane_controller::LaneControllerFactory;
use crate::wan::congestion::lane_path::LanePath;
use crate::wan::link::controller_policy::ControllerPolicy;
use quinn::{
    AckFrequencyConfig, ConnectionIdGenerator, EndpointConfig, IdleTimeout, MtuDiscoveryConfig,
    TransportConfig, VarInt,
};
use ring::hmac;
use std::sync::Arc;
use std::time::Duration;

/// 24 packets: QUIC takes a packet for lost, and retransmits its data, once a packet sent at least
/// 24 packets later is acknowledged, or any later one 1.125 RTT after the packet was sent. Paths
/// over several links reorder packets.
const REORDERING_PACKETS: u32 = 24;
/// 60 s: interval between searches of a lane for a larger MTU, after which a path that has become
/// wider gets longer packets. quinn's default of 600 s is too long.
/// Tested by `packets_follow_a_path_that_becomes_narrow_and_wide_again`.
const MTU_SEARCH_INTERVAL: Duration = Duration::from_secs(60);
/// 10 s: pause before the next MTU search after long packets stopped arriving on a lane. Until then
/// packets have the shortest size. quinn's default is 60 s.
const MTU_SEARCH_DELAY_AFTER_BLACK_HOLE: Duration = Duration::from_secs(10);

/// Makes the QUIC settings of an endpoint of a lane. Its socket has the place `place` among those that
/// share its port, and `socket` names it among all sockets of the gateway.
///
/// A gateway that was started again does not know the connections of its predecessor, and answers
/// their packets with stateless resets (RFC 9000, section 10.3). Peers believe a reset only with the
/// token that the predecessor gave them. So tokens and connection ids follow from the gateway's key
/// file. Each endpoint has keys of its own. If endpoints shared keys, a stranger could make one endpoint
/// reset the connections of another (RFC 9000, section 21.11).
/// Tested by `either_gateway_is_back_soon_after_its_restart`.
pub(super) fn quic_endpoint_config(
    credentials: &Credentials,
    socket: &str,
    place: u16,
) -> EndpointConfig {
    let secret = credentials.derive_secret(&format!("stateless reset tokens, {socket}"));
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret)));
    let id_secret = credentials.derive_secret(&format!("connection ids, {socket}"));
    let key = hmac::Key::new(hmac::HMAC_SHA256, &id_secret);
    config.cid_generator(move || -> Box<dyn ConnectionIdGenerator> {
        Box::new(LaneConnectionIds { place, key: key.clone() })
    });
    config
}

/// Makes the QUIC transport settings of one lane of a link. QUIC ends a connection without a datagram for
/// `idle_timeout`.
pub(super) fn quic_transport_config(
    path: &LanePath,
    controller: ControllerPolicy,
    packets: PacketSize,
    idle_timeout: Duration,
) -> TransportConfig {
    let windows = path.initial_windows();
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(windows.stream)
        .receive_window(windows.receive)
        .max_concurrent_uni_streams(windows.streams)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .send_window(windows.send)
        .datagram_receive_buffer_size(Some(PROBE_BUFFER_BYTES))
        .datagram_send_buffer_size(PROBE_BUFFER_BYTES)
        // Streams are sent one after the other, so that the first segments are complete soon, also
        // when many are retransmitted.
        .send_fairness(false)
        .initial_rtt(path.link.rtt.duration().max(Duration::from_millis(1)))
        // The liveness monitor keeps lanes alive, with one timer for all of a thread.
        .keep_alive_interval(None)
        .max_idle_timeout(Some(IdleTimeout::try_from(idle_timeout).expect("minutes")))
        .packet_threshold(REORDERING_PACKETS)
        .ack_frequency_config(None::<AckFrequencyConfig>)
        .congestion_controller_factory(Arc::new(LaneControllerFactory::new(path, controller)));
    match packets {
        PacketSize::Pinned { bytes } => {
            transport.initial_mtu(bytes).min_mtu(bytes).mtu_discovery_config(None);
        }
        PacketSize::Discovered { bytes_max } => {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery
                .upper_bound(bytes_max)
                .interval(MTU_SEARCH_INTERVAL)
                .black_hole_cooldown(MTU_SEARCH_DELAY_AFTER_BLACK_HOLE);
            transport.mtu_discovery_config(Some(discovery));
        }
    }
    transport
}
