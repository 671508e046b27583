//! Liveness of a connection: probes on silence, and the end of dead paths.
//!
//! The monitor is one of the tasks of a connection, on the lane's thread. All lanes to a peer share
//! [`PeerLiveness`].
//!
//! - **Probes.** QUIC doubles its timeout (PTO) after each probe without an answer. After an outage of
//!   seconds it may wait for as long again before it finds that the path is back. So a lane with bytes
//!   in flight and no acknowledgement for a round trip sends a datagram of one byte. It sends another
//!   each half round trip until it is heard. The acknowledgement of any of them shows QUIC all losses at once.
//!   While one lane is silent, idle lanes to the same peer probe too.
//! - **Dead paths.** A lane that hears nothing while others to the same peer do is on a dead path. It
//!   is closed long before QUIC would, so that its segments go over the others.
//! - **Lost peers.** QUIC waits for at least three PTOs, and after a pause of ten seconds on either side
//!   a PTO is half a minute. Here a peer is lost once no datagram came from it for `idle_timeout`.
//!   Where other links join all regions, the silent one is gone round after `detour_timeout`.
//!
//! ```text
//! round     = min(smoothed RTT + ACK_DELAY_MAX, max(2 RTT of the fabric, LIVENESS_ROUND_MAX))
//! lost peer = no datagram for max(KEEP_ALIVE_INTERVAL + 3 RTT of the fabric, IDLE_TIMEOUT_MIN)
//! detour    = no datagram for max(DETOUR_OUTAGE + 3 RTT of the fabric, DETOUR_TIMEOUT_MIN)
//! dead path = silent, while others are heard,
//!             for > max(DEAD_PATH_ROUNDS x round, DEAD_PATH_SILENCE_MIN)
//! ```

use crate::host::Host;
use crate::wan::congestion::lane_controller::{connection_telemetry, smoothed_rtt};
use bytes::Bytes;
use quinn::Connection;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use units::{Span, TimeNs};

/// 15 s without a datagram from a peer, or longer on long links: the peer is lost, since outages of
/// some seconds are common. QUIC's own timeout counts from the first keep-alive of this side, so it
/// would take longer.
const IDLE_TIMEOUT_MIN: Duration = Duration::from_secs(15);
/// 3 round trips more than a keep-alive interval without a datagram from a peer: the peer is lost on
/// a long link. An idle peer is heard once a keep-alive and a round trip, because QUIC awaits the
/// answer to the last one.
const IDLE_ROUND_TRIPS: u32 = 3;
/// 8 s without a datagram from a peer: the link is gone round, if others join all regions. It is
/// above [`DETOUR_OUTAGE`], and below the stall deadline of 10 s, so that the next step goes round
/// it.
/// Tested by `a_link_cut_under_way_is_gone_round_in_time`.
const DETOUR_TIMEOUT_MIN: Duration = Duration::from_secs(8);
/// 6 s, and round trips as in [`IDLE_ROUND_TRIPS`]: an outage of 5 s after a keep-alive interval of
/// 1 s, and its end, are no reason to go round a link.
const DETOUR_OUTAGE: Duration = Duration::from_secs(6);
/// 3 s: the lanes of a silent peer end within this time of each other. Their last packets came at
/// most a keep-alive interval apart.
const SILENT_ENDS_MAX: Duration = Duration::from_secs(3);
/// 1 s: the interval between keep-alive packets of a lane that sends nothing else. A peer that was
/// started again answers one with a stateless reset, so an idle lane to the old process ends that
/// soon.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// 25 ms: how long a peer may delay an acknowledgement (QUIC's `max_ack_delay`). The liveness
/// monitor adds this time to the RTT.
const ACK_DELAY_MAX: Span = Span::from_ms(25);
/// 1,024 bytes: QUIC's datagram buffer for liveness probes, in each direction of a lane. Nobody
/// reads the probes; when the buffer is full, the oldest is dropped.
pub(super) const PROBE_BUFFER_BYTES: usize = 1024;
/// 1 s: the longest round trip that the liveness monitor assumes, but at least twice the fabric's.
/// An RTT measured while a process was paused does not predict the next RTT.
const LIVENESS_ROUND_MAX: Span = Span::from_secs(1);
/// 6 round trips without an acknowledgement, while other lanes to the same peer hear some: the
/// lane's path counts as dead, and the lane closes.
/// Tested by `a_lane_with_a_dead_path_closes_alone`.
const DEAD_PATH_ROUNDS: u64 = 6;
/// 500 ms: the least silence, while other lanes to the same peer are heard, after which a lane's
/// path counts as dead.
const DEAD_PATH_SILENCE_MIN: Span = Span::from_ms(500);

