//! Bytes in flight on a lane, and its congestion window.
//!
//! QUIC sends no acknowledgement while it has data to send and no window for it. Two lanes with full
//! windows would wait for each other until a probe timeout. So the sender hands bulk to QUIC only when
//! the window has space. Retransmissions, small segments, and the windows of CUBIC and NewReno, which
//! grow only while they are full, stay with QUIC alone.
//!
//! Formulas, in bytes:
//!
//! ```text
//! usable = window - window / WINDOW_HEADROOM_DIVISOR
//! used   = in flight + lost and not retransmitted + handed to QUIC and not sent
//! free   = usable - used
//! piece  = min(clamp(usable / WRITE_SPACE_DIVISOR, WRITE_SPACE_BYTES_MIN, .._MAX), usable)
//! grant  if free >= min(piece, wanted bytes)
//! ```
//!
//! The controller (inside quinn), the sender, the tuner and the liveness monitor share it; all run
//! on the lane's thread. A wait ends with the packet that ends its reason, and sets no timer.

use super::lane_windows::LaneWindows;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;
use units::Span;

/// 32: a 32nd of a lane's congestion window (3.1 %) is kept free of payload, for control messages
/// and packet headers. Bulk waits once the other 31 parts are full. Headers take 3.2 % of packets
/// at MTU 1280.
/// Tested by `small_operations_take_the_latency_floor`.
const WINDOW_HEADROOM_DIVISOR: u64 = 32;
/// 4: a sender with much to write waits until a quarter of the lane's congestion window, without
/// headroom, is free. It waits for at least 16 KiB and at most 64 KiB. Each write costs processor
/// time.
const WRITE_SPACE_DIVISOR: u64 = 4;
/// 64 KiB: once so much of a lane's congestion window is free, a waiting sender writes, however
/// large the window. That is about a full call of packets. A window that fills in larger steps
/// makes bursts.
const WRITE_SPACE_BYTES_MAX: u64 = 64 << 10;
/// 16 KiB: while less of a lane's congestion window is free, a sender with more to write waits. A
/// window below 16 KiB must be free as a whole. The size is chosen.
const WRITE_SPACE_BYTES_MIN: u64 = 16 << 10;
/// 32 KiB that one acknowledgement or timeout finds lost: only a greater loss, of over half the
/// bytes in flight, shows an outage of the path. A smaller loss may as well come from a full queue.
const OUTAGE_LOSS_BYTES_MIN: u64 = 32 << 10;

/// The bytes in flight and the congestion window of one lane.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The congestion window.
    window: AtomicU64,
    /// The delivery rate in bytes per second, for the window while much is retransmitted.
    retransmission_rate: AtomicU64,
    /// Bytes in flight. Only the connection writes it.
    bytes: AtomicU64,
    /// Bytes in flight before the last acknowledgement.
    bytes_before_ack: AtomicU64,
    /// Bytes lost and not retransmitted yet.
    lost: InFlightUnsentBytes,
    /// Bytes handed to QUIC and not sent yet.
    handed: InFlightUnsentBytes,
    /// Bytes for which the sender waits; 0 while it does not wait.
    wanted: AtomicU64,
    /// Wakes the sender when space for some of the wanted bytes is free.
    freed: Notify,
    /// Wakes the liveness monitor when the first bytes go in flight, and when none is any more.
    began_or_ended: Notify,
    /// Whether the tuner waits for traffic.
    is_resting: AtomicBool,
    /// Wakes a resting tuner.
    has_traffic: Notify,
    /// Whether the connection uses another path now.
    is_abandoned: AtomicBool,
    /// Whether an ECN CE mark came since the tuner last asked.
    ecn_marked: AtomicBool,
    /// Whether most of the bytes in flight were lost at once since the tuner last asked.
    most_lost: AtomicBool,
    /// Bytes lost beyond the configured loss that the pacer is not charged for yet.
    excess_loss: AtomicU64,
    /// Wakes the tuner when there is excess loss.
    has_excess_loss: Notify,
}

