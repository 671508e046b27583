//! Windows of a lane, from the rate that its link is held to and the round trip as it is now.
//!
//! They start from the fabric's round trip. A path that becomes longer would leave the link
//! idle while the window is waited for; so each lane follows the least round trip of the last
//! few, both for what it sends and for what it lets the peer send.

use super::lane::{LaneSpec, PeerLink};
use super::silence::{self, Watch};
use hier_collectives::plan;
use hier_collectives::repair::{SHARD_BYTES, parity_max};
use hier_collectives::topology::Link;
use quinn::{Connection, VarInt};
use std::collections::VecDeque;
use std::sync::Arc;
use units::Span;

/// Round trips whose least one counts: one that is long by a queue of our own does not.
const ROUNDS: usize = 4;
/// Looks are at least that far apart.
const LOOK_MIN: Span = Span::from_ms(10);
/// Windows follow a round trip that has changed by more than this part of it.
const CHANGE: f64 = 0.05;
/// The longest round trip that windows follow, in round trips of the fabric's: a peer that is
/// slow to acknowledge does not make us remember without end.
const STRETCH_MAX: u64 = 8;
/// As above, where the fabric's round trip between two regions is short.
const STRETCH_MIN: Span = Span::from_secs(1);

/// What one lane may have under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    /// Of one stream: never more than a segment with its parity.
    pub stream: VarInt,
    /// Of all streams that arrive.
    pub receive: VarInt,
    /// Streams that arrive at once.
    pub streams: VarInt,
    /// Bytes kept until they are acknowledged, with those acknowledged behind a hole.
    pub send: u64,
    /// Bytes in flight.
    pub flight: u64,
    /// Bytes in flight while much is sent again.
    pub repair: u64,
}

/// What windows follow from.
#[derive(Debug, Clone)]
pub(super) struct Path {
    /// The link, at the rate and round trip of now.
    pub link: Link,
    pub lanes: u64,
    pub segment_bytes: u64,
}

/// The least window while much is sent again.
const REPAIR_WINDOW_MIN: u64 = 256 << 10;

impl Path {
    pub fn windows(&self) -> Windows {
        let bdp = plan::bdp(&self.link).get();
        let parity = u64::from(parity_max(self.segment_bytes)) * SHARD_BYTES;
        let stream = self.segment_bytes + parity + 4096;
        Windows {
            // Streams are always read, so these bound nothing but a peer that breaks the
            // rules: grants are our back-pressure.
            stream: varint(stream),
            receive: varint(3 * bdp + 8 * stream),
            streams: varint(64 + 4 * bdp / self.segment_bytes.min(4096)),
            // What a lane holds unacknowledged: three BDP of its share, at least one of the
            // link, so that one lane can fill it.
            send: bdp.max(3 * bdp / self.lanes) + 2 * stream,
            // Twice the link's BDP for each lane, so that any lane can carry what the others
            // lost, and a little for short paths, where timers weigh more than distance.
            flight: 2 * bdp + (2 << 20),
            repair: (bdp / self.lanes).max(REPAIR_WINDOW_MIN),
        }
    }
}

/// Keeps a connection's windows fit for its path; returns why it cannot.
pub(super) async fn follow(spec: &LaneSpec, peer: &PeerLink, connection: &Connection) -> String {
    let mut path = peer.path(spec);
    let mut set = None;
    let mut assigned: Option<Arc<Watch>> = None;
    let mut rounds = VecDeque::with_capacity(ROUNDS);
    loop {
        let Some(watch) = silence::watch(connection) else {
            return "no congestion controller of ours".to_owned();
        };
        let mut windows = path.windows();
        // A lane on a path that loses much takes less, or what it holds is what all wait for.
        let least = 2 * windows.stream.into_inner();
        windows.send = least.max((windows.send as f64 * watch.limits.share()) as u64);
        if set.replace(windows) != Some(windows) {
            connection.set_max_concurrent_uni_streams(windows.streams);
            connection.set_receive_window(windows.receive);
            connection.set_send_window(windows.send);
            watch.limits.set(&windows);
        }
        // One that was answered, or has moved to another path, may have that of another link.
        if !assigned.as_ref().is_some_and(|before| Arc::ptr_eq(before, &watch)) {
            watch.assign(&path, peer.controller, spec.host.quic_runtime().now());
            assigned = Some(Arc::clone(&watch));
        }
        let round = silence::round_trip(connection).max(LOOK_MIN);
        spec.host.sleep_until(spec.host.now() + round).await;
        peer.rate.limit().charge(watch.limits.take_owed());
        rounds.push_back(watch.take_least_rtt());
        if rounds.len() > ROUNDS {
            rounds.pop_front();
        }
        path.link.rate = peer.rate_now();
        if let Some(rtt) = rounds.iter().flatten().min() {
            path.link.rtt = followed(path.link.rtt, *rtt, longest(&peer.link));
        }
    }
}

/// The longest round trip that windows follow. Inside a region it is never far, and the rate
/// stands for more than any path has.
fn longest(link: &Link) -> Span {
    let stretched = Span::from_ns(link.rtt.ns().saturating_mul(STRETCH_MAX));
    if link.a == link.b { stretched } else { STRETCH_MIN.max(stretched) }
}

/// The round trip that windows are for, where it was `before` and is `measured`.
fn followed(before: Span, measured: Span, longest: Span) -> Span {
    let measured = measured.min(longest);
    let change = measured.ns().abs_diff(before.ns()) as f64;
    if change > CHANGE * before.ns() as f64 { measured } else { before }
}

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::RegionId;
    use units::{BitRate, Fraction};

    #[test]
    fn windows_follow_a_round_trip_that_changes_within_bounds() {
        let ms = Span::from_ms;
        let over = |b: u16, expected, before, measured| {
            let (rate, loss) = (BitRate::from_bits_per_second(1_000_000), Fraction::default());
            let link = Link { a: RegionId(0), b: RegionId(b), rate, rtt: expected, loss };
            followed(before, measured, longest(&link))
        };
        assert_eq!(over(1, ms(80), ms(80), ms(82)), ms(80), "noise");
        assert_eq!(over(1, ms(80), ms(80), ms(110)), ms(110));
        assert_eq!(over(1, ms(80), ms(110), ms(80)), ms(80));
        assert_eq!(over(1, ms(200), ms(200), ms(9000)), ms(1600), "a peer that does not answer");
        assert_eq!(over(1, ms(1), ms(1), ms(9000)), ms(1000));
        assert_eq!(over(0, ms(1), ms(1), ms(9000)), ms(8), "inside a region");
    }

    #[test]
    fn every_window_holds_what_the_path_holds() {
        for (rtt, gigabits) in [(1, 1), (80, 1), (200, 10), (100, 100)] {
            let rate = BitRate::from_bits_per_second(gigabits * 1_000_000_000);
            let (rtt, loss) = (Span::from_ms(rtt), Fraction::default());
            let link = Link { a: RegionId(0), b: RegionId(1), rate, rtt, loss };
            let bdp = plan::bdp(&link).get();
            let path = Path { link, lanes: 4, segment_bytes: 1 << 20 };
            let windows = path.windows();
            assert!(windows.flight > bdp && windows.send > bdp, "{windows:?}");
            assert!(windows.receive.into_inner() > 3 * bdp && windows.repair >= bdp / 4);
            let streams = windows.streams.into_inner() * (1 << 20);
            assert!(streams > 3 * bdp && windows.stream.into_inner() > 1 << 20);
        }
    }
}
