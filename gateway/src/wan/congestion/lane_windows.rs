//! The windows of a lane, which `LanePath::windows` computes from its link, its delivery rate and
//! its min RTT.
//!
//! Formulas, in bytes, with `rate` and `loss` of the lane's `DeliveryRate`, `rtt` its min RTT:
//!
//! ```text
//! slack          = clamp(WINDOW_SLACK_ROUNDS x rtt, WINDOW_SLACK_MIN, WINDOW_SLACK_MAX)
//!                  for delayed ACKs and timers
//! flight(gain)   = rate x (gain x rtt + slack)
//! congestion     = max(flight(gain), CONGESTION_WINDOW_BYTES_MIN)
//!                  x ECN fraction x (DRAIN_WINDOW_FRACTION while draining)
//! retransmission = min(congestion, rate x smoothed RTT), set at each packet by `in_flight.rs`
//! holes          = 1 - (1 - loss) ^ (packets of a segment)   part of the segments with a lost packet
//! send           = max(flight(1.25) + SEND_WINDOW_GAP_ROUNDS x holes x rate x rtt, congestion)
//!                  + 2 streams
//! stream         = the longest segment with its parity, and 4 KiB
//! receive        = 3 x BDP + 8 streams, at most max(LanePath::receive_window_max, the window for
//!                  RECEIVE_RTT_FACTOR x configured RTT)
//! streams        = 64 + 4 x (receive - 8 streams) / 3 / (segment, at most 4 KiB)
//! ```

use hier_collectives::tail_fec::{SHARD_BYTES, tail_fec_parity_max};
use hier_collectives::topology::Link;
use quinn::VarInt;
use units::Span;

/// 256 KiB: the least congestion window of a lane, however low its delivery rate; a chosen size.
/// Only drains of a queue and ECN CE marks make the window smaller.
pub(super) const CONGESTION_WINDOW_BYTES_MIN: u64 = 256 << 10;
/// 60 ms: the most slack, the time added to the min RTT in a lane's congestion window. slack = 3 x
/// min RTT, at least 2 ms, at most 60 ms. With 35 ms, some round trips after an outage reached only
/// 139 of 200 Mbit/s.
const WINDOW_SLACK_MAX: Span = Span::from_ms(60);
/// 3 times the min RTT: the slack, which is added to the min RTT in a lane's congestion window,
/// where that is 2 to 60 ms. Bytes then wait in the peer's socket, not on the path.
const WINDOW_SLACK_ROUNDS: u64 = 3;
/// 2 ms: the least slack, the time added to the min RTT in a lane's congestion window, however
/// short the RTT. A thread may wait that long to be scheduled.
const WINDOW_SLACK_MIN: Span = Span::from_ms(2);
/// 0.75 of a lane's congestion window: what remains of the window during a drain, a pause of two
/// round trips that shows the RTT without a queue. The fraction is chosen.
pub(super) const DRAIN_WINDOW_FRACTION: f64 = 0.75;
/// 3 round trips: how long quinn keeps acknowledged bytes behind an unacknowledged byte of the same
/// stream. QUIC's send window has room for the bytes of that time; with less room, writes would
/// wait.
/// Tested by `every_window_holds_the_bdp`.
pub(super) const SEND_WINDOW_GAP_ROUNDS: f64 = 3.0;
/// 1,400 bytes: the assumed payload of a packet. From it follows the estimated fraction of segments
/// with a lost packet, which makes QUIC's send window larger.
pub(super) const PACKET_PAYLOAD_BYTES: f64 = 1400.0;
/// 8 times the configured RTT: the longest RTT for which a lane's windows are sized; a longer
/// measured RTT is cut to it. Memory stays bounded when a peer acknowledges late.
/// Tested by `the_longest_round_trip_is_bounded`.
const WINDOW_RTT_MAX_FACTOR: u64 = 8;
/// 1 s: lanes between regions size their windows for measured RTTs up to 1 s, even where
/// [`WINDOW_RTT_MAX_FACTOR`] (8) times the configured RTT is less. Longer RTTs are then cut to 1 s.
const WINDOW_RTT_CEILING_MIN: Span = Span::from_secs(1);

/// 4 times the configured RTT: for RTTs up to this, receive windows grow whatever the memory, since
/// full queues lengthen RTTs. For longer RTTs they grow only within the lane's part of the memory
/// for receive windows.
/// Tested by `a_halved_link_gets_a_new_plan_within_ten_collectives`.
pub(super) const RECEIVE_RTT_FACTOR: u64 = 4;

/// The windows of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneWindows {
    /// The receive window of one stream: the longest segment with its parity.
    pub stream: VarInt,
    /// The receive window of all streams together.
    pub receive: VarInt,
    /// Streams that may be open at once.
    pub streams: VarInt,
    /// The send window: bytes that quinn keeps until they are acknowledged, behind holes too.
    pub send: u64,
    /// The congestion window: bytes in flight.
    pub congestion: u64,
    /// The delivery rate in bytes per second, for the window while much is retransmitted.
    pub retransmission_rate: u64,
}

/// Returns the receive window of one stream in bytes. It holds the payload of a segment of
/// `segment` bytes with its parity, and 4 KiB for its header.
pub(crate) fn lane_window_of_stream(segment: u64) -> u64 {
    segment + u64::from(tail_fec_parity_max(segment)) * SHARD_BYTES + 4096
}

