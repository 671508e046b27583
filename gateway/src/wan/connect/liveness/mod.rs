//! Liveness of a connection: probes on silence, and the end of dead paths.
//!
//! The monitor is one of the tasks of a connection, on the lane's thread. All lanes to a peer share
//! [`PeerLiveness`]. It looks at its lane by the clock. Its findings wake the other tasks, and the
//! engine reads from the lane's telemetry how long the lane is silent.
//!
//! - **Checks.** With bytes in flight, or while data comes, the monitor looks at the lane each round
//!   trip. Otherwise it looks at ticks of `KEEP_ALIVE_INTERVAL` that all connections of a machine
//!   share, so that a thread wakes once for all of its lanes. Between ticks it is woken when the first
//!   bytes go in flight, when none is any more, and when another lane of the peer is silent.
//! - **Keep-alives.** At a tick with nothing in flight the side that dialled sends a liveness probe.
//!   Its acknowledgement shows either side that the other lives.
//! - **Probes.** QUIC doubles its timeout (PTO) after each probe without an answer. After an outage of
//!   seconds it may wait for as long again before it finds that the path is back. So a lane with bytes
//!   in flight and no acknowledgement for a round trip sends a datagram of one byte. It sends another
//!   each half round trip until it is heard. The acknowledgement of any of them shows QUIC all losses at once.
//!   While one lane is silent, idle lanes to the same peer probe too.
//! - **Answers.** QUIC sends no acknowledgement alone while a window is full of lost bytes. So a lane
//!   with bytes in flight answers each probe at once by a datagram that passes the window and carries
//!   the acknowledgement. Nobody answers an answer.
//! - **Dead paths.** A lane that hears nothing while others to the same peer do is on a dead path. It
//!   is closed long before QUIC would, so that its segments go over the others. Where it is the only
//!   one, the dialler opens another as a witness (`wan/link/lane_number/`).
//! - **Narrow paths.** A path may come to carry short packets only, so that probes and acknowledgements
//!   pass and data does not (`narrow_path.rs`). The lane is closed as after a silence of the peer.
//! - **Lost peers.** QUIC waits for at least three PTOs, and after a pause of ten seconds on either side
//!   a PTO is half a minute. Here a peer is lost when no datagram came from it for as long as the fabric's
//!   [`Patience`] says. Where other links join all regions, the silent one is gone round sooner.
//!
//! - **Dead processes.** The system of a peer whose process has ended says that its ports are closed
//!   (`host::PortWatch`). If nothing else comes from the peer for 400 ms or two round trips, its lanes end
//!   (`dead_process.rs`).
//!
//! While this process is stopped, no silence counts: between two looks at most the time counts that
//! was to pass between them.
//!
//! ```text
//! round     = min(smoothed RTT + ACK_DELAY_MAX, max(2 RTT of the fabric, LIVENESS_ROUND_MAX))
//! dead path = silent, while others are heard,
//!             for > max(DEAD_PATH_ROUNDS x round, DEAD_PATH_SILENCE_MIN)
//! ```

mod dead_process;
mod narrow_path;

use crate::host::Host;
use crate::wan::congestion::lane_controller::lane_controller_telemetry;
use crate::wan::congestion::lane_telemetry::LaneTelemetry;
use crate::wan::congestion::lane_telemetry::telemetry_smoothed_rtt;
use bytes::Bytes;
use dead_process::{PeerProcess, ProcessView, ProcessWatch};
use hier_collectives::topology::{KEEP_ALIVE_INTERVAL, Patience};
use narrow_path::{FullPackets, NarrowPath};
use quinn::{Connection, FrameStats};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use units::{Span, TimeNs};

