//! What one lane has under way, and how much it may.
//!
//! QUIC gives no acknowledgement while it has something to send and no room for it: two lanes whose
//! windows are both full would wait for each other until a probe timeout. So bulk that has no room
//! is not handed to it. What is sent again, small segments, and windows of CUBIC and NewReno, which
//! grow only while they are full, still are in its hands alone.

use crate::wan::congestion::tuner::Windows;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// The part of a window that is not filled, for control and for headers of what is handed over.
const HEADROOM_DIVISOR: u64 = 32;
/// Who waits for room waits for this part of the window,
const PIECES: u64 = 4;
/// but for no less than this, unless the window is.
const PIECE_MIN: u64 = 16 << 10;
/// Of less than this nobody can tell whether a queue dropped it or a cut of the path.
const CUT_MIN: u64 = 32 << 10;

/// Shared by the tasks of a lane and its congestion controller. Packets are counted by the
/// connection alone, so that nobody has to be kept from it for each of them.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Bytes that may be in flight,
    flight: AtomicU64,
    /// and while much is sent again.
    repair: AtomicU64,
    /// Bytes in flight,
    in_flight: AtomicU64,
    /// and before the last acknowledgement.
    in_flight_before: AtomicU64,
    /// Bytes lost and not sent again yet.
    lost: Unsent,
    /// Bytes handed to QUIC and not sent yet.
    handed: Unsent,
    freed: Notify,
    /// Whether a mark of congestion came.
    marked: AtomicBool,
    /// Whether most of a flight was lost at once.
    most_lost: AtomicBool,
    /// Bytes lost beyond expectation that nobody has been charged for.
    owed: AtomicU64,
    owes: Notify,
}

/// Bytes that QUIC is to send, as far as is known: it does not say what was reset with its stream.
#[derive(Debug, Default)]
struct Unsent {
    bytes: AtomicU64,
    /// Of these, added since a packet was last sent.
    since: AtomicU64,
}

impl Limits {
    /// Follows the lane's windows;.
    pub fn set(&self, windows: &Windows) {
        self.allow(windows.flight, windows.repair);
    }

    /// So many bytes may be in flight, one at least, and so many while much is sent again.
    pub fn allow(&self, flight: u64, repair: u64) {
        self.flight.store(flight.max(1), Ordering::Relaxed);
        self.repair.store(repair, Ordering::Relaxed);
        self.freed.notify_one();
    }

    pub fn flight(&self) -> u64 {
        self.flight.load(Ordering::Relaxed)
    }

    pub fn repair(&self) -> u64 {
        self.repair.load(Ordering::Relaxed)
    }

    /// Waits until some of `bytes` bytes have room, and says how many. For one task at a time.
    pub async fn room(&self, bytes: usize) -> usize {
        loop {
            if let Some(room) = self.room_now(bytes) {
                return room;
            }
            if self.in_flight() > 0 {
                self.freed.notified().await;
                continue;
            }
            // QUIC's turn: it sends what it has.
            tokio::task::yield_now().await;
            if self.in_flight() == 0 {
                // The rest was reset with its stream.
                self.handed.clear();
                self.lost.clear();
            }
        }
    }

    /// How many of `bytes` bytes have room, if enough do to be worth a write.
    pub fn room_now(&self, bytes: usize) -> Option<usize> {
        let used = self.in_flight() + self.lost.bytes() + self.handed.bytes();
        let free = self.filled().saturating_sub(used);
        let room = usize::try_from(free).unwrap_or(usize::MAX).min(bytes);
        (free >= self.piece().min(bytes as u64)).then_some(room)
    }

    /// What is filled of the window.
    fn filled(&self) -> u64 {
        let flight = self.flight();
        flight - flight / HEADROOM_DIVISOR
    }

    /// The least that is waited for.
    fn piece(&self) -> u64 {
        (self.filled() / PIECES).max(PIECE_MIN).min(self.filled())
    }

    /// So many bytes were handed to QUIC, whether or not they had room.
    pub fn hand(&self, bytes: u64) {
        self.handed.add(bytes);
    }

    /// A packet was sent: of what was lost, as far as is known. Returns what is in flight.
    pub fn sent(&self, bytes: u64) -> u64 {
        let again = self.lost.sent(bytes);
        self.handed.sent(bytes - again);
        let in_flight = self.in_flight() + bytes;
        self.in_flight.store(in_flight, Ordering::Relaxed);
        in_flight
    }