/// Returns the longest RTT for which the windows of a link's lanes are sized: 8 times the
/// configured RTT, between regions at least 1 s. Inside a region it is short: the configured rate
/// is high there, and windows would be huge.
pub(super) fn lane_windows_rtt_max(link: &Link) -> Span {
    let longest = Span::from_ns(link.rtt.ns().saturating_mul(WINDOW_RTT_MAX_FACTOR));
    if link.a == link.b { longest } else { WINDOW_RTT_CEILING_MIN.max(longest) }
}

/// Returns the time added to the min RTT `rtt` in the congestion window, for delayed
/// acknowledgements and timers. It is 3 times `rtt`, at least 2 ms and at most 60 ms.
pub(super) fn lane_window_slack(rtt: Span) -> Span {
    let rounds = Span::from_ns(rtt.ns().saturating_mul(WINDOW_SLACK_ROUNDS));
    rounds.clamp(WINDOW_SLACK_MIN, WINDOW_SLACK_MAX)
}

/// Converts a window to QUIC's integer, and cuts it at the greatest one.
pub(super) fn lane_window_varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::congestion::lane_path::LanePath;
    use crate::wan::congestion::min_rtt_filter::MinRttFilter;
    use hier_collectives::ids::RegionId;
    use std::sync::Arc;
    use units::BitRate;
    use units::Fraction;

    fn path(rtt: Span, gigabits: u64, loss_ppb: u32) -> LanePath {
        let rate = BitRate::from_bits_per_second(gigabits * 1_000_000_000);
        let loss = Fraction::from_ppb(loss_ppb).expect("below 1");
        let link = Link { a: RegionId(0), b: RegionId(1), rate, rtt, loss };
        LanePath {
            link,
            inbound: rate,
            lanes: 4,
            segment_bytes: 1 << 20,
            receive_window_max: 1 << 30,
            memory: Arc::default(),
            probe_seed: 0,
        }
    }

    #[test]
    fn every_window_holds_the_bdp() {
        for (rtt, gigabits) in [(1, 1), (80, 1), (200, 10), (100, 100)] {
            for loss in [0, 10_000_000] {
                let path = path(Span::from_ms(rtt), gigabits, loss);
                let (bdp, windows) = (path.link.bdp().get(), path.initial_windows());
                let part = bdp / path.lanes;
                assert!(windows.congestion > part * 5 / 4, "{windows:?}");
                let retransmitted = windows.retransmission_rate as f64 * 0.001 * rtt as f64;
                assert!(retransmitted >= part as f64 * 0.999, "{windows:?}");
                assert!(windows.send > windows.congestion.min(part * 5 / 4 + (1 << 20)));
                // Nearly every segment of so many packets has a hole.
                assert!(loss == 0 || windows.send > 4 * part, "{windows:?}");
                assert!(windows.receive.into_inner() > 3 * bdp);
                let streams = windows.streams.into_inner() * (1 << 20);
                assert!(streams > 3 * bdp && windows.stream.into_inner() > 1 << 20);
            }
        }
    }

    #[test]
    fn the_congestion_window_shrinks_while_a_queue_drains() {
        let (path, ms) = (path(Span::from_ms(80), 1, 0), Span::from_ms);
        let mut min_rtt = MinRttFilter::new(ms(80), ms(800), true);
        let whole = path.initial_windows();
        for _ in 0..4 {
            min_rtt.end_round(Some(ms(120)), true);
        }
        let draining = path.windows(&path.initial_delivery_rate(), &min_rtt);
        assert!(draining.congestion < whole.congestion * 4 / 5 && draining.send == whole.send);
        assert!(draining.receive > whole.receive, "the peer's are for the observed RTT");
    }

    #[test]
    fn a_long_rtt_keeps_the_receive_window_within_its_memory() {
        let (mut path, ms) = (path(Span::from_ms(1), 10, 0), Span::from_ms);
        let mut min_rtt = MinRttFilter::new(ms(1), ms(1000), true);
        let (initial, bdp) = (path.initial_windows().receive.into_inner(), 1_250_000);
        (0..4).for_each(|_| min_rtt.end_round(Some(ms(500)), false));
        let mut receive = |bytes: u64| {
            path.receive_window_max = bytes;
            path.windows(&path.initial_delivery_rate(), &min_rtt).receive.into_inner()
        };
        assert_eq!(receive(32 << 20), 32 << 20);
        assert_eq!(receive(1 << 20), initial + 9 * bdp, "a full queue needs so much");
        assert!(receive(u64::MAX) > 500 * 3 * bdp, "the path may be that long");
        path.receive_window_max = 1 << 20;
        let bounded = path.windows(&path.initial_delivery_rate(), &min_rtt);
        assert!(bounded.streams.into_inner() < 64 + 4 * 4 * bdp / 4096 + 1, "{bounded:?}");
    }

    #[test]
    fn the_longest_round_trip_is_bounded() {
        let longest =
            |rtt, b| lane_windows_rtt_max(&Link { b: RegionId(b), ..path(rtt, 1, 0).link });
        let ms = Span::from_ms;
        assert_eq!(longest(ms(200), 1), ms(1600), "a peer that does not answer");
        assert_eq!(longest(ms(1), 1), ms(1000));
        assert_eq!(longest(ms(1), 0), ms(8), "inside a region");
    }
}