/// 15 s: QUIC ends a connection after no less without a datagram, however short the patience is: it
/// counts the time in which this process was stopped, too. QUIC's timeout counts from the last datagram, or
/// from the first packet sent after that datagram.
const IDLE_TIMEOUT_MIN: Span = Span::from_secs(15);
/// 3 s: if the last lane to a peer ends less than 3 s after one that ended for silence, data goes
/// another way, if any. The last packets of a peer's lanes came at most a keep-alive interval (1 s)
/// apart.
const SILENT_ENDS_MAX: Duration = Duration::from_secs(3);
/// 2 datagrams since the last check of a lane: if more came, the lane receives data, and its
/// liveness is checked each round trip, so that the begin of a silence is known. Keep-alives bring
/// one a second.
const KEEP_ALIVE_DATAGRAMS_MAX: u64 = 2;
/// 2 s (two ticks) without a datagram: from then on the liveness of a lane without bytes in flight
/// is checked each round trip, and no longer each second. A keep-alive that comes just after a tick
/// leaves one tick without any.
const QUIET_BEFORE_FREQUENT_CHECKS: Span = Span::from_secs(2);
/// 30 ms: how long a peer may delay an acknowledgement: 25 ms (QUIC's `max_ack_delay`), and 5 ms
/// for late timers of both ends. An acknowledgement counts as missing only after the smoothed RTT
/// and this time.
const ACK_DELAY_MAX: Span = Span::from_ms(30);
/// The byte 0: the datagram of a liveness probe. A lane with bytes in flight answers it with
/// [`ANSWER_DATAGRAM`]; any lane acknowledges it.
const PROBE_DATAGRAM: &[u8] = &[0];
/// The byte 1: the datagram by which a lane with bytes in flight answers a liveness probe. It
/// carries an acknowledgement, and is not answered.
const ANSWER_DATAGRAM: &[u8] = &[1];
/// 1,024 bytes: QUIC's datagram buffer for liveness probes, in each direction of a lane. Only lanes
/// with bytes in flight read the probes; when the buffer is full, the oldest is dropped.
pub(super) const PROBE_BUFFER_BYTES: usize = 1024;
/// 1 s, or twice the fabric's round trip if longer: the longest round trip that the liveness
/// monitor assumes, whatever was measured. An RTT measured while a process was paused does not
/// predict the next RTT.
const LIVENESS_ROUND_MAX: Span = Span::from_secs(1);
/// 6 round trips without an acknowledgement of a lane, while other lanes to the same peer are
/// heard: if it is silent for longer, its path counts as dead, and the lane closes. The number is
/// chosen.
/// Tested by `a_lane_with_a_dead_path_closes_alone`.
const DEAD_PATH_ROUNDS: u64 = 6;
/// 500 ms, or [`DEAD_PATH_ROUNDS`] (6 round trips) if longer: a lane that is silent for longer,
/// while other lanes to the same peer are heard, closes. On short links six round trips are less
/// than a busy host may take.
const DEAD_PATH_SILENCE_MIN: Span = Span::from_ms(500);

/// Returns the round trip that the liveness monitor assumes of a lane. The arguments are its smoothed
/// RTT and the round trip of the link by the fabric.
fn liveness_round(smoothed: Span, rtt: Span) -> Span {
    (smoothed + ACK_DELAY_MAX).min(LIVENESS_ROUND_MAX.max(rtt + rtt))
}

/// Returns the silence after which the path of a lane counts as dead while others are heard. The
/// arguments are its smoothed RTT and the round trip of the link by the fabric.
pub(crate) fn liveness_dead_path_time(smoothed: Span, rtt: Span) -> Span {
    liveness_dead_path_silence(liveness_round(smoothed, rtt))
}

/// Returns the silence after which the path of a lane counts as dead, by the round trip that the
/// liveness monitor assumes.
fn liveness_dead_path_silence(round: Span) -> Span {
    Span::from_ns(round.ns().saturating_mul(DEAD_PATH_ROUNDS)).max(DEAD_PATH_SILENCE_MIN)
}

