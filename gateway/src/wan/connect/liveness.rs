//! Two probes per round trip on silence.
//!
//! QUIC doubles its pause before each tail probe that nobody answers, so after a cut of some
//! seconds it may wait for as long again before it finds that the path is back. What is under
//! way has a deadline, so a lane that has bytes in flight and hears no acknowledgement for a
//! round trip sends a datagram of one byte, and one more each half until it hears. The
//! acknowledgement of any of them lets QUIC see all that was lost at once.
//!
//! A lane that hears nothing while others to the same peer do is on a path that has died: it is
//! given up long before QUIC would, so that its segments go over the others. These may have nothing
//! to do without them: while a lane is silent, the others probe too.
//!
//! QUIC gives nobody up before three of its probe timeouts have passed, and after a pause of ten
//! seconds on either side it takes one for half a minute. Here a peer is lost once nothing has come
//! from it for QUIC's idle timeout, whatever the round trip seems to be.

use crate::host::Host;
use crate::wan::congestion::controller::LinkShare;
use crate::wan::congestion::in_flight::Limits;
use crate::wan::congestion::tuner::Path;
use crate::wan::connect::quic_config::IDLE;
use crate::wan::link::policy::ControllerKind;
use bytes::Bytes;
use quinn::Connection;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::trace;
use units::{Span, TimeNs};

/// Where each packet sent is traced, with the bytes in flight on its lane and their limit.
const FLIGHT: &str = "landbridge::flight";
/// Acknowledgements may come this much later than a round trip (QUIC's `max_ack_delay`).
const ACK_DELAY: Span = Span::from_ms(25);
/// Room for probes on either side, quinn's bookkeeping of them included. Nobody reads them:
/// the oldest goes when the room is full.
pub(crate) const DATAGRAM_BYTES: usize = 1024;

/// A lane looks, and probes, at least this often: a round trip that was measured across a pause
/// says nothing of the next one.
const LOOK_MAX: Span = Span::from_secs(1);
/// Others must have been heard for this long while a lane was silent, in round trips,
const GIVE_UP_ROUNDS: u64 = 6;
/// and for at least this long.
const GIVE_UP_MIN: Span = Span::from_ms(500);

/// What the lanes to a peer know of each other.
#[derive(Debug, Default)]
pub struct Heard {
    /// When any was last heard.
    last_ns: AtomicU64,
    /// When any last heard nothing of what it had in flight.
    missed_ns: AtomicU64,
}

/// Probes a connection until it ends, or until its path has died; returns why.
pub(crate) async fn probe(host: &dyn Host, connection: &Connection, peer: &Heard) -> String {
    let mut acked_before = 0;
    let mut peer_heard = peer.last_ns.load(Ordering::Relaxed);
    let (mut alone, mut mute, mut datagrams) = (Span::ZERO, Span::ZERO, 0);
    let mut silent = false;
    loop {
        let round = (round_trip(connection) + ACK_DELAY).min(LOOK_MAX);
        // Who is silent already may be heard again at any time.
        let look = if silent { Span::from_ns(round.ns() / 2) } else { round };
        host.sleep_until(host.now() + look).await;
        // Asked for each time: a connection that moves to another path has a new one.
        let Some(watch) = watch(connection) else {
            return "no congestion controller of ours".to_owned();
        };
        let acked = watch.acked.load(Ordering::Relaxed);
        let (heard, idle) = (acked != acked_before, watch.limits.in_flight() == 0);
        silent = !heard && !idle;
        acked_before = acked;
        let now = host.now();
        if heard {
            peer.last_ns.fetch_max(now.ns(), Ordering::Relaxed);
        }
        if silent {
            peer.missed_ns.fetch_max(now.ns(), Ordering::Relaxed);
        }
        let missed = TimeNs::from_ns(peer.missed_ns.load(Ordering::Relaxed));
        let others = peer.last_ns.load(Ordering::Relaxed);
        // Round by round: when all were silent, the first that is heard again accuses nobody.
        alone = match silent {
            true if others > peer_heard => alone + look,
            true => alone,
            false => Span::ZERO,
        };
        peer_heard = others;
        let patience = Span::from_ns(round.ns().saturating_mul(GIVE_UP_ROUNDS)).max(GIVE_UP_MIN);
        if alone > patience {
            return format!("silent for {alone} while other lanes to the same gateway are heard");
        }
        let came = connection.stats().udp_rx.datagrams;
        // Look by look: while this process was stopped, nobody was silent.
        mute = if came == datagrams { mute + look } else { Span::ZERO };
        datagrams = came;
        if mute.duration() >= IDLE {
            return format!("silent for {mute}");
        }
        if silent || idle && now.since(missed) < round + round {
            watch.slack.store(2 * watch.mtu.load(Ordering::Relaxed), Ordering::Relaxed);
            if let Err(error) = connection.send_datagram(Bytes::from_static(&[0])) {
                return error.to_string();
            }
        }
    }
}