    /// After an acknowledgement so many bytes are in flight. `all_sent`: QUIC had no more to send
    /// when it was last asked for packets, or may not yet, to an address that it has not validated.
    pub fn acknowledged(&self, in_flight: u64, all_sent: bool) {
        let before = self.in_flight.swap(in_flight, Ordering::Relaxed);
        self.in_flight_before.store(before, Ordering::Relaxed);
        if all_sent {
            self.handed.forget_older();
            self.lost.forget_older();
        }
        self.freed.notify_one();
    }

    /// So many bytes were lost, as was seen at once. A queue that is full drops some of what comes;
    /// a path that is cut loses all, until it is back.
    pub fn lose(&self, bytes: u64) {
        let in_flight = self.in_flight();
        let whole = in_flight.max(self.in_flight_before.load(Ordering::Relaxed));
        if bytes > CUT_MIN && 2 * bytes > whole {
            self.most_lost.store(true, Ordering::Relaxed);
        }
        self.in_flight.store(in_flight.saturating_sub(bytes), Ordering::Relaxed);
        self.lost.add(bytes);
        self.freed.notify_one();
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn lost(&self) -> u64 {
        self.lost.bytes()
    }

    /// A mark of congestion came.
    pub fn mark(&self) {
        self.marked.store(true, Ordering::Relaxed);
    }

    /// Whether one came since it was last asked.
    pub fn take_marked(&self) -> bool {
        self.marked.swap(false, Ordering::Relaxed)
    }

    /// Whether most of a flight was since it was last asked.
    pub fn take_most_lost(&self) -> bool {
        self.most_lost.swap(false, Ordering::Relaxed)
    }

    /// So many bytes were lost beyond what the fabric expects.
    pub fn owe(&self, bytes: u64) {
        self.owed.fetch_add(bytes, Ordering::Relaxed);
        self.owes.notify_one();
    }

    /// Waits until some were, and says how many have been since it last did.
    pub async fn owed(&self) -> u64 {
        self.owes.notified().await;
        self.owed.swap(0, Ordering::Relaxed)
    }
}

/// All tasks of a lane run on one thread, so nothing comes between a load and its store.
impl Unsent {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.since.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes off what was sent of so many bytes; returns how many these were.
    fn sent(&self, bytes: u64) -> u64 {
        self.since.store(0, Ordering::Relaxed);
        let before = self.bytes();
        let sent = bytes.min(before);
        self.bytes.store(before - sent, Ordering::Relaxed);
        sent
    }