/// The times at which the lanes to a peer were heard, and what follows from silence.
#[derive(Debug, Default)]
pub struct PeerLiveness {
    /// When a lane last had an acknowledgement.
    heard_ns: AtomicU64,
    /// When a lane last was silent with bytes in flight.
    silent_ns: AtomicU64,
    /// Wakes the monitors of idle lanes when a lane is silent.
    silenced: Notify,
    /// Whether data could go round the link to the peer.
    can_go_round: AtomicBool,
    /// When a lane last ended because nothing came from the peer; 0 if none has.
    ended_silent_ns: AtomicU64,
    /// Whether the peer's process has ended.
    process: PeerProcess,
    /// The patience of the fabric, from which follows when the peer is lost.
    patience: Patience,
    /// The silence after which the peer is lost by the fabric, if that says so.
    silence: Option<Span>,
}

impl PeerLiveness {
    /// Makes the state of lanes to a peer that is not heard yet. `silence` is that of the fabric, if it
    /// has one.
    pub fn new(patience: Patience, silence: Option<Span>) -> Self {
        Self { patience, silence, ..Self::default() }
    }

    /// Returns how long no datagram comes from the peer until QUIC ends a connection, by the round trip
    /// of the link by the fabric: the patience with it, at least 15 s.
    pub(super) fn idle_timeout(&self, rtt: Span) -> Duration {
        self.patience.lost_after(None, rtt).max(IDLE_TIMEOUT_MIN).duration()
    }

    /// Sets whether data could go round the link to the peer, so that it is lost after a shorter
    /// silence.
    pub fn set_can_go_round(&self, can: bool) {
        self.can_go_round.store(can, Ordering::Relaxed);
    }

    /// Returns whether a lane ended less than 3 s before `now` because nothing came from the peer.
    /// The lanes of a silent peer end soon after each other.
    pub fn has_ended_silent(&self, now: TimeNs) -> bool {
        let ended_ns = self.ended_silent_ns.load(Ordering::Relaxed);
        ended_ns > 0 && now.since(TimeNs::from_ns(ended_ns)).duration() < SILENT_ENDS_MAX
    }

    /// Returns whether a lane was silent with bytes in flight less than `span` before `now`.
    fn is_silent_within(&self, span: Span, now: TimeNs) -> bool {
        now.since(TimeNs::from_ns(self.silent_ns.load(Ordering::Relaxed))) < span
    }

    /// Stores the time `now` at which a lane is silent, and has idle lanes ask the peer.
    fn note_silence(&self, now: TimeNs) {
        self.silent_ns.fetch_max(now.ns(), Ordering::Relaxed);
        self.silenced.notify_waiters();
    }

    /// Stores the time `now` at which a lane ended because nothing came from the peer.
    pub(super) fn note_silent_end(&self, now: TimeNs) {
        self.ended_silent_ns.store(now.ns(), Ordering::Relaxed);
    }

    /// Returns the silence after which the peer is lost; `rtt` is the round trip by the fabric.
    fn lost_after(&self, rtt: Span) -> Duration {
        let after = match self.can_go_round.load(Ordering::Relaxed) {
            true => self.patience.gone_round_after(self.silence, rtt),
            false => self.patience.lost_after(self.silence, rtt),
        };
        after.duration()
    }
}

/// The counters of one lane at one look.
#[derive(Debug, Clone, Copy)]
struct LivenessSample {
    at: TimeNs,
    /// The round trip in which an acknowledgement is due.
    round: Span,
    /// Packets acknowledged so far.
    acked_packets: u64,
    /// UDP datagrams received so far.
    datagrams: u64,
    /// Whether bytes are in flight that the peer is to acknowledge.
    in_flight: bool,
}

/// The silence of one lane.
#[derive(Debug)]
struct LaneLiveness {
    /// The last look, and how long after it the next one is planned.
    last: LivenessSample,
    planned: Span,
    /// [`PeerLiveness::heard_ns`] at the last look.
    peer_heard_ns: u64,
    /// Time with bytes in flight and without an acknowledgement.
    unheard: Span,
    /// Whether bytes in flight had no acknowledgement for a round trip.
    silent: bool,
    /// Time of silence while other lanes to the peer were heard.
    alone: Span,
    /// Time without any datagram.
    mute: Span,
    /// Whether more than keep-alives came between the last two looks.
    is_receiving: bool,
}