/// Bytes that QUIC is still to send and that count against the congestion window. They are an
/// estimate: QUIC does not report the bytes that a reset stream drops.
/// All tasks of a lane run on one thread, so nothing comes between a load and its store.
#[derive(Debug, Default)]
struct InFlightUnsentBytes {
    bytes: AtomicU64,
    /// The part of `bytes` that was added since a packet was last sent.
    recent: AtomicU64,
}

impl InFlight {
    /// Sets the congestion window and the rate of retransmissions to those of `windows`, and wakes
    /// the sender if the window now has space for it.
    pub fn set_windows(&self, windows: &LaneWindows) {
        self.set_window(windows.congestion, windows.retransmission_rate);
    }

    /// Sets the congestion window in bytes, at least one, and the rate in bytes per second at which
    /// lost bytes leave again. Wakes the sender if the window now has space for it.
    pub fn set_window(&self, window: u64, retransmission_rate: u64) {
        self.window.store(window.max(1), Ordering::Relaxed);
        self.retransmission_rate.store(retransmission_rate, Ordering::Relaxed);
        self.wake_sender_for_space();
    }

    /// Returns the congestion window in bytes.
    pub fn congestion_window(&self) -> u64 {
        self.window.load(Ordering::Relaxed)
    }

    /// Returns the window in bytes that applies while more than a quarter of it is lost and not
    /// resent. It is one round trip of the delivery rate, at most the congestion window. The pacer
    /// of QUIC spreads it over `smoothed_rtt`, which may be far longer after an outage than before
    /// it.
    pub fn retransmission_window(&self, smoothed_rtt: Span) -> u64 {
        let rate = self.retransmission_rate.load(Ordering::Relaxed) as f64;
        self.congestion_window().min((rate * smoothed_rtt.as_secs_f64()) as u64)
    }

    /// Waits until the congestion window has space for some of `bytes` bytes, and returns for how
    /// many; `None` when the connection uses another path. One task at a time may wait.
    pub async fn wait_for_space(&self, bytes: usize) -> Option<usize> {
        self.wanted.store(bytes as u64, Ordering::Relaxed);
        loop {
            if self.is_abandoned.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(space) = self.free_space(bytes) {
                self.wanted.store(0, Ordering::Relaxed);
                return Some(space);
            }
            if self.bytes() > 0 {
                self.freed.notified().await;
                continue;
            }
            // Lets QUIC send the bytes that it has.
            tokio::task::yield_now().await;
            if self.bytes() == 0 {
                // The rest was reset with its stream.
                self.handed.clear();
                self.lost.clear();
            }
        }
    }

    /// Returns for how many of `bytes` bytes the congestion window has space. `None` if less is
    /// free than `bytes` and than a quarter of the window, at least 16 KiB and at most 64 KiB.
    pub fn free_space(&self, bytes: usize) -> Option<usize> {
        let used = self.bytes() + self.lost.bytes() + self.handed.bytes();
        let free = self.usable_window().saturating_sub(used);
        let space = usize::try_from(free).unwrap_or(usize::MAX).min(bytes);
        (free >= self.write_space_min().min(bytes as u64)).then_some(space)
    }

