//! A peer whose process has ended, as its system says while nothing else comes from it.
//!
//! One lane of each peer sends port probes, datagrams that a living process ignores. Where the peer's system
//! answers by an ICMP message that the port is closed, the lanes ask the peer. If it stays silent, its process has
//! ended. The ICMP message alone proves nothing: anybody may forge it, and a firewall may send it for an open port. So
//! once a peer is heard after such a message, its lane takes no more of them, and silence decides.

use crate::host::PortWatch;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use units::{Span, TimeNs};

/// 250 ms: the interval between the port probes of a peer. With a round trip and the time until the end of
/// its process is sure, an idle peer is lost within 1 s up to a round trip of 150 ms.
const PORT_PROBE_INTERVAL: Span = Span::from_ms(250);
/// 400 ms, or [`CONFIRMED_ROUNDS`] (2 round trips) if longer: a peer whose system says that its port is
/// closed is lost if nothing else comes from it for so long, though its lanes ask. The time is chosen, above
/// the pauses of a busy process.
const CONFIRMED_AFTER_MIN: Span = Span::from_ms(400);
/// 2 round trips, in which a process that lives answers a probe, and the probe after that.
const CONFIRMED_ROUNDS: u64 = 2;
/// 30 ms after the ICMP message that a port is closed: until then packets may come that the process has sent before
/// it ended, over another way. The time is chosen.
const LATE_PACKETS: Span = Span::from_ms(30);

/// The process of a peer, as its lanes see it together.
#[derive(Debug, Default)]
pub(super) struct PeerProcess {
    /// Whether a lane sends port probes.
    has_prober: AtomicBool,
    /// Since when the process has ended; 0 while it lives.
    ended_ns: AtomicU64,
}

impl PeerProcess {
    /// Returns since when the process has ended; `None` while it lives.
    fn ended_at(&self) -> Option<TimeNs> {
        let ended_ns = self.ended_ns.load(Ordering::Relaxed);
        (ended_ns > 0).then_some(TimeNs::from_ns(ended_ns))
    }
}

/// A look at a lane.
#[derive(Debug)]
pub(super) struct ProcessView {
    pub at: TimeNs,
    /// The time since the look before, as long as this process ran.
    pub passed: Span,
    /// The round trip in which an answer is due.
    pub round: Span,
    /// Datagrams received so far.
    pub datagrams: u64,
    /// Whether bytes in flight had no acknowledgement for a round trip.
    pub is_silent: bool,
    /// When any lane to the peer last had an acknowledgement.
    pub heard: TimeNs,
}

impl ProcessView {
    /// Returns how long nothing comes from a peer whose port is closed until its process has ended.
    fn confirmed_after(&self) -> Span {
        let rounds = Span::from_ns(self.round.ns().saturating_mul(CONFIRMED_ROUNDS));
        rounds.max(CONFIRMED_AFTER_MIN)
    }
}

/// The part of a lane in finding out whether the peer's process has ended.
#[derive(Debug)]
pub(super) struct ProcessWatch<'p> {
    peer: &'p PeerProcess,
    suspicion: Option<Suspicion>,
    /// Whether words about closed ports say nothing here: the process was heard after one of them.
    is_void: bool,
    /// When this lane sends the next port probe, if it is the one that does.
    probe_at: Option<TimeNs>,
    /// When the last datagram came, and how many had come by then.
    heard: (TimeNs, u64),
    /// Whether older words about the port are forgotten: of the time when this gateway dialled a port that
    /// nobody had opened yet.
    has_begun: bool,
}

/// The suspicion that the process has ended.
#[derive(Debug)]
struct Suspicion {
    since: TimeNs,
    /// The time that has passed since, as long as this process ran.
    waited: Span,
    /// Datagrams of the lane until then.
    datagrams: u64,
}

impl<'p> ProcessWatch<'p> {
    /// Makes the part of a lane that is up since `now`: the process lives.
    pub fn new(peer: &'p PeerProcess, now: TimeNs) -> Self {
        peer.ended_ns.store(0, Ordering::Relaxed);
        Self {
            peer,
            suspicion: None,
            is_void: false,
            probe_at: None,
            heard: (now, 0),
            has_begun: false,
        }
    }

    /// Whether the process may have ended, so that its lanes have to ask.
    pub fn is_suspected(&self) -> bool {
        self.suspicion.is_some()
    }

    /// Finds out whether the process at this address has ended, and sends a port probe if one is due. Returns
    /// the reason to end the lane once that is sure.
    pub fn look(
        &mut self,
        watch: Option<&PortWatch>,
        to: SocketAddr,
        view: &ProcessView,
    ) -> Option<String> {
        let refused_at = watch.and_then(|watch| self.ask_system(watch, to, view));
        self.follow_refusal(refused_at, view)
            .then(|| format!("port {} of {} is closed: its process has ended", to.port(), to.ip()))
    }

    /// Sends a port probe if one is due, and returns when the peer's system last said that the port is
    /// closed, if anybody has asked.
    fn ask_system(
        &mut self,
        watch: &PortWatch,
        to: SocketAddr,
        view: &ProcessView,
    ) -> Option<TimeNs> {
        if !std::mem::replace(&mut self.has_begun, true) {
            watch.forget(to, view.at);
        }
        let is_free = || !self.peer.has_prober.swap(true, Ordering::Relaxed);
        if self.probe_at.is_none() && !self.is_void && is_free() {
            self.probe_at = Some(next_port_probe_tick(view.at));
        }
        if self.probe_at.is_some_and(|at| view.at >= at) {
            watch.probe(to);
            self.probe_at = Some(next_port_probe_tick(view.at));
        }
        let asks = view.is_silent || self.probe_at.is_some();
        asks.then(|| watch.refused_at(to, view.at)).flatten()
    }