/// The frames that a lane has sent, to tell whether any is to be acknowledged.
#[derive(Debug, Default)]
struct LivenessFrames {
    /// Frames other than probes and acknowledgements, until the last look.
    payload: u64,
    /// All frames but acknowledgements, when the last of them was acknowledged.
    acknowledged: u64,
}

/// Monitors the liveness of a connection until it ends, its path is dead or the peer is lost;
/// returns the reason.
/// `rtt` is the round trip of the link by the fabric. The side that dialled
/// (`dials`) sends keep-alives.
pub(super) async fn monitor_liveness(
    host: &dyn Host,
    connection: &Connection,
    peer: &PeerLiveness,
    rtt: Span,
    dials: bool,
) -> String {
    let mut keep_alive_at = next_liveness_tick(host.now());
    let mut silence = LaneLiveness::new(host.now(), peer);
    let (mut sent, mut narrow_path) = (LivenessFrames::default(), NarrowPath::default());
    let mut process = ProcessWatch::new(&peer.process, host.now());
    let (mut path, mut is_asked) = (None, false);
    loop {
        // Made before the look, so that no silence of another lane in between is missed.
        let other_silenced = peer.silenced.notified();
        // A connection that moves to another path has new counters, so they are fetched each time.
        let Some(telemetry) = lane_controller_telemetry(connection) else {
            return "the connection has no congestion controller of this gateway".to_owned();
        };
        if follow_liveness_path(&mut path, &telemetry) {
            narrow_path = NarrowPath::default();
        }
        let round = liveness_round(telemetry_smoothed_rtt(connection), rtt);
        let stats = connection.stats();
        let view = LivenessSample {
            at: host.now(),
            round,
            acked_packets: telemetry.acked_packets(),
            datagrams: stats.udp_rx.datagrams,
            in_flight: sent.is_awaiting_acknowledgement(&stats.frame_tx, &telemetry),
        };
        if view.in_flight && !silence.last.in_flight {
            discard_liveness_probes(connection);
        }
        let passed = silence.look(&view, peer);
        narrow_path.look(passed, FullPackets::new(telemetry.acked_full_packets(), &stats.path));
        telemetry.note_silence(silence.length());
        let process_view = silence.process_view(passed, peer);
        let ended = (silence.end_reason(peer, rtt))
            .or_else(|| narrow_path.problem_after(peer.lost_after(rtt)))
            .or_else(|| {
                process.look(host.port_watch(), connection.remote_address(), &process_view)
            });
        if process.is_suspected() {
            peer.note_silence(view.at);
        }
        if let Some(why) = ended {
            return why;
        }
        let other_silent = peer.is_silent_within(round + round, view.at);
        let is_tick = view.at >= keep_alive_at;
        keep_alive_at = if is_tick { next_liveness_tick(view.at) } else { keep_alive_at };
        let probes = silence.silent
            || process.is_suspected()
            || !view.in_flight && (other_silent || is_tick && dials);
        if probes || is_asked {
            telemetry.allow_liveness_probe();
            let kind = if probes { PROBE_DATAGRAM } else { ANSWER_DATAGRAM };
            if let Err(error) = connection.send_datagram(Bytes::from_static(kind)) {
                return error.to_string();
            }
        }
        is_asked = false;
        let next = silence.plan_look(other_silent);
        let next = silence.note_plan(process.plan_look(&process_view, next));
        let is_quiet = !silence.silent && !view.in_flight && !other_silent;
        tokio::select! {
            biased;
            () = telemetry.in_flight.wait_until_begun_or_ended(), if silence.is_calm() => {}
            () = other_silenced, if is_quiet => {}
            read = connection.read_datagram(), if view.in_flight => match read {
                Ok(datagram) => is_asked = datagram != ANSWER_DATAGRAM,
                Err(error) => return error.to_string(),
            },
            () = host.sleep_until(next) => {}
        }
    }
}