    fn forget_older(&self) {
        self.bytes.store(self.since.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn clear(&self) {
        self.since.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    const FLIGHT: u64 = 384 << 10;
    /// Of it without headroom.
    const FILLED: usize = 372 << 10;
    const CELL: usize = 64 << 10;

    fn limits() -> Limits {
        let limits = Limits::default();
        limits.allow(FLIGHT, FLIGHT);
        limits
    }

    /// How many of so many bytes have room now, or after QUIC has had so many turns.
    fn room(limits: &Limits, bytes: usize, turns: usize) -> Option<usize> {
        let mut room = std::pin::pin!(limits.room(bytes));
        let mut context = Context::from_waker(Waker::noop());
        (0..=turns).find_map(|_| match room.as_mut().poll(&mut context) {
            Poll::Ready(room) => Some(room),
            Poll::Pending => None,
        })
    }

    /// Hands over cells until there is no room, and returns how many bytes that were.
    fn fill(limits: &Limits) -> usize {
        let cells = std::iter::from_fn(|| {
            room(limits, CELL, 0).inspect(|bytes| limits.hand(*bytes as u64))
        });
        cells.sum()
    }

    #[test]
    fn most_of_a_flight_that_is_lost_at_once_is_told_from_what_a_queue_drops() {
        let limits = limits();
        let most_lost = |in_flight: u64, lost: u64| {
            limits.acknowledged(in_flight, true);
            limits.lose(lost);
            (limits.take_most_lost(), limits.take_most_lost())
        };
        assert_eq!(most_lost(FLIGHT, FLIGHT - (20 << 10)), (true, false));
        assert_eq!(most_lost(FLIGHT, FLIGHT / 2), (false, false));
        limits.acknowledged(FLIGHT, true);
        assert_eq!(most_lost(40 << 10, 40 << 10), (false, false), "the rest came");
        assert_eq!(most_lost(40 << 10, 40 << 10), (true, false));
        limits.acknowledged(30 << 10, true);
        assert_eq!(most_lost(30 << 10, 30 << 10), (false, false), "too little to tell");
    }

    #[test]
    fn what_is_handed_over_sent_or_lost_fills_the_window_and_what_is_acknowledged_frees_it() {
        let limits = limits();
        let filled = fill(&limits);
        assert!(filled > FILLED - CELL && filled <= FILLED, "{filled}");
        assert_eq!(limits.sent(filled as u64), filled as u64);
        assert_eq!(fill(&limits), 0, "in flight");
        limits.lose(filled as u64 / 2);
        assert_eq!(fill(&limits), 0, "to be sent again");
        limits.sent(filled as u64 / 2);
        assert_eq!(fill(&limits), 0, "sent again");
        limits.acknowledged(filled as u64 / 2, false);
        assert!(fill(&limits).abs_diff(filled / 2) < CELL);
    }

    /// A stream that is reset takes with it what was handed over, and what was to be sent again.
    #[test]
    fn what_is_dropped_keeps_no_room_once_all_is_sent() {
        let limits = limits();
        let filled = fill(&limits);
        limits.sent(filled as u64 / 2);
        limits.acknowledged(filled as u64 / 4, false);
        assert!(fill(&limits) < filled / 2);
        limits.sent(filled as u64 / 4);
        limits.acknowledged(filled as u64 / 4, true);
        assert!(fill(&limits) > filled / 2, "the rest was reset");
        limits.acknowledged(0, true);
        assert!(fill(&limits) < filled / 2, "of what was handed over since, QUIC was not asked");
        limits.sent(filled as u64);
        limits.lose(filled as u64);
        limits.acknowledged(0, true);
        assert_eq!(fill(&limits), 0, "nor of what was lost");
        limits.sent(40);
        limits.acknowledged(40, true);
        assert_eq!(fill(&limits), filled, "an acknowledgement of ours left, and nothing else");
    }

    #[test]
    fn what_is_dropped_keeps_no_room_once_nothing_is_in_flight() {
        let limits = limits();
        let filled = fill(&limits);
        limits.sent(filled as u64 / 2);
        limits.lose(filled as u64 / 2);
        assert_eq!(room(&limits, FILLED, 0), None, "QUIC may yet send it");
        assert_eq!(room(&limits, FILLED, 1), Some(FILLED));
    }

    #[test]
    fn a_narrow_window_is_filled_in_pieces() {
        let limits = limits();
        for (flight, filled, piece) in
            [(128 << 10, 124 << 10, 31 << 10), (64 << 10, 62 << 10, 16 << 10)]
        {
            limits.allow(flight, flight);
            assert_eq!(room(&limits, FILLED, 0), Some(filled));
            limits.hand(filled as u64);
            limits.sent(filled as u64);
            limits.acknowledged((filled - piece + 1) as u64, false);
            assert_eq!(room(&limits, FILLED, 0), None, "less than a piece");
            assert_eq!(room(&limits, 3000, 0), Some(3000), "a last one");
            limits.acknowledged((filled - piece) as u64, false);
            assert_eq!(room(&limits, FILLED, 0), Some(piece));
            limits.acknowledged(0, false);
        }
        limits.allow(0, 0);
        assert_eq!(room(&limits, CELL, 0), Some(1), "the least window is a byte");
    }

    #[test]
    fn whatever_frees_room_wakes_who_waits_for_it() {
        for free in [
            |limits: &Limits| limits.acknowledged(0, false),
            |limits: &Limits| limits.lose(FLIGHT),
            |limits: &Limits| limits.allow(2 * FLIGHT, FLIGHT),
        ] {
            let limits = limits();
            limits.hand(FLIGHT);
            limits.sent(FLIGHT);
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut context = Context::from_waker(&waker);
            let mut waiting = std::pin::pin!(limits.room(CELL));
            assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
            assert!(!woken.0.load(Ordering::Relaxed));
            free(&limits);
            assert!(woken.0.load(Ordering::Relaxed));
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
