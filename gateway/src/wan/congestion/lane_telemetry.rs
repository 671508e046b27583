//! Counters that a lane's congestion controller shares with the tasks of the lane.
//!
//! The controller runs inside quinn, on the lane's thread, and writes the counters at each packet. The
//! tuner, the liveness monitor, the sender and the engine read them; all but the engine are tasks on
//! the same thread. So a plain load and store is enough for the controller.

use super::in_flight::InFlight;
use super::shared_lane::{SharedLane, SharedLaneView};
use crate::host::Host;
use crate::lock::lock_ignoring_poison;
use quinn::Connection;
use quinn_proto::congestion::Controller;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use units::{Span, TimeNs};

/// 2 ms: a write that is late at a lane's pace by up to this time delays no later write. The pace
/// of a longer idle time is lost. Tokio's timers have steps of 1 ms, and a woken task waits for a
/// core.
const PACE_DELAY_MAX: Span = Span::from_ms(2);
/// 0.002 s at the lane's pace: on a shared link one write has no more bytes than leave in that
/// time, and longer data takes several writes. It equals [`PACE_DELAY_MAX`], by which a late write
/// loses no pace.
const PACED_WRITE_SECONDS: f64 = 0.002;
/// 2,400 bytes, two packets: on a shared link one write may have so many bytes, however low the
/// lane's pace. A QUIC path carries packets of at least 1,200 bytes.
const PACED_WRITE_BYTES_MIN: f64 = 2400.0;
/// 39 bytes of QUIC headers in a full packet, added to those of IP and UDP; on a shared link they
/// take pace too. See [`PACKET_OVERHEAD_BYTES`](hier_collectives::bound::PACKET_OVERHEAD_BYTES).
const QUIC_HEADER_BYTES: u64 = 39;
/// 1,000 bytes: an acknowledged packet of this length or more is counted as full, as packets of
/// data are. QUIC's shortest path carries 1,200 bytes. Packets of acknowledgements, probes and
/// small messages have a few hundred at most.
pub(crate) const FULL_PACKET_BYTES_MIN: u64 = 1000;

/// The counters of one path of a lane. A connection that moves to another path has new ones.
#[derive(Default)]
pub(crate) struct LaneTelemetry {
    /// Packets acknowledged so far.
    acked_packets: AtomicU64,
    /// Bytes of the packets acknowledged so far, QUIC's headers included.
    acked_bytes: AtomicU64,
    /// Packets of at least [`FULL_PACKET_BYTES_MIN`] acknowledged so far.
    acked_full_packets: AtomicU64,
    /// Bytes that a liveness probe may send beyond the congestion window.
    probe_allowance: AtomicU64,
    /// Bytes of UDP payload in a packet.
    mtu: AtomicU64,
    /// Nanoseconds that the sender has waited for window space, up to `waiting_since_ns`.
    waited_ns: AtomicU64,
    /// When the sender began to wait for window space, in nanoseconds; 0 while it does not wait.
    waiting_since_ns: AtomicU64,
    /// The least RTT since the tuner last took it, in nanoseconds; 0 for none.
    tuner_min_rtt_ns: AtomicU64,
    /// The least RTT since the engine last took it, in nanoseconds; 0 for none. Taking clears it, so
    /// the tuner has its own.
    engine_min_rtt_ns: AtomicU64,
    /// When the tuner last noted the processor time of the lane's thread, in nanoseconds.
    thread_noted_ns: AtomicU64,
    /// The processor time of the lane's thread then, in nanoseconds.
    thread_used_ns: AtomicU64,
    /// How long the path is silent, by the liveness monitor, in nanoseconds; 0 while it is not.
    silence_ns: AtomicU64,
    /// The most that the lane should send, in bytes per second; 0 without a limit of its own.
    pace: AtomicU64,
    /// When all bytes that were written so far have left at the pace, in nanoseconds.
    paced_until_ns: AtomicU64,
    /// Wakes the sender when the pace ends.
    pace_ended: Notify,
    /// Bytes in flight, and the congestion window.
    pub in_flight: Arc<InFlight>,
    /// The controller to change to; see [`LaneTelemetry::replace_controller`].
    next_controller: Mutex<Option<Box<dyn Controller>>>,
    has_next_controller: AtomicBool,
    /// The model of the lane, on a shared link.
    shared: Mutex<Option<SharedLane>>,
    is_shared: AtomicBool,
}