/// Smoothed round-trip time of a connection.
pub(crate) fn round_trip(connection: &Connection) -> Span {
    Span::from_ns(u64::try_from(connection.rtt().as_nanos()).unwrap_or(u64::MAX))
}

/// What a connection's controller shares with us.
pub(crate) fn watch(connection: &Connection) -> Option<Arc<Watch>> {
    let state = connection.congestion_state().into_any();
    state.downcast::<Watched>().ok().map(|watched| watched.watch)
}

/// Makes controllers that tell of silence and round trips, and let a probe pass when the
/// window is shut.
pub(crate) struct Watching {
    path: Path,
    kind: ControllerKind,
}

struct Watched {
    inner: Box<dyn Controller>,
    watch: Arc<Watch>,
}

/// What a controller and the tasks beside it share.
#[derive(Default)]
pub(crate) struct Watch {
    /// Packets acknowledged so far, and their bytes.
    acked: AtomicU64,
    acked_bytes: AtomicU64,
    /// Bytes that may leave beyond the window.
    slack: AtomicU64,
    mtu: AtomicU64,
    /// Time that the writer of segments spent waiting for room until now, in nanoseconds, and when
    /// it began to wait; 0 while it does not.
    waited_ns: AtomicU64,
    waits_since_ns: AtomicU64,
    /// Least round trip since it was taken, in nanoseconds; 0 for none.
    least_rtt_ns: AtomicU64,
    /// As above, for who looks at what the link carries.
    least_rtt_seen_ns: AtomicU64,
    /// How much is in flight, and may be.
    pub limits: Arc<Limits>,
    /// The controller to go on with, once there is one: an answered connection has that of
    /// another link until its peer has said who it is.
    next: Mutex<Option<Box<dyn Controller>>>,
    has_next: AtomicBool,
}

impl Watch {
    /// The least round trip since it was last taken.
    pub fn take_least_rtt(&self) -> Option<Span> {
        take(&self.least_rtt_ns)
    }

    /// As [`Watch::take_least_rtt`], for somebody else.
    pub fn take_least_rtt_seen(&self) -> Option<Span> {
        take(&self.least_rtt_seen_ns)
    }

    /// Packets acknowledged so far, and their bytes, headers of QUIC included.
    pub fn acked(&self) -> (u64, u64) {
        (self.acked.load(Ordering::Relaxed), self.acked_bytes.load(Ordering::Relaxed))
    }

    /// Whoever writes segments waits for room until this is dropped.
    pub fn waiting<'w>(&'w self, host: &'w dyn Host) -> Waiting<'w> {
        self.waits_since_ns.store(host.now().ns().max(1), Ordering::Relaxed);
        Waiting { watch: self, host }
    }

    /// Time spent waiting for room so far.
    pub fn waited(&self, now: TimeNs) -> Span {
        let since = match self.waits_since_ns.load(Ordering::Relaxed) {
            0 => now,
            since => TimeNs::from_ns(since),
        };
        Span::from_ns(self.waited_ns.load(Ordering::Relaxed)) + now.since(since)
    }