/// Returns how long no datagram comes from a peer until it is lost, over a link of this round trip.
pub(super) fn idle_timeout(rtt: Span) -> Duration {
    (KEEP_ALIVE_INTERVAL + rtt.duration() * IDLE_ROUND_TRIPS).max(IDLE_TIMEOUT_MIN)
}

/// Returns how long no datagram comes from a peer until the link to it is gone round, if others
/// join all regions.
fn detour_timeout(rtt: Span) -> Duration {
    let outage = DETOUR_OUTAGE + rtt.duration() * IDLE_ROUND_TRIPS;
    outage.max(DETOUR_TIMEOUT_MIN).min(idle_timeout(rtt))
}

/// The times at which the lanes to a peer were heard, and what follows from silence.
#[derive(Debug, Default)]
pub struct PeerLiveness {
    /// When a lane last had an acknowledgement.
    heard_ns: AtomicU64,
    /// When a lane last was silent with bytes in flight.
    silent_ns: AtomicU64,
    /// Whether data could go round the link to the peer.
    can_go_round: AtomicBool,
    /// When a lane last ended because nothing came from the peer; 0 if none has.
    ended_silent_ns: AtomicU64,
}

impl PeerLiveness {
    /// Sets whether data could go round the link to the peer, so that it is lost after a shorter
    /// silence.
    pub fn set_can_go_round(&self, can: bool) {
        self.can_go_round.store(can, Ordering::Relaxed);
    }

    /// Whether a lane ended just before `now` because nothing came from the peer. The lanes of a
    /// silent peer end soon after each other.
    pub fn has_ended_silent(&self, now: TimeNs) -> bool {
        let ended_ns = self.ended_silent_ns.load(Ordering::Relaxed);
        ended_ns > 0 && now.since(TimeNs::from_ns(ended_ns)).duration() < SILENT_ENDS_MAX
    }

    /// Returns the silence after which the peer is lost; `rtt` is the round trip by the fabric.
    fn lost_after(&self, rtt: Span) -> Duration {
        if self.can_go_round.load(Ordering::Relaxed) {
            detour_timeout(rtt)
        } else {
            idle_timeout(rtt)
        }
    }
}

/// The silence of one lane.
#[derive(Default)]
struct LaneSilence {
    /// Packets acknowledged until the last check.
    acked_packets: u64,
    /// [`PeerLiveness::heard_ns`] at the last check.
    peer_heard_ns: u64,
    /// UDP datagrams received until the last check.
    datagrams: u64,
    /// Whether bytes in flight had no acknowledgement since the last check.
    silent: bool,
    /// Time of silence while other lanes to the peer were heard.
    alone: Span,
    /// Time without any datagram.
    mute: Span,
}

