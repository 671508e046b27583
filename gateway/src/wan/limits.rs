//! What one lane has under way, and how much it may.
//!
//! QUIC gives no acknowledgement while it has something to send and no room for it: two lanes whose
//! windows are both full would wait for each other until a probe timeout. So what has no room is
//! not handed to it.

use super::windows::Windows;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// The part of a window that is not filled, for headers and control.
const HEADROOM_DIVISOR: u64 = 32;
/// A full window is refilled in so many pieces at most.
const PIECES: u64 = 4;

/// Shared by the tasks of a lane and its congestion controller. Packets are counted by the
/// connection alone, so that nobody has to be kept from it for each of them.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Bytes that may be in flight,
    flight: AtomicU64,
    /// and while much is sent again.
    repair: AtomicU64,
    /// Bytes in flight.
    in_flight: AtomicU64,
    /// Bytes lost and not sent again yet.
    lost: AtomicU64,
    /// Bytes handed to QUIC and not sent yet.
    handed: AtomicU64,
    freed: Notify,
    /// Whether a mark of congestion came.
    marked: AtomicBool,
    /// Bytes lost beyond expectation that nobody has been charged for.
    owed: AtomicU64,
    owes: Notify,
}

impl Limits {
    /// Follows the lane's windows; see [`super::windows`].
    pub fn set(&self, windows: &Windows) {
        self.allow(windows.flight, windows.repair);
    }

    /// The connection has gone over to another path, with limits of its own.
    pub fn retire(&self) {
        self.allow(u64::MAX, u64::MAX);
    }

    /// So many bytes may be in flight, and so many while much is sent again.
    pub fn allow(&self, flight: u64, repair: u64) {
        self.flight.store(flight, Ordering::Relaxed);
        self.repair.store(repair, Ordering::Relaxed);
        self.freed.notify_one();
    }

    pub fn flight(&self) -> u64 {
        self.flight.load(Ordering::Relaxed)
    }

    pub fn repair(&self) -> u64 {
        self.repair.load(Ordering::Relaxed)
    }

    /// Waits until some of `bytes` bytes have room, and says how many: they count as handed to
    /// QUIC. For one task at a time.
    pub async fn room(&self, bytes: usize) -> usize {
        loop {
            let flight = self.flight() / HEADROOM_DIVISOR * (HEADROOM_DIVISOR - 1);
            let used = self.in_flight() + self.lost() + self.handed.load(Ordering::Relaxed);
            let free = usize::try_from(flight.saturating_sub(used)).unwrap_or(usize::MAX);
            let piece = usize::try_from(flight / PIECES).unwrap_or(usize::MAX).max(1);
            if free >= bytes.min(piece) {
                let room = free.min(bytes);
                self.hand(room as u64);
                return room;
            }
            if self.in_flight() > 0 {
                self.freed.notified().await;
                continue;
            }
            // QUIC's turn: it sends what it has. What it does not was dropped with its stream.
            tokio::task::yield_now().await;
            if self.in_flight() == 0 {
                self.handed.store(0, Ordering::Relaxed);
                self.lost.store(0, Ordering::Relaxed);
            }
        }
    }

    /// So many bytes are handed to QUIC, whether or not they have room.
    pub fn hand(&self, bytes: u64) {
        self.handed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A packet was sent. What was lost goes before what is new. Returns what is in flight.
    pub fn sent(&self, bytes: u64) -> u64 {
        let lost = self.lost();
        let again = bytes.min(lost);
        self.lost.store(lost - again, Ordering::Relaxed);
        let handed = self.handed.load(Ordering::Relaxed);
        self.handed.store(handed.saturating_sub(bytes - again), Ordering::Relaxed);
        let in_flight = self.in_flight() + bytes;
        self.in_flight.store(in_flight, Ordering::Relaxed);
        in_flight
    }

    /// After an acknowledgement so many bytes are in flight.
    pub fn acknowledged(&self, in_flight: u64) {
        self.in_flight.store(in_flight, Ordering::Relaxed);
        self.freed.notify_one();
    }

    /// So many bytes were lost.
    pub fn lose(&self, bytes: u64) {
        self.in_flight.store(self.in_flight().saturating_sub(bytes), Ordering::Relaxed);
        self.lost.store(self.lost() + bytes, Ordering::Relaxed);
        self.freed.notify_one();
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A mark of congestion came.
    pub fn mark(&self) {
        self.marked.store(true, Ordering::Relaxed);
    }

    /// Whether one came since it was last asked.
    pub fn take_marked(&self) -> bool {
        self.marked.swap(false, Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const FLIGHT: u64 = 320 << 10;
    /// Of it without headroom.
    const FILLED: usize = 310 << 10;
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
        std::iter::from_fn(|| room(limits, CELL, 0)).sum()
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
        limits.acknowledged(filled as u64 / 2);
        assert!(fill(&limits).abs_diff(filled / 2) < CELL);
    }

    /// A stream that is reset takes with it what was handed over, and what was to be sent again.
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
    fn a_narrow_window_is_filled_in_pieces_and_one_of_nothing_not_at_all() {
        let limits = limits();
        limits.allow(16 << 10, 16 << 10);
        assert_eq!(room(&limits, CELL, 2), Some(15_872));
        limits.sent(15_872);
        limits.acknowledged(12_500);
        assert_eq!(room(&limits, CELL, 2), None, "less than a piece");
        assert_eq!(room(&limits, 3000, 0), Some(3000), "a last one");
        limits.allow(0, 0);
        limits.acknowledged(0);
        assert_eq!(room(&limits, CELL, 2), None);
    }

    #[test]
    fn who_waits_for_room_of_a_path_that_is_left_goes_on() {
        let limits = limits();
        fill(&limits);
        let mut waiting = std::pin::pin!(limits.room(CELL));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        limits.retire();
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(CELL));
    }
}