    /// Wakes the sender if the window has space for some of the bytes that it waits for. Wakes it
    /// also if nothing is in flight, as no acknowledgement could then free space.
    fn wake_sender_for_space(&self) {
        let wanted = usize::try_from(self.wanted.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if wanted > 0 && (self.bytes() == 0 || self.free_space(wanted).is_some()) {
            self.freed.notify_one();
        }
    }

    /// Returns the bytes of the congestion window that payload may fill: all but the headroom.
    fn usable_window(&self) -> u64 {
        let window = self.congestion_window();
        window - window / WINDOW_HEADROOM_DIVISOR
    }

    /// Returns the free bytes in the congestion window that the sender waits for if it has as many
    /// to write.
    fn write_space_min(&self) -> u64 {
        (self.usable_window() / WRITE_SPACE_DIVISOR)
            .clamp(WRITE_SPACE_BYTES_MIN, WRITE_SPACE_BYTES_MAX)
            .min(self.usable_window())
    }

    /// Counts bytes that the sender has handed to QUIC, whether or not the window had space for
    /// them.
    pub fn note_handed(&self, bytes: u64) {
        self.handed.add_bytes(bytes);
    }

    /// Counts the bytes of a sent packet, first as a retransmission of lost bytes. Returns the
    /// bytes in flight.
    pub fn note_sent(&self, bytes: u64) -> u64 {
        let retransmitted = self.lost.remove_sent(bytes);
        self.handed.remove_sent(bytes - retransmitted);
        let before = self.bytes();
        let in_flight = before + bytes;
        self.bytes.store(in_flight, Ordering::Relaxed);
        if before == 0 {
            self.began_or_ended.notify_one();
        }
        in_flight
    }

    /// Sets the bytes in flight after an acknowledgement, and wakes the sender if there is space
    /// for it. `all_sent` means that QUIC had no more to send when it last looked. Bytes handed
    /// over or lost before that, and not sent, are then forgotten as dropped. It is also set while
    /// QUIC may not send to an unvalidated address.
    pub fn note_acked(&self, in_flight: u64, all_sent: bool) {
        let before = self.bytes.swap(in_flight, Ordering::Relaxed);
        self.bytes_before_ack.store(before, Ordering::Relaxed);
        if all_sent {
            self.handed.forget_dropped();
            self.lost.forget_dropped();
        }
        if in_flight == 0 && before > 0 {
            self.began_or_ended.notify_one();
        }
        self.wake_sender_for_space();
    }

    /// Forgets bytes that nobody acknowledges: the packets sent since all others were acknowledged
    /// held acknowledgements alone.
    pub fn forget_unacknowledged(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.wake_sender_for_space();
    }

    /// Counts `bytes` that one acknowledgement or timeout found lost. More than 32 KiB and more
    /// than half of all bytes in flight tell of an outage of the path; a full queue drops fewer.
    pub fn note_lost(&self, bytes: u64) {
        let in_flight = self.bytes();
        let whole = in_flight.max(self.bytes_before_ack.load(Ordering::Relaxed));
        if bytes > OUTAGE_LOSS_BYTES_MIN && 2 * bytes > whole {
            self.most_lost.store(true, Ordering::Relaxed);
        }
        self.bytes.store(in_flight.saturating_sub(bytes), Ordering::Relaxed);
        self.lost.add_bytes(bytes);
        self.wake_sender_for_space();
    }

    /// Waits until the first bytes go in flight, or none is any more. Only the liveness monitor
    /// waits; a change before the call ends the wait at once.
    pub async fn wait_until_begun_or_ended(&self) {
        self.began_or_ended.notified().await;
    }

    /// Waits until more than liveness probes and acknowledgements was sent, or the connection uses
    /// another path. Only the tuner waits.
    pub async fn wait_for_traffic(&self) {
        self.is_resting.store(true, Ordering::Relaxed);
        self.has_traffic.notified().await;
    }

    /// Wakes a resting tuner, because more than liveness probes and acknowledgements was sent.
    pub fn note_traffic(&self) {
        if self.is_resting.swap(false, Ordering::Relaxed) {
            self.has_traffic.notify_one();
        }
    }

    /// Ends the sender's wait for space and the tuner's rest on this path, because the connection
    /// uses another path now.
    pub fn abandon_path(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        self.freed.notify_one();
        self.note_traffic();
    }

    /// Marks this path as the one that the connection uses, after it may have left the path before.
    pub fn resume_path(&self) {
        self.is_abandoned.store(false, Ordering::Relaxed);
    }

    /// Returns the bytes in flight: sent, and neither acknowledged nor lost. Packets that hold
    /// acknowledgements alone count until the next acknowledgement, or until the liveness monitor
    /// forgets them.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes lost and not retransmitted yet.
    pub fn lost_bytes(&self) -> u64 {
        self.lost.bytes()
    }

    /// Records that the peer has reported an ECN CE mark.
    pub fn note_ecn_mark(&self) {
        self.ecn_marked.store(true, Ordering::Relaxed);
    }

    /// Returns whether an ECN CE mark came since the last call.
    pub fn take_ecn_marked(&self) -> bool {
        self.ecn_marked.swap(false, Ordering::Relaxed)
    }

    /// Returns whether one acknowledgement or timeout has found over 32 KiB and over half of the
    /// bytes in flight lost since the last call.
    pub fn take_most_lost(&self) -> bool {
        self.most_lost.swap(false, Ordering::Relaxed)
    }

    /// Counts bytes lost beyond the configured loss, and wakes the tuner, which charges them to the
    /// pacer.
    pub fn note_excess_loss(&self, bytes: u64) {
        self.excess_loss.fetch_add(bytes, Ordering::Relaxed);
        self.has_excess_loss.notify_one();
    }

    /// Waits until bytes are lost beyond the configured loss, and returns how many since the last
    /// call.
    pub async fn wait_for_excess_loss(&self) -> u64 {
        self.has_excess_loss.notified().await;
        self.excess_loss.swap(0, Ordering::Relaxed)
    }
}

impl InFlightUnsentBytes {
    /// Returns the bytes that QUIC is still to send, which count against the congestion window.
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds bytes that QUIC is to send: bytes that the sender has handed over, or lost bytes.
    fn add_bytes(&self, bytes: u64) {
        self.recent.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes up to `bytes` bytes that QUIC has sent; returns how many were removed.
    fn remove_sent(&self, bytes: u64) -> u64 {
        self.recent.store(0, Ordering::Relaxed);
        let before = self.bytes();
        let sent = bytes.min(before);
        self.bytes.store(before - sent, Ordering::Relaxed);
        sent
    }

    /// Keeps only the bytes that were added since a packet was last sent. QUIC has sent all it had,
    /// so it has dropped the others with their streams.
    fn forget_dropped(&self) {
        self.bytes.store(self.recent.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Forgets all bytes, since QUIC has nothing left to send.
    fn clear(&self) {
        self.recent.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    const WINDOW: u64 = 384 << 10;
    /// The window without headroom.
    const USABLE: usize = 372 << 10;
    const CELL: usize = 64 << 10;

    fn in_flight() -> InFlight {
        let in_flight = InFlight::default();
        in_flight.set_window(WINDOW, WINDOW);
        in_flight
    }

    /// For how many bytes there is space now, or after QUIC could run `turns` times.
    fn space(in_flight: &InFlight, bytes: usize, turns: usize) -> Option<usize> {
        let mut space = std::pin::pin!(in_flight.wait_for_space(bytes));
        let mut context = Context::from_waker(Waker::noop());
        (0..=turns).find_map(|_| match space.as_mut().poll(&mut context) {
            Poll::Ready(space) => space,
            Poll::Pending => None,
        })
    }

    /// Hands over cells until there is no space, and returns how many bytes that were.
    fn fill(in_flight: &InFlight) -> usize {
        let cells = std::iter::from_fn(|| {
            space(in_flight, CELL, 0).inspect(|bytes| in_flight.note_handed(*bytes as u64))
        });
        cells.sum()
    }

    #[test]
    fn an_outage_differs_from_drops_of_a_queue() {
        let in_flight = in_flight();
        let most_lost = |bytes: u64, lost: u64| {
            in_flight.note_acked(bytes, true);
            in_flight.note_lost(lost);
            (in_flight.take_most_lost(), in_flight.take_most_lost())
        };
        assert_eq!(most_lost(WINDOW, WINDOW - (20 << 10)), (true, false));
        assert_eq!(most_lost(WINDOW, WINDOW / 2), (false, false));
        in_flight.note_acked(WINDOW, true);
        assert_eq!(most_lost(40 << 10, 40 << 10), (false, false), "the rest arrived");
        assert_eq!(most_lost(40 << 10, 40 << 10), (true, false));
        in_flight.note_acked(30 << 10, true);
        assert_eq!(most_lost(30 << 10, 30 << 10), (false, false), "too little to tell");
    }

    #[test]
    fn handed_sent_and_lost_bytes_fill_the_window() {
        let in_flight = in_flight();
        let filled = fill(&in_flight);
        assert!(filled > USABLE - CELL && filled <= USABLE, "{filled}");
        assert_eq!(in_flight.note_sent(filled as u64), filled as u64);
        assert_eq!(fill(&in_flight), 0, "in flight");
        in_flight.note_lost(filled as u64 / 2);
        assert_eq!(fill(&in_flight), 0, "to be retransmitted");
        in_flight.note_sent(filled as u64 / 2);
        assert_eq!(fill(&in_flight), 0, "retransmitted");
        in_flight.note_acked(filled as u64 / 2, false);
        assert!(fill(&in_flight).abs_diff(filled / 2) < CELL);
    }

    /// A stream that is reset drops the bytes handed over, and the retransmissions due.
    #[test]
    fn dropped_bytes_use_no_window_once_all_is_sent() {
        let in_flight = in_flight();
        let filled = fill(&in_flight);
        in_flight.note_sent(filled as u64 / 2);
        in_flight.note_acked(filled as u64 / 4, false);
        assert!(fill(&in_flight) < filled / 2);
        in_flight.note_sent(filled as u64 / 4);
        in_flight.note_acked(filled as u64 / 4, true);
        assert!(fill(&in_flight) > filled / 2, "the rest was reset");
        in_flight.note_acked(0, true);
        assert!(fill(&in_flight) < filled / 2, "QUIC has not looked at bytes handed over since");
        in_flight.note_sent(filled as u64);
        in_flight.note_lost(filled as u64);
        in_flight.note_acked(0, true);
        assert_eq!(fill(&in_flight), 0, "nor at bytes lost since");
        in_flight.note_sent(40);
        in_flight.note_acked(40, true);
        assert_eq!(fill(&in_flight), filled, "an acknowledgement of ours left, and nothing else");
    }

    #[test]
    fn dropped_bytes_use_no_window_once_nothing_is_in_flight() {
        let in_flight = in_flight();
        let filled = fill(&in_flight);
        in_flight.note_sent(filled as u64 / 2);
        in_flight.note_lost(filled as u64 / 2);
        assert_eq!(space(&in_flight, USABLE, 0), None, "QUIC may yet send it");
        assert_eq!(space(&in_flight, USABLE, 1), Some(USABLE));
    }

    #[test]
    fn a_narrow_window_is_filled_in_pieces() {
        let in_flight = in_flight();
        for (window, usable, piece) in
            [(128 << 10, 124 << 10, 31 << 10), (64 << 10, 62 << 10, 16 << 10)]
        {
            in_flight.set_window(window, window);
            assert_eq!(space(&in_flight, USABLE, 0), Some(usable));
            in_flight.note_handed(usable as u64);
            in_flight.note_sent(usable as u64);
            in_flight.note_acked((usable - piece + 1) as u64, false);
            assert_eq!(space(&in_flight, USABLE, 0), None, "less than a piece");
            assert_eq!(space(&in_flight, 3000, 0), Some(3000), "a last one");
            in_flight.note_acked((usable - piece) as u64, false);
            assert_eq!(space(&in_flight, USABLE, 0), Some(piece));
            in_flight.note_acked(0, false);
        }
        in_flight.set_window(0, 0);
        assert_eq!(space(&in_flight, CELL, 0), Some(1), "the least window is a byte");
    }

    #[test]
    fn the_retransmission_window_follows_the_smoothed_rtt() {
        let (in_flight, ms) = (in_flight(), Span::from_ms);
        in_flight.set_window(WINDOW, 1_000_000);
        let windows = [40, 120, 900].map(|rtt| in_flight.retransmission_window(ms(rtt)));
        assert_eq!(windows, [40_000, 120_000, WINDOW], "and never more than the other window");
    }

    #[test]
    fn freed_window_space_wakes_the_sender() {
        for free in [
            |in_flight: &InFlight| in_flight.note_acked(0, false),
            |in_flight: &InFlight| in_flight.note_lost(WINDOW),
            |in_flight: &InFlight| in_flight.set_window(2 * WINDOW, WINDOW),
        ] {
            let in_flight = in_flight();
            in_flight.note_handed(WINDOW);
            in_flight.note_sent(WINDOW);
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut context = Context::from_waker(&waker);
            let mut waiting = std::pin::pin!(in_flight.wait_for_space(CELL));
            assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
            assert!(!woken.0.load(Ordering::Relaxed));
            free(&in_flight);
            assert!(woken.0.load(Ordering::Relaxed));
        }
    }

    /// Polls a wait again and again while a change is made; returns after how many it ended.
    fn changes_until_woken(
        mut wait: std::pin::Pin<&mut impl Future>,
        mut changes: impl Iterator<Item = ()>,
    ) -> Option<usize> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(wait.as_mut().poll(&mut context).is_pending());
        changes.position(|()| woken.0.load(Ordering::Relaxed))
    }

    #[test]
    fn acknowledgements_wake_the_sender_once_a_write_fits() {
        let in_flight = in_flight();
        in_flight.note_handed(WINDOW);
        in_flight.note_sent(WINDOW);
        let waiting = std::pin::pin!(in_flight.wait_for_space(USABLE));
        let mut left = WINDOW;
        let mut changes = std::iter::from_fn(|| {
            left -= 4096;
            in_flight.note_acked(left, false);
            Some(())
        });
        let acknowledged = changes_until_woken(waiting, &mut changes).expect("woken") + 1;
        // The headroom, and a quarter of the rest.
        let wanted = (USABLE / 4).min(WRITE_SPACE_BYTES_MAX as usize);
        assert_eq!(acknowledged, ((WINDOW as usize - USABLE) + wanted).div_ceil(4096));
    }

    #[test]
    fn a_path_that_was_left_ends_the_waits_for_it() {
        let in_flight = in_flight();
        in_flight.note_sent(WINDOW);
        let waiting = std::pin::pin!(in_flight.wait_for_space(CELL));
        let mut left = std::iter::repeat_with(|| in_flight.abandon_path());
        assert_eq!(changes_until_woken(waiting, &mut left), Some(0));
        assert_eq!(space(&in_flight, CELL, 0), None);
        let resting = std::pin::pin!(in_flight.wait_for_traffic());
        let mut left = std::iter::repeat_with(|| in_flight.abandon_path());
        assert_eq!(changes_until_woken(resting, &mut left), Some(0));
        in_flight.resume_path();
        in_flight.note_acked(0, true);
        assert_eq!(space(&in_flight, CELL, 0), Some(CELL));
    }

    #[test]
    fn the_monitor_hears_of_first_and_last_bytes_alone() {
        let in_flight = in_flight();
        let is_told = || {
            let mut waiting = std::pin::pin!(in_flight.wait_until_begun_or_ended());
            waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        let mut told = Vec::new();
        for sent in [100, 100] {
            in_flight.note_sent(sent);
            told.push(is_told());
        }
        for left in [100, 0, 0] {
            in_flight.note_acked(left, true);
            told.push(is_told());
        }
        assert_eq!(told, [true, false, false, true, false]);
        in_flight.note_sent(40);
        assert!(is_told());
        in_flight.forget_unacknowledged();
        assert!(!is_told(), "it forgets them itself");
        in_flight.note_sent(40);
        assert!(is_told());
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