/// Monitors the liveness of a connection until it ends or its path is dead; returns the reason.
/// `rtt` is the round trip of the link by the fabric.
pub(super) async fn monitor_liveness(
    host: &dyn Host,
    connection: &Connection,
    peer: &PeerLiveness,
    rtt: Span,
) -> String {
    let round_max = LIVENESS_ROUND_MAX.max(rtt + rtt);
    let peer_heard_ns = peer.heard_ns.load(Ordering::Relaxed);
    let mut silence = LaneSilence { peer_heard_ns, ..LaneSilence::default() };
    loop {
        let round = (smoothed_rtt(connection) + ACK_DELAY_MAX).min(round_max);
        // A silent path may be back at any time.
        let check = if silence.silent { Span::from_ns(round.ns() / 2) } else { round };
        host.sleep_until(host.now() + check).await;
        // A connection that moves to another path has new counters, so they are fetched each time.
        let Some(telemetry) = connection_telemetry(connection) else {
            return "the connection has no congestion controller of this gateway".to_owned();
        };
        let idle = telemetry.in_flight.bytes() == 0;
        let now = host.now();
        silence.note_acks(telemetry.acked_packets(), idle, now, peer);
        silence.note_time_alone(check, peer);
        let rounds = Span::from_ns(round.ns().saturating_mul(DEAD_PATH_ROUNDS));
        if silence.alone > rounds.max(DEAD_PATH_SILENCE_MIN) {
            let alone = silence.alone;
            return format!("silent for {alone} while other lanes to the same gateway are heard");
        }
        silence.note_datagrams(check, connection.stats().udp_rx.datagrams);
        if silence.mute.duration() >= peer.lost_after(rtt) {
            peer.ended_silent_ns.store(host.now().ns(), Ordering::Relaxed);
            return format!("silent for {}", silence.mute);
        }
        let other_silent = TimeNs::from_ns(peer.silent_ns.load(Ordering::Relaxed));
        if silence.silent || idle && now.since(other_silent) < round + round {
            telemetry.allow_liveness_probe();
            if let Err(error) = connection.send_datagram(Bytes::from_static(&[0])) {
                return error.to_string();
            }
        }
    }
}

impl LaneSilence {
    /// Updates the silence of the lane from its acknowledged packets so far. `idle` means that no
    /// bytes are in flight.
    fn note_acks(&mut self, acked_packets: u64, idle: bool, now: TimeNs, peer: &PeerLiveness) {
        let heard = acked_packets != self.acked_packets;
        self.silent = !heard && !idle;
        self.acked_packets = acked_packets;
        if heard {
            peer.heard_ns.fetch_max(now.ns(), Ordering::Relaxed);
        }
        if self.silent {
            peer.silent_ns.fetch_max(now.ns(), Ordering::Relaxed);
        }
    }

    /// Adds `check`, the time since the last check, to the time of silence in which other lanes to
    /// the peer were heard, if one was heard now. Zero once this lane is not silent. The time adds
    /// up check by check: when all lanes were silent, the first heard one makes no path dead.
    fn note_time_alone(&mut self, check: Span, peer: &PeerLiveness) {
        let peer_heard_ns = peer.heard_ns.load(Ordering::Relaxed);
        self.alone = match self.silent {
            true if peer_heard_ns > self.peer_heard_ns => self.alone + check,
            true => self.alone,
            false => Span::ZERO,
        };
        self.peer_heard_ns = peer_heard_ns;
    }

    /// Adds the time `check` without a datagram; `datagrams` counts all received so far. The time
    /// adds up check by check: while this process was stopped, no peer was silent.
    fn note_datagrams(&mut self, check: Span, datagrams: u64) {
        self.mute = if datagrams == self.datagrams { self.mute + check } else { Span::ZERO };
        self.datagrams = datagrams;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds of silence after which a peer is lost, without and with a way round.
    fn lost_after_secs(rtt_ms: u64) -> [u64; 2] {
        let peer = PeerLiveness::default();
        let rtt = Span::from_ms(rtt_ms);
        let alone = peer.lost_after(rtt).as_secs();
        peer.set_can_go_round(true);
        [alone, peer.lost_after(rtt).as_secs()]
    }

    #[test]
    fn a_link_with_a_way_round_is_lost_sooner() {
        assert_eq!(lost_after_secs(2), [15, 8]);
        assert_eq!(lost_after_secs(600), [15, 8]);
        assert_eq!(lost_after_secs(1000), [15, 9]);
        assert_eq!(lost_after_secs(60_000), [181; 2]);
    }

    #[test]
    fn a_silent_end_is_remembered_for_a_moment() {
        let peer = PeerLiveness::default();
        let second = |number: u64| TimeNs::from_ns(number * 1_000_000_000);
        assert!(!peer.has_ended_silent(second(1)));
        peer.ended_silent_ns.store(second(10).ns(), Ordering::Relaxed);
        let remembered = [10, 12, 13, 100].map(|number| peer.has_ended_silent(second(number)));
        assert_eq!(remembered, [true, true, false, false]);
    }
}