    /// Goes on with the controller of another link.
    pub fn assign(&self, path: &Path, kind: ControllerKind, now: Instant) {
        self.limits.set(&path.windows());
        let mtu = u16::try_from(self.mtu.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
        let next = make(kind, path, &self.limits, (now, mtu));
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        self.has_next.store(true, Ordering::Release);
    }
}

/// See [`Watch::waiting`].
pub(crate) struct Waiting<'w> {
    watch: &'w Watch,
    host: &'w dyn Host,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let since = TimeNs::from_ns(self.watch.waits_since_ns.swap(0, Ordering::Relaxed));
        let waited = self.host.now().since(since);
        self.watch.waited_ns.fetch_add(waited.ns(), Ordering::Relaxed);
    }
}

fn take(least_ns: &AtomicU64) -> Option<Span> {
    let ns = least_ns.swap(0, Ordering::Relaxed);
    (ns > 0).then(|| Span::from_ns(ns))
}

impl Watching {
    /// Controllers of one link's lanes.
    pub fn new(path: &Path, kind: ControllerKind) -> Self {
        Self { path: path.clone(), kind }
    }
}

impl ControllerFactory for Watching {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let watch = Watch { mtu: u64::from(mtu).into(), ..Watch::default() };
        watch.limits.set(&self.path.windows());
        let inner = make(self.kind, &self.path, &watch.limits, (now, mtu));
        Box::new(Watched { inner, watch: Arc::new(watch) })
    }
}

fn make(
    kind: ControllerKind,
    path: &Path,
    limits: &Arc<Limits>,
    (now, mtu): (Instant, u16),
) -> Box<dyn Controller> {
    // RFC 9002's, for any MTU: QUIC's own is less than one jumbo packet, and such a connection
    // never sends its second one.
    let initial = (INITIAL_PACKETS * u64::from(mtu)).max(INITIAL_BYTES);
    match kind {
        ControllerKind::LinkShare => {
            let loss = path.link.loss.as_f64();
            Box::new(LinkShare::new(Arc::clone(limits), loss, mtu))
        }
        ControllerKind::Cubic => {
            let mut config = CubicConfig::default();
            config.initial_window(initial);
            Arc::new(config).build(now, mtu)
        }
        ControllerKind::NewReno => {
            let mut config = NewRenoConfig::default();
            config.initial_window(initial);
            Arc::new(config).build(now, mtu)
        }
    }
}

/// Window that CUBIC and NewReno begin with, in packets and at least in bytes.
const INITIAL_PACKETS: u64 = 10;
/// As above.
const INITIAL_BYTES: u64 = 14_720;

/// Only the connection writes here, so that nobody has to be kept from it for each packet.
fn add(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Controller for Watched {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        let in_flight = self.watch.limits.sent(bytes);
        trace!(target: FLIGHT, in_flight, window = self.watch.limits.flight());
        let slack = self.watch.slack.load(Ordering::Relaxed);
        self.watch.slack.store(slack.saturating_sub(bytes), Ordering::Relaxed);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        add(&self.watch.acked, 1);
        add(&self.watch.acked_bytes, bytes);
        let sample = u64::try_from(now.saturating_duration_since(sent).as_nanos());
        let sample = sample.unwrap_or(u64::MAX).max(1);
        for least_ns in [&self.watch.least_rtt_ns, &self.watch.least_rtt_seen_ns] {
            let least = least_ns.load(Ordering::Relaxed);
            if least == 0 || sample < least {
                least_ns.store(sample, Ordering::Relaxed);
            }
        }
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.watch.limits.acknowledged(in_flight, app_limited);
        self.watch.slack.store(0, Ordering::Relaxed);
        if self.watch.has_next.swap(false, Ordering::Acquire) {
            let mut next = self.watch.next.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(next) = next.take() {
                self.inner = next;
            }
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.watch.limits.lose(lost_bytes);
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.watch.mtu.store(u64::from(new_mtu), Ordering::Relaxed);
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        let slack = self.watch.slack.load(Ordering::Relaxed);
        let probe = if slack == 0 { 0 } else { self.watch.limits.in_flight() + slack };
        self.inner.window().max(probe)
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let (inner, watch) = (self.inner.clone_box(), Arc::clone(&self.watch));
        Box::new(Self { inner, watch })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
