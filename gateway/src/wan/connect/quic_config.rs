//! QUIC's settings for a link: windows from its BDP, its MTU, its congestion controller.

use crate::wan::congestion::tuner::Path;
use crate::wan::connect::liveness::{DATAGRAM_BYTES, Watching};
use crate::wan::connect::packet_size::Packets;
use crate::wan::link::policy::ControllerKind;
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// A peer that says nothing for this long is gone; it says something every [`KEEP_ALIVE`]. Our own
/// sign of life counts it anew, once: so after up to both together.
pub const IDLE: Duration = Duration::from_secs(15);
/// How often a silent lane says that it lives.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A packet is taken for lost once so many later ones have arrived, or an eighth of a round trip after
/// one has: paths over several links let packets overtake each other.
const OVERTAKEN_BY: u32 = 24;
/// Longer packets than those that get through are looked for again this long after the last look:
/// routes change, and a storm may have lost what would get through.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The same when such packets stopped getting through: until then packets are as short as can be.
const LOOK_AFTER_A_HOLE: Duration = Duration::from_secs(10);

/// The settings of one lane of a link.
pub(crate) fn settings(
    path: &Path,
    controller: ControllerKind,
    packets: Packets,
) -> TransportConfig {
    let windows = path.windows();
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(windows.stream)
        .receive_window(windows.receive)
        .max_concurrent_uni_streams(windows.streams)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .send_window(windows.send)
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BYTES)
        // Segment by segment, so that the first are whole soon, also of what is sent again.
        .send_fairness(false)
        .initial_rtt(path.link.rtt.duration().max(Duration::from_millis(1)))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::try_from(IDLE).expect("seconds")))
        .packet_threshold(OVERTAKEN_BY)
        .ack_frequency_config(None::<AckFrequencyConfig>)
        .congestion_controller_factory(Arc::new(Watching::new(path, controller)));
    match packets {
        Packets::Pinned { bytes } => {
            transport.initial_mtu(bytes).min_mtu(bytes).mtu_discovery_config(None);
        }
        Packets::Discovered { bytes_max } => {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery
                .upper_bound(bytes_max)
                .interval(LOOK_AGAIN)
                .black_hole_cooldown(LOOK_AFTER_A_HOLE);
            transport.mtu_discovery_config(Some(discovery));
        }
    }
    transport
}