/// Discards the probes that came so far, so that the next one to be read is new.
fn discard_liveness_probes(connection: &Connection) {
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Ok(_)) = pin!(connection.read_datagram()).poll(&mut context) {}
}

/// Sets the path of a connection to `present`, and wakes the tasks that wait for events of the path
/// before. Returns whether it is another one than before.
fn follow_liveness_path(
    path: &mut Option<Arc<LaneTelemetry>>,
    present: &Arc<LaneTelemetry>,
) -> bool {
    if path.as_ref().is_some_and(|known| Arc::ptr_eq(known, present)) {
        return false;
    }
    present.in_flight.resume_path();
    if let Some(left) = path.replace(Arc::clone(present)) {
        left.in_flight.abandon_path();
    }
    true
}

/// Returns the next tick after `now`: a multiple of [`KEEP_ALIVE_INTERVAL`], equal for all lanes of
/// a machine.
fn next_liveness_tick(now: TimeNs) -> TimeNs {
    let interval = KEEP_ALIVE_INTERVAL.ns();
    TimeNs::from_ns((now.ns() / interval + 1).saturating_mul(interval))
}

impl LivenessFrames {
    /// Returns whether bytes in flight await an acknowledgement, by the frames sent so far. Forgets
    /// those of packets with acknowledgements alone, which nobody acknowledges. Wakes the tuner if
    /// more than liveness probes was sent since the last look.
    fn is_awaiting_acknowledgement(
        &mut self,
        sent: &FrameStats,
        telemetry: &LaneTelemetry,
    ) -> bool {
        let windows = sent.max_data + sent.max_stream_data + sent.max_streams_uni;
        let payload = windows + sent.stream + sent.reset_stream + sent.stop_sending;
        if std::mem::replace(&mut self.payload, payload) != payload {
            telemetry.in_flight.note_traffic();
        }
        let eliciting = payload + sent.datagram + sent.ping;
        let in_flight = telemetry.in_flight.bytes() > 0;
        if in_flight && eliciting != self.acknowledged {
            return true;
        }
        self.acknowledged = eliciting;
        if in_flight {
            telemetry.in_flight.forget_unacknowledged();
        }
        false
    }
}

impl LaneLiveness {
    /// Makes the state of a lane that is up since `now`, and has not been silent yet.
    fn new(now: TimeNs, peer: &PeerLiveness) -> Self {
        let last = LivenessSample {
            at: now,
            round: Span::ZERO,
            acked_packets: 0,
            datagrams: 0,
            in_flight: false,
        };
        Self {
            last,
            planned: Span::ZERO,
            peer_heard_ns: peer.heard_ns.load(Ordering::Relaxed),
            unheard: Span::ZERO,
            silent: false,
            alone: Span::ZERO,
            mute: Span::ZERO,
            is_receiving: false,
        }
    }

    /// Updates the silence of the lane from its counters. Time counts up to the planned look: while
    /// this process was stopped, no peer was silent. Returns the time that counts.
    fn look(&mut self, view: &LivenessSample, peer: &PeerLiveness) -> Span {
        let passed = view.at.since(self.last.at).min(self.planned);
        self.note_acks(passed, view, peer);
        self.note_time_alone(passed, peer);
        self.note_datagrams(passed, view.datagrams);
        self.last = *view;
        passed
    }

    /// Adds `passed` to the time without an acknowledgement, or ends that time.
    fn note_acks(&mut self, passed: Span, view: &LivenessSample, peer: &PeerLiveness) {
        let heard = view.acked_packets != self.last.acked_packets;
        let awaited = view.in_flight && self.last.in_flight && !heard;
        self.unheard = if awaited { self.unheard + passed } else { Span::ZERO };
        self.silent = view.in_flight && self.unheard >= view.round;
        if heard {
            peer.heard_ns.fetch_max(view.at.ns(), Ordering::Relaxed);
        }
        if self.silent {
            peer.note_silence(view.at);
        }
    }

