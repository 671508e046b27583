//! Windows of a lane: of its part of what the link is held to, until it has shown what it carries
//! (`carried`), and of the fabric's round trip, until it is seen to be another (`distance`).

use crate::wan::congestion::delivery_rate::{Carried, Done, MORE};
use crate::wan::congestion::min_rtt::Distance;
use crate::wan::connect::endpoint::{LaneSpec, PeerLink};
use crate::wan::connect::liveness::{self, Watch};
use crate::wan::link::policy::ControllerKind;
use hier_collectives::fec::{SHARD_BYTES, parity_max};
use hier_collectives::plan::SEGMENT_BYTES_MAX;
use hier_collectives::topology::Link;
use quinn::{Connection, VarInt};
use std::sync::Arc;
use units::{BitRate, Span, TimeNs};

/// Looks are at least that far apart.
const LOOK_MIN: Span = Span::from_ms(10);
/// The longest round trip that windows follow, in round trips of the fabric's: a peer that is
/// slow to acknowledge does not make us remember without end.
const STRETCH_MAX: u64 = 8;
/// As above, where the fabric's round trip between two regions is short.
const STRETCH_MIN: Span = Span::from_secs(1);

/// What one lane may have under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Of one stream: the longest segment with its parity.
    pub stream: VarInt,
    /// Of all streams that arrive.
    pub receive: VarInt,
    /// Streams that arrive at once.
    pub streams: VarInt,
    /// Bytes kept until they are acknowledged, with those acknowledged behind a hole.
    pub send: u64,
    /// Bytes in flight.
    pub flight: u64,
    /// Bytes in flight while much is sent again; a few packets are allowed where it is less.
    pub repair: u64,
}

/// What windows follow from.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// The link, at the rate and round trip of now.
    pub link: Link,
    /// What the peer may send, whatever we are held to.
    pub inbound: BitRate,
    pub lanes: u64,
    pub segment_bytes: u64,
}

/// The least that may be in flight, but for queues that are to drain.
const WINDOW_MIN: u64 = 256 << 10;
/// Beside round trips a lane has in flight what it carries in this time, which timers and
/// acknowledgements take,
const HELD_BESIDES: Span = Span::from_ms(60);
/// or in so many round trips more, if that is less: what a short path does not hold stands in the
/// peer's socket,
const HELD_BESIDES_ROUNDS: u64 = 3;
/// but not in less than this, for which a thread may wait for its turn.
const HELD_BESIDES_MIN: Span = Span::from_ms(2);
/// The part of all that while a queue is to drain.
const DRAINING: f64 = 0.75;
/// Round trips for which what waits behind a hole is kept.
const HOLE_ROUNDS: f64 = 3.0;
/// What is kept of a packet in a segment.
const PACKET_BYTES: f64 = 1400.0;

impl Path {
    /// Before a lane has shown what it carries.
    pub fn windows(&self) -> Windows {
        let rtt = self.link.rtt;
        self.windows_for(&self.carried(), &Distance::new(rtt, rtt, false), rtt)
    }

    fn carried(&self) -> Carried {
        Carried::new(self.part(), self.link.loss.as_f64())
    }

    /// What a lane carries that is like all others, in bytes per second.
    fn part(&self) -> f64 {
        self.link.rate.bytes_per_second() / self.lanes as f64
    }

    /// For a lane whose smoothed round trip is `round`.
    fn windows_for(&self, carried: &Carried, distance: &Distance, round: Span) -> Windows {
        let farthest = distance.seen().max(distance.rtt());
        let arrives = Link { rate: self.inbound, rtt: farthest, ..self.link.clone() };
        let bdp = arrives.bdp().get();
        let stream = stream_bytes(self.segment_bytes);
        // The plan is the first gateway's, whose fabric file may differ.
        let longest = stream_bytes(self.segment_bytes.max(SEGMENT_BYTES_MAX));
        let (rate, rtt) = (carried.rate(), distance.rtt().as_secs_f64());
        let besides = held_besides(distance.rtt()).as_secs_f64();
        let held = |round_trips: f64| rate * (round_trips * rtt + besides);
        let share = carried.share() * if distance.drains() { DRAINING } else { 1.0 };
        let flight = (held(carried.round_trips()).max(WINDOW_MIN as f64) * share) as u64;
        let packets = self.segment_bytes as f64 / PACKET_BYTES;
        let holes = 1.0 - (1.0 - carried.loss()).powf(packets);
        Windows {
            // Streams are always read, so these bound nothing but a peer that breaks the
            // rules: grants are our back-pressure.
            stream: varint(longest),
            receive: varint(3 * bdp + 8 * stream),
            streams: varint(64 + 4 * bdp / self.segment_bytes.min(4096)),
            // Room for more than is in flight, so that a lane that waits is one that is full.
            send: ((held(MORE) + HOLE_ROUNDS * holes * rate * rtt) as u64).max(flight) + 2 * stream,
            flight,
            // QUIC's pacer spreads it over a round trip.
            repair: flight.min((rate * round.as_secs_f64()) as u64),
        }
    }
}