    /// Follows what the system said of the port, and whether the peer is heard. Returns whether the
    /// process has ended.
    fn follow_refusal(&mut self, refused_at: Option<TimeNs>, view: &ProcessView) -> bool {
        if view.datagrams != self.heard.1 {
            self.heard = (view.at, view.datagrams);
        }
        if let Some(since) = self.confirmed_since(refused_at, view) {
            self.peer.ended_ns.store(since.ns(), Ordering::Relaxed);
        }
        // A lane of another path may still wait for its answer when the first one is sure.
        self.peer.ended_at().is_some_and(|ended| {
            self.heard.0 <= ended + LATE_PACKETS && view.at.since(ended) >= view.confirmed_after()
        })
    }

    /// Returns since when the process has ended, once this lane is sure.
    fn confirmed_since(
        &mut self,
        refused_at: Option<TimeNs>,
        view: &ProcessView,
    ) -> Option<TimeNs> {
        let Some(suspicion) = &mut self.suspicion else {
            let is_new = refused_at.is_some_and(|at| at >= self.heard.0) && !self.is_void;
            let (since, waited, datagrams) = (view.at, Span::ZERO, view.datagrams);
            self.suspicion = is_new.then_some(Suspicion { since, waited, datagrams });
            return None;
        };
        suspicion.waited = suspicion.waited + view.passed;
        let late_until = suspicion.since + LATE_PACKETS;
        if view.at <= late_until {
            suspicion.datagrams = view.datagrams;
        }
        if view.datagrams != suspicion.datagrams || view.heard > late_until {
            self.take_no_more_words();
            return None;
        }
        (suspicion.waited >= view.confirmed_after()).then_some(suspicion.since)
    }

    /// Leaves the decision to silence, since the peer lives though its system says that the port is closed.
    fn take_no_more_words(&mut self) {
        (self.suspicion, self.is_void) = (None, true);
        if self.probe_at.take().is_some() {
            self.peer.has_prober.store(false, Ordering::Relaxed);
        }
    }

    /// Returns when the next look is due, if `next` was planned.
    pub fn plan_look(&self, view: &ProcessView, next: TimeNs) -> TimeNs {
        let suspected = || view.at + Span::from_ns(view.round.ns() / 2);
        let is_due = self.is_suspected() || self.peer.ended_at().is_some();
        let next = if is_due { next.min(suspected()) } else { next };
        self.probe_at.map_or(next, |at| next.min(at))
    }
}

/// Returns the next tick after `now`: a multiple of [`PORT_PROBE_INTERVAL`], equal for all peers, so that a
/// thread wakes once for them.
fn next_port_probe_tick(now: TimeNs) -> TimeNs {
    let interval = PORT_PROBE_INTERVAL.ns();
    TimeNs::from_ns((now.ns() / interval + 1).saturating_mul(interval))
}

impl Drop for ProcessWatch<'_> {
    /// Lets another lane send port probes.
    fn drop(&mut self) {
        if self.probe_at.is_some() {
            self.peer.has_prober.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a look; looks are 50 ms apart.
    fn at(look: u64) -> TimeNs {
        TimeNs::from_ns(1) + Span::from_ms(50 * look)
    }

    /// A lane whose round is 100 ms. `events` has its datagrams, and whether the port was reported as closed,
    /// at each look. Another lane is heard at `heard`. Returns the look at which the process has ended.
    fn ended_at(events: impl Fn(u64) -> (u64, bool), heard: u64) -> Option<u64> {
        let (peer, mut refused_at) = (PeerProcess::default(), None);
        let mut watch = ProcessWatch::new(&peer, at(0));
        (1..100).find(|look| {
            let (datagrams, is_refused) = events(*look);
            refused_at = if is_refused { Some(at(*look)) } else { refused_at };
            let view = ProcessView {
                at: at(*look),
                passed: Span::from_ms(50),
                round: Span::from_ms(100),
                datagrams,
                is_silent: true,
                heard: at(heard),
            };
            watch.follow_refusal(refused_at, &view)
        })
    }

    #[test]
    fn a_closed_port_ends_a_peer_that_is_silent() {
        assert_eq!(ended_at(|look| (7, look == 4), 0), Some(12));
        assert_eq!(ended_at(|_| (7, false), 0), None, "silence alone");
    }

    #[test]
    fn a_forged_word_ends_no_peer_that_is_heard() {
        // A datagram comes 300 ms after the ICMP message, and never again.
        assert_eq!(ended_at(|look| (7 + u64::from(look >= 10), look >= 4), 0), None);
        // Another lane is heard.
        assert_eq!(ended_at(|look| (7, look >= 4), 6), None);
    }

    #[test]
    fn all_silent_lanes_end_with_the_one_that_is_sure() {
        let peer = PeerProcess::default();
        let (mut silent, mut heard) =
            (ProcessWatch::new(&peer, at(0)), ProcessWatch::new(&peer, at(0)));
        peer.ended_ns.store(at(4).ns(), Ordering::Relaxed);
        let view = |look, datagrams| ProcessView {
            at: at(look),
            passed: Span::from_ms(50),
            round: Span::from_ms(100),
            datagrams,
            is_silent: false,
            heard: at(0),
        };
        assert!(!silent.follow_refusal(None, &view(8, 0)), "its answer may still come");
        assert!(silent.follow_refusal(None, &view(12, 0)));
        assert!(!heard.follow_refusal(None, &view(12, 1)), "another process answers there");
    }
}