    /// Adds `passed` to the time of silence in which other lanes to the peer were heard, if one was
    /// heard since the last look. Sets it to zero when this lane is not silent. The time adds up
    /// look by look. So after a silence of all lanes, the first one that is heard makes no other
    /// path dead.
    fn note_time_alone(&mut self, passed: Span, peer: &PeerLiveness) {
        let peer_heard_ns = peer.heard_ns.load(Ordering::Relaxed);
        self.alone = match self.silent {
            true if peer_heard_ns > self.peer_heard_ns => self.alone + passed,
            true => self.alone,
            false => Span::ZERO,
        };
        self.peer_heard_ns = peer_heard_ns;
    }

    /// Adds `passed` to the time without a datagram, or ends that time; `datagrams` counts all
    /// received so far.
    fn note_datagrams(&mut self, passed: Span, datagrams: u64) {
        let more = datagrams.saturating_sub(self.last.datagrams);
        self.mute = if more == 0 { self.mute + passed } else { Span::ZERO };
        self.is_receiving = more > KEEP_ALIVE_DATAGRAMS_MAX;
    }

    /// Returns the reason to end the lane for its silence, if it has lasted long enough.
    fn end_reason(&self, peer: &PeerLiveness, rtt: Span) -> Option<String> {
        if self.is_path_dead(self.last.round) {
            let alone = self.alone.rounded();
            return Some(format!(
                "silent for {alone} while other lanes to the same gateway are heard"
            ));
        }
        (self.mute.duration() >= peer.lost_after(rtt)).then(|| {
            peer.note_silent_end(self.last.at);
            format!("silent for {}", self.mute.rounded())
        })
    }

    /// Returns the last look, `passed` after the one before, as the watch over the peer's process sees it.
    fn process_view(&self, passed: Span, peer: &PeerLiveness) -> ProcessView {
        ProcessView {
            at: self.last.at,
            passed,
            round: self.last.round,
            datagrams: self.last.datagrams,
            is_silent: self.silent,
            heard: TimeNs::from_ns(peer.heard_ns.load(Ordering::Relaxed)),
        }
    }

    /// Returns how long the lane is silent: zero unless bytes in flight had no acknowledgement for a
    /// round trip.
    fn length(&self) -> Span {
        if self.silent { self.unheard } else { Span::ZERO }
    }

    /// Returns whether the lane was silent for so long, while others were heard, that its path is
    /// dead.
    fn is_path_dead(&self, round: Span) -> bool {
        self.alone > liveness_dead_path_silence(round)
    }

    /// Returns whether the first bytes in flight, or the last, wake the liveness monitor before its
    /// planned look. Not so for a silent lane and one that receives data, and acknowledges it all
    /// the time: they have looks enough.
    fn is_calm(&self) -> bool {
        !self.silent && !self.is_receiving
    }

    /// Plans the next look, and returns its time. `other_silent` says whether another lane to the
    /// peer is silent.
    fn plan_look(&mut self, other_silent: bool) -> TimeNs {
        let LivenessSample { at, round, in_flight, .. } = self.last;
        let next = if self.silent {
            // A silent path may be back at any time.
            at + Span::from_ns(round.ns() / 2)
        } else if in_flight {
            at + Span::from_ns(round.ns() - self.unheard.ns())
        } else if other_silent || self.is_receiving || self.mute >= QUIET_BEFORE_FREQUENT_CHECKS {
            at + round
        } else {
            next_liveness_tick(at)
        };
        self.note_plan(next)
    }

    /// Notes and returns the time of the next look.
    fn note_plan(&mut self, next: TimeNs) -> TimeNs {
        self.planned = next.since(self.last.at);
        next
    }
}

#[cfg(test)]
mod tests;
