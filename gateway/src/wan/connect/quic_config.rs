//! The QUIC settings of a lane: windows from its path, packet size, congestion controller, timeouts.

use super::liveness::{KEEP_ALIVE_INTERVAL, PROBE_BUFFER_BYTES, idle_timeout};
use super::packet_size::PacketSize;
use crate::wan::congestion::lane_controller::LaneControllerFactory;
use crate::wan::congestion::window::LanePath;
use crate::wan::link::policy::ControllerKind;
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// 24 later packets: QUIC takes a packet for lost once so many have arrived, or after an eighth of
/// a round trip. Paths over several links reorder packets.
const REORDERING_PACKETS: u32 = 24;
/// 60 s between searches for longer packets, since routes change; quinn's default of 600 s is too
/// long.
/// Tested by `packets_follow_a_path_that_becomes_narrow_and_wide_again`.
const MTU_SEARCH_INTERVAL: Duration = Duration::from_secs(60);
/// 10 s from the time when long packets stopped arriving until the next MTU search; quinn's default
/// is 60 s. Until then packets are as short as can be.
const MTU_SEARCH_DELAY_AFTER_BLACK_HOLE: Duration = Duration::from_secs(10);

/// Makes the QUIC transport settings of one lane of a link.
pub(super) fn lane_transport_config(
    path: &LanePath,
    controller: ControllerKind,
    packets: PacketSize,
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
        .keep_alive_interval(Some(KEEP_ALIVE_INTERVAL))
        .max_idle_timeout(Some(
            IdleTimeout::try_from(idle_timeout(path.link.rtt)).expect("minutes"),
        ))
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