/// The processor time of a lane's thread at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TelemetryThreadTime {
    /// The time at which it was noted.
    pub at: TimeNs,
    /// The processor time used until then.
    pub used: Span,
}

/// Counts the time that the sender waits for window space, until dropped.
pub(crate) struct TelemetryWindowWait<'w> {
    telemetry: &'w LaneTelemetry,
    host: &'w dyn Host,
}

impl LaneTelemetry {
    /// Creates the counters of a path whose packets have `mtu` bytes of UDP payload.
    pub fn new(mtu: u16) -> Self {
        Self { mtu: u64::from(mtu).into(), ..Self::default() }
    }

    /// Counts an acknowledged packet of `bytes` bytes with its RTT. Only the congestion controller
    /// calls this.
    pub fn note_ack(&self, bytes: u64, rtt_ns: u64) {
        add_to_telemetry_counter(&self.acked_packets, 1);
        add_to_telemetry_counter(&self.acked_bytes, bytes);
        if bytes >= FULL_PACKET_BYTES_MIN {
            add_to_telemetry_counter(&self.acked_full_packets, 1);
        }
        let rtt_ns = rtt_ns.max(1);
        for min_rtt_ns in [&self.tuner_min_rtt_ns, &self.engine_min_rtt_ns] {
            let least = min_rtt_ns.load(Ordering::Relaxed);
            if least == 0 || rtt_ns < least {
                min_rtt_ns.store(rtt_ns, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of packets acknowledged so far, and of their bytes with QUIC's headers.
    pub fn acked_packets_and_bytes(&self) -> (u64, u64) {
        (self.acked_packets.load(Ordering::Relaxed), self.acked_bytes.load(Ordering::Relaxed))
    }

    /// Returns the number of packets acknowledged on the path so far.
    pub fn acked_packets(&self) -> u64 {
        self.acked_packets.load(Ordering::Relaxed)
    }

    /// Returns the number of packets of at least [`FULL_PACKET_BYTES_MIN`] acknowledged so far.
    pub fn acked_full_packets(&self) -> u64 {
        self.acked_full_packets.load(Ordering::Relaxed)
    }

    /// Returns the least RTT since the last call by the tuner; `None` without an acknowledgement.
    pub fn take_min_rtt_for_tuner(&self) -> Option<Span> {
        take_telemetry_min_rtt(&self.tuner_min_rtt_ns)
    }

    /// Returns the least RTT since the last call by the engine; `None` without an acknowledgement.
    pub fn take_min_rtt_for_engine(&self) -> Option<Span> {
        take_telemetry_min_rtt(&self.engine_min_rtt_ns)
    }

    /// Counts the time from now until the result is dropped as the sender's wait for space in the
    /// congestion window.
    pub fn begin_window_wait<'w>(&'w self, host: &'w dyn Host) -> TelemetryWindowWait<'w> {
        self.waiting_since_ns.store(host.now().ns().max(1), Ordering::Relaxed);
        TelemetryWindowWait { telemetry: self, host }
    }

    /// Returns the time that the sender has waited for space in the congestion window so far.
    pub fn window_wait(&self, now: TimeNs) -> Span {
        let since = match self.waiting_since_ns.load(Ordering::Relaxed) {
            0 => now,
            since => TimeNs::from_ns(since),
        };
        Span::from_ns(self.waited_ns.load(Ordering::Relaxed)) + now.since(since)
    }

    /// Sets the most that the lane should send, in bytes per second, or ends that limit with `None`.
    pub fn set_pace(&self, pace: Option<f64>) {
        self.pace.store(pace.map_or(0, |pace| (pace as u64).max(1)), Ordering::Relaxed);
        if pace.is_none() {
            self.pace_ended.notify_one();
        }
    }

    /// Waits until `bytes` bytes may be written at the lane's pace, and counts them. Returns at
    /// once while no pace is set. On a shared link small segments wait too; elsewhere the sender
    /// calls this for bulk alone.
    pub async fn wait_for_pace(&self, host: &dyn Host, bytes: u64) {
        let pace = self.pace.load(Ordering::Relaxed);
        if pace == 0 {
            return;
        }
        let now = host.now();
        let earliest = now.ns().saturating_sub(PACE_DELAY_MAX.ns());
        let begin = self.paced_until_ns.load(Ordering::Relaxed).max(earliest);
        let takes = Span::from_secs_f64(self.paced_bytes(bytes) as f64 / pace as f64);
        self.paced_until_ns.store(begin.saturating_add(takes.ns()), Ordering::Relaxed);
        if begin > now.ns() {
            tokio::select! {
                biased;
                () = self.pace_ended.notified() => {}
                () = host.sleep_until(TimeNs::from_ns(begin)) => {}
            }
        }
    }

    /// Returns the most bytes of one write: 2 ms of a shared lane's pace, but at least two packets.
    /// Other lanes have no limit.
    pub fn paced_write_bytes(&self) -> usize {
        if !self.is_shared() {
            return usize::MAX;
        }
        let pace = self.pace.load(Ordering::Relaxed) as f64;
        (PACED_WRITE_SECONDS * pace).max(PACED_WRITE_BYTES_MIN) as usize
    }

    /// Returns how many bytes of the lane's pace `bytes` bytes of payload take. On a shared lane
    /// packet headers count, too.
    fn paced_bytes(&self, bytes: u64) -> u64 {
        if !self.is_shared() {
            return bytes;
        }
        let mtu = self.mtu.load(Ordering::Relaxed);
        bytes + bytes * QUIC_HEADER_BYTES / mtu.saturating_sub(QUIC_HEADER_BYTES).max(1)
    }

    /// Delays the next packets of a shared lane by the time of `bytes` lost bytes, since their
    /// retransmission does not wait for the pace.
    pub fn charge_pace(&self, bytes: u64) {
        let pace = self.pace.load(Ordering::Relaxed);
        if pace > 0 {
            let takes = Span::from_secs_f64(bytes as f64 / pace as f64);
            self.paced_until_ns.fetch_add(takes.ns(), Ordering::Relaxed);
        }
    }

    /// Makes the lane one of a shared link, which follows a model, or of another kind with `None`.
    pub fn set_shared(&self, lane: Option<SharedLane>) {
        let mut shared = lock_ignoring_poison(&self.shared);
        let was_shared = self.is_shared.swap(lane.is_some(), Ordering::Relaxed);
        *shared = lane;
        match &*shared {
            Some(lane) => self.follow_model(lane),
            None if was_shared => self.set_pace(None),
            None => {}
        }
    }

    /// Returns whether the lane is one of a shared link.
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Hands an event to the congestion model of a shared lane, then takes over the model's congestion
    /// window and pacing rate. Does nothing for other lanes.
    pub fn update_model(&self, event: impl FnOnce(&mut SharedLane)) {
        if self.is_shared()
            && let Some(lane) = &mut *lock_ignoring_poison(&self.shared)
        {
            event(lane);
            self.follow_model(lane);
        }
    }

    /// Returns the state of a shared lane's model; `None` on other links.
    pub fn shared_view(&self) -> Option<SharedLaneView> {
        lock_ignoring_poison(&self.shared).as_ref().map(SharedLane::view)
    }

    /// Returns whether the sender of the lane has bulk that waits for window space or, on a shared
    /// link, for the pace.
    pub fn is_sender_held(&self) -> bool {
        self.waiting_since_ns.load(Ordering::Relaxed) > 0
    }

    /// Sets the lane's congestion window and pace to those of the model of a shared lane.
    fn follow_model(&self, lane: &SharedLane) {
        self.in_flight.set_window(lane.window(), lane.rate() as u64);
        self.set_pace(Some(lane.pacing_rate()));
    }

    /// Stores the processor time that the calling thread, the lane's, has used so far.
    pub fn note_thread_time(&self, host: &dyn Host) {
        self.thread_used_ns.store(host.thread_time().ns(), Ordering::Relaxed);
        self.thread_noted_ns.store(host.now().ns(), Ordering::Relaxed);
    }

    /// Returns the processor time of the lane's thread as last noted. Both values are of one moment,
    /// but for a note that is being written.
    pub fn thread_time(&self) -> TelemetryThreadTime {
        TelemetryThreadTime {
            at: TimeNs::from_ns(self.thread_noted_ns.load(Ordering::Relaxed)),
            used: Span::from_ns(self.thread_used_ns.load(Ordering::Relaxed)),
        }
    }

    /// Stores how long the path is silent. Only the liveness monitor knows: packets that hold
    /// acknowledgements alone are in flight, too, and nobody acknowledges them.
    pub fn note_silence(&self, silence: Span) {
        self.silence_ns.store(silence.ns(), Ordering::Relaxed);
    }

    /// Returns how long the path is silent, by the last look of the liveness monitor.
    pub fn silence(&self) -> Span {
        Span::from_ns(self.silence_ns.load(Ordering::Relaxed))
    }

    /// Returns the bytes of UDP payload in a full packet of the path.
    pub fn mtu(&self) -> u16 {
        u16::try_from(self.mtu.load(Ordering::Relaxed)).unwrap_or(u16::MAX)
    }

    /// Changes the packet size, in bytes of UDP payload.
    pub fn set_mtu(&self, mtu: u16) {
        self.mtu.store(u64::from(mtu), Ordering::Relaxed);
    }

    /// Lets a liveness probe pass a full congestion window: two packets more until the next
    /// acknowledgement.
    pub fn allow_liveness_probe(&self) {
        let allowance = 2 * self.mtu.load(Ordering::Relaxed);
        self.probe_allowance.store(allowance, Ordering::Relaxed);
    }

    /// Takes `bytes` sent bytes off the allowance for liveness probes.
    pub fn use_probe_allowance(&self, bytes: u64) {
        let allowance = self.probe_allowance.load(Ordering::Relaxed);
        self.probe_allowance.store(allowance.saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Ends the allowance for liveness probes, at each acknowledgement.
    pub fn end_probe_allowance(&self) {
        self.probe_allowance.store(0, Ordering::Relaxed);
    }

    /// Returns the window in bytes that lets a liveness probe pass; 0 while none is allowed.
    pub fn probe_window(&self) -> u64 {
        let allowance = self.probe_allowance.load(Ordering::Relaxed);
        if allowance == 0 { 0 } else { self.in_flight.bytes() + allowance }
    }

    /// Changes the lane to another congestion controller at the next acknowledgement. An accepted
    /// connection has the controller of some link until its peer is known.
    pub fn replace_controller(&self, next: Box<dyn Controller>) {
        *lock_ignoring_poison(&self.next_controller) = Some(next);
        self.has_next_controller.store(true, Ordering::Release);
    }

    /// Removes and returns the congestion controller to change to; `None` when there is none.
    pub fn take_next_controller(&self) -> Option<Box<dyn Controller>> {
        if !self.has_next_controller.swap(false, Ordering::Acquire) {
            return None;
        }
        lock_ignoring_poison(&self.next_controller).take()
    }
}

impl Drop for TelemetryWindowWait<'_> {
    /// Adds the wait that ends now to the sender's total wait for window space.
    fn drop(&mut self) {
        let since = TimeNs::from_ns(self.telemetry.waiting_since_ns.swap(0, Ordering::Relaxed));
        let waited = self.host.now().since(since);
        self.telemetry.waited_ns.fetch_add(waited.ns(), Ordering::Relaxed);
    }
}

/// Returns the least RTT in a cell of the counters and clears it; `None` if 0.
fn take_telemetry_min_rtt(min_rtt_ns: &AtomicU64) -> Option<Span> {
    let ns = min_rtt_ns.swap(0, Ordering::Relaxed);
    (ns > 0).then(|| Span::from_ns(ns))
}

/// Adds to a counter that has one writer, with a plain load and store, which costs less than an
/// atomic add.
fn add_to_telemetry_counter(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// Returns the smoothed RTT that QUIC measures on a connection.
pub(crate) fn telemetry_smoothed_rtt(connection: &Connection) -> Span {
    Span::from_ns(u64::try_from(connection.rtt().as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;

    #[tokio::test(start_paused = true)]
    async fn a_pace_spreads_bulk_until_it_ends() {
        let host = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let (telemetry, begin) = (Arc::new(LaneTelemetry::new(1472)), host.now());
        telemetry.wait_for_pace(&*host, 1 << 30).await;
        assert_eq!(host.now(), begin, "no pace");
        telemetry.set_pace(Some(1e6));
        for _ in 0..100 {
            telemetry.wait_for_pace(&*host, 1000).await;
        }
        let took = host.now().since(begin);
        assert!(took >= Span::from_ms(96) && took <= Span::from_ms(100), "{took} for 99 ms");
        // A write of a minute at this pace is ended by the end of the pace.
        telemetry.wait_for_pace(&*host, 60_000_000).await;
        let (paced, clock) = (Arc::clone(&telemetry), Arc::clone(&host));
        let waiting = tokio::spawn(async move { paced.wait_for_pace(&*clock, 1000).await });
        host.sleep_until(host.now() + Span::from_ms(5)).await;
        telemetry.set_pace(None);
        waiting.await.expect("no panic");
        assert!(host.now().since(begin) < Span::from_ms(110), "{}", host.now().since(begin));
    }
}