/// Keeps a connection's windows fit for its path; returns why it cannot.
pub(crate) async fn follow(spec: &LaneSpec, peer: &PeerLink, connection: &Connection) -> String {
    let mut path = peer.path(spec);
    let mut set = None;
    let mut assigned: Option<Arc<Watch>> = None;
    let heeds = peer.controller == ControllerKind::LinkShare;
    let mut distance = Distance::new(path.link.rtt, longest(&peer.link), heeds);
    let mut carried = path.carried();
    loop {
        let Some(watch) = liveness::watch(connection) else {
            return "no congestion controller of ours".to_owned();
        };
        let windows = path.windows_for(&carried, &distance, liveness::round_trip(connection));
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
            carried = path.carried();
        }
        let round = liveness::round_trip(connection).max(LOOK_MIN);
        let until = spec.host.now() + round;
        loop {
            tokio::select! {
                biased;
                // At once: it is sent again at once, in the place of what would be new.
                owed = watch.limits.owed() => peer.rate.limit().charge(owed),
                () = spec.host.sleep_until(until) => break,
            }
        }
        carried.round(done(spec.host.now(), connection, &watch));
        distance.round(watch.take_least_rtt(), carried.waits());
        path.link.rate = peer.rate_now();
        carried.divide(path.part());
    }
}

/// A segment's payload and parity, and what stands ahead of it.
pub(crate) fn stream_bytes(segment: u64) -> u64 {
    segment + u64::from(parity_max(segment)) * SHARD_BYTES + 4096
}

fn held_besides(rtt: Span) -> Span {
    let rounds = Span::from_ns(rtt.ns().saturating_mul(HELD_BESIDES_ROUNDS));
    rounds.clamp(HELD_BESIDES_MIN, HELD_BESIDES)
}

fn done(at: TimeNs, connection: &Connection, watch: &Watch) -> Done {
    let (waited, (acked, acked_bytes)) = (watch.waited(at), watch.acked());
    let (lost, limits) = (connection.stats().path.lost_packets, &watch.limits);
    let (marked, most_lost) = (limits.take_marked(), limits.take_most_lost());
    let in_flight = limits.in_flight();
    Done { at, waited, acked, acked_bytes, lost, in_flight, marked, most_lost }
}

/// The longest round trip that windows follow. Inside a region it is never far, and the rate
/// stands for more than any path has.
fn longest(link: &Link) -> Span {
    let stretched = Span::from_ns(link.rtt.ns().saturating_mul(STRETCH_MAX));
    if link.a == link.b { stretched } else { STRETCH_MIN.max(stretched) }
}

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::RegionId;
    use units::Fraction;

    fn path(rtt: Span, gigabits: u64, loss_ppb: u32) -> Path {
        let rate = BitRate::from_bits_per_second(gigabits * 1_000_000_000);
        let loss = Fraction::from_ppb(loss_ppb).expect("below 1");
        let link = Link { a: RegionId(0), b: RegionId(1), rate, rtt, loss };
        Path { link, inbound: rate, lanes: 4, segment_bytes: 1 << 20 }
    }

    #[test]
    fn every_window_holds_what_the_path_holds() {
        for (rtt, gigabits) in [(1, 1), (80, 1), (200, 10), (100, 100)] {
            for loss in [0, 10_000_000] {
                let path = path(Span::from_ms(rtt), gigabits, loss);
                let (bdp, windows) = (path.link.bdp().get(), path.windows());
                let part = bdp / path.lanes;
                assert!(windows.flight > part * 5 / 4 && windows.repair >= part, "{windows:?}");
                assert!(windows.send > windows.flight.min(part * 5 / 4 + (1 << 20)));
                // Nearly every segment of so many packets has a hole.
                assert!(loss == 0 || windows.send > 4 * part, "{windows:?}");
                assert!(windows.receive.into_inner() > 3 * bdp);
                let streams = windows.streams.into_inner() * (1 << 20);
                assert!(streams > 3 * bdp && windows.stream.into_inner() > 1 << 20);
            }
        }
    }

    #[test]
    fn what_is_sent_again_is_spread_over_the_round_trip_of_now_and_a_queue_drains() {
        let (path, ms) = (path(Span::from_ms(80), 1, 0), Span::from_ms);
        let mut distance = Distance::new(ms(80), ms(800), true);
        let repair = |round| path.windows_for(&path.carried(), &distance, round).repair;
        assert_eq!(repair(ms(120)), 3 * repair(ms(40)));
        assert_eq!(repair(ms(900)), path.windows().flight, "and never more than any other time");
        let whole = path.windows();
        for _ in 0..4 {
            distance.round(Some(ms(120)), true);
        }
        let draining = path.windows_for(&path.carried(), &distance, ms(120));
        assert!(draining.flight < whole.flight * 4 / 5 && draining.send == whole.send);
        assert!(draining.receive > whole.receive, "the peer's are for what is seen");
    }

    #[test]
    fn the_longest_round_trip_is_bounded() {
        let longest = |rtt, b| longest(&Link { b: RegionId(b), ..path(rtt, 1, 0).link });
        let ms = Span::from_ms;
        assert_eq!(longest(ms(200), 1), ms(1600), "a peer that does not answer");
        assert_eq!(longest(ms(1), 1), ms(1000));
        assert_eq!(longest(ms(1), 0), ms(8), "inside a region");
    }
}
