//! The token bucket of a pacer: `governor`'s bucket on the host's clock, with a loss debt beside it.
//!
//! Tokens are payload bytes. They are bought from the bucket in cells; a cell is the number of bytes
//! that the pacer releases at once. With `rate` in bytes per second and `queue` the time that the
//! link's queue is taken to hold:
//!
//! ```text
//! cell        = max(rate x min(CELL_SPAN_MAX, queue / CELL_QUEUE_DIVISOR) / lanes, CELL_BYTES_MIN)
//! late_cells  = ceil(rate x TIMER_DELAY_MAX / cell)
//! burst       = 1 + late_cells         cells that a full bucket holds
//! ```
//!
//! A late timer therefore loses no tokens, and a burst with one unused cell fits the link's queue.
//! A long link bears milliseconds of burst, for which senders, QUIC and the system work in few turns.
//! Retransmissions leave without tokens. They become debt, which the next tokens or idle time repay.

use crate::host::Host;
use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;
use units::{Span, TimeNs};

/// 2 ms at the pacer's rate, divided by the lanes: the pacer releases no more bytes than this in
/// one cell, so that bursts stay short. Each release costs processor time.
const CELL_SPAN_MAX: Span = Span::from_ms(2);
/// 8: the bytes that the pacer releases in one cell are at most an eighth of the link's queue,
/// divided by the lanes. On a queue of 2 ms, the least that is assumed, the cells of
/// [`TIMER_DELAY_MAX`], one due and one unused fill it.
/// Tested by `a_burst_fits_a_short_link_and_a_late_timer`.
const CELL_QUEUE_DIVISOR: u64 = 8;
/// 1.5 ms: how late the pacer's timers may be without loss of rate, since the bucket keeps the
/// cells of this time; later ones are lost. Tokio's timers have steps of 1 ms, and a woken task
/// waits for a core.
const TIMER_DELAY_MAX: Span = Span::from_ns(1_500_000);
/// 1,200 bytes: the pacer releases no fewer bytes in one cell, however low the rate. A packet of
/// 1,200 bytes fits every path of QUIC.
const CELL_BYTES_MIN: f64 = 1200.0;

/// The bucket of `governor`, whose unit is one cell.
type Bucket = RateLimiter<NotKeyed, InMemoryState, TokenBucketClock, NoOpMiddleware<Nanos>>;

/// The host's clock for `governor`, which would use the system's: simulations have their own time.
#[derive(Clone)]
struct TokenBucketClock(Arc<dyn Host>);

impl Clock for TokenBucketClock {
    type Instant = Nanos;
    /// Returns the host's time, which is virtual in simulations.
    fn now(&self) -> Nanos {
        Nanos::from(self.0.now().ns())
    }
}

/// A token bucket with debt.
pub(super) struct TokenBucket {
    cell_bytes: u64,
    bucket: Bucket,
    /// Bytes bought and not used yet.
    credit_bytes: u64,
    /// Bytes that left without tokens and are not repaid yet.
    debt_bytes: u64,
    /// One second of rate: the debt never exceeds it.
    debt_bytes_max: u64,
    bytes_per_second: f64,
    /// Time in which the bucket gains a cell.
    cell_time: Span,
    /// Time in which an empty bucket fills.
    fill_time: Span,
    /// When the pacer last had a waiter; later by the idle time that has repaid debt since.
    idle_since: TimeNs,
}

impl TokenBucket {
    /// Creates a full bucket that gains `bytes_per_second` tokens each second, for a link of
    /// `lanes` lanes whose queue holds `queue` of time at that rate.
    pub fn new(
        host: &Arc<dyn Host>,
        bytes_per_second: f64,
        queue: Span,
        lanes: NonZeroU16,
    ) -> Self {
        let shortest = Span::from_secs_f64(CELL_BYTES_MIN / bytes_per_second);
        let longest = CELL_SPAN_MAX.min(Span::from_ns(queue.ns() / CELL_QUEUE_DIVISOR));
        let span = Span::from_ns(longest.ns() / u64::from(lanes.get())).max(shortest);
        // Whole nanoseconds: an error of rounding would be a late cell too many.
        let late_cells = TIMER_DELAY_MAX.ns().div_ceil(span.ns().max(1));
        let cell_bytes = (bytes_per_second * span.as_secs_f64()).floor().max(CELL_BYTES_MIN);
        let period = Duration::from_secs_f64(cell_bytes / bytes_per_second);
        let burst = 1 + late_cells as u32;
        let cell_time = Span::from_ns(period.as_nanos() as u64);
        let fill_time = Span::from_ns(cell_time.ns() * u64::from(burst));
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(period).expect("a cell takes time").allow_burst(burst);
        let bucket = RateLimiter::direct_with_clock(quota, TokenBucketClock(Arc::clone(host)));
        Self {
            cell_bytes: cell_bytes as u64,
            bucket,
            credit_bytes: 0,
            debt_bytes: 0,
            debt_bytes_max: bytes_per_second as u64,
            bytes_per_second,
            cell_time,
            fill_time,
            idle_since: host.now(),
        }
    }

    /// Returns the bytes of a cell, the tokens that are bought at once.
    pub fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }

    /// Returns the time in which the bucket gains the tokens of one cell.
    pub fn cell_time(&self) -> Span {
        self.cell_time
    }

    /// Takes tokens for `bytes` bytes and for the debt, which is then repaid.
    ///
    /// # Errors
    /// The time until the next cell, if there are too few tokens. The bucket holds a few cells at
    /// most, so whoever waits for many has to come for each.
    pub fn try_take(&mut self, bytes: u64, now: TimeNs) -> Result<(), Span> {
        let needed = bytes + self.debt_bytes;
        self.buy_cells(needed, now)?;
        self.credit_bytes -= needed;
        self.debt_bytes = 0;
        Ok(())
    }

    /// Returns the time until there are tokens for `bytes` bytes and for the debt; zero if they are
    /// there. Call it for bytes that somebody waits for: it buys their cells.
    pub fn time_until(&mut self, bytes: u64, now: TimeNs) -> Span {
        let needed = bytes + self.debt_bytes;
        let Err(next_cell) = self.buy_cells(needed, now) else { return Span::ZERO };
        let later_cells = (needed - self.credit_bytes - 1) / self.cell_bytes;
        next_cell + Span::from_ns(self.cell_time.ns().saturating_mul(later_cells))
    }

    /// Buys cells until there is credit for `needed` bytes.
    ///
    /// # Errors
    /// The time until the next cell, if there are too few.
    fn buy_cells(&mut self, needed: u64, now: TimeNs) -> Result<(), Span> {
        // It takes more than one cell where the rate fell after the bytes were cut.
        while self.credit_bytes < needed {
            self.bucket.check().map_err(|not_yet| {
                let earliest = not_yet.earliest_possible();
                let wait = earliest.duration_since(Nanos::from(now.ns())).as_u64();
                // A cell that came due since `now` was read is there at the next look.
                Span::from_ns(wait.max(1))
            })?;
            self.credit_bytes += self.cell_bytes;
        }
        Ok(())
    }

    /// Adds `bytes` that left without tokens to the debt, up to one second of rate.
    pub fn add_debt(&mut self, bytes: u64) {
        self.debt_bytes = (self.debt_bytes + bytes).min(self.debt_bytes_max);
    }

    /// Repays debt with the tokens that overflowed the bucket while the pacer had no waiter, until
    /// `now`.
    pub fn repay_by_idling(&mut self, now: TimeNs) {
        // The bucket fills once; from then on it stays full until somebody takes.
        let full = self.idle_since + self.fill_time;
        let repaid = (now.since(full).as_secs_f64() * self.bytes_per_second) as u64;
        self.debt_bytes = self.debt_bytes.saturating_sub(repaid);
        let filling = TimeNs::from_ns(now.ns().saturating_sub(self.fill_time.ns()));
        self.idle_since = self.idle_since.max(filling);
    }

    /// Begins idle time at `now`, because a waiter has left the pacer.
    pub fn note_waiter_left(&mut self, now: TimeNs) {
        self.idle_since = now;
    }
}

#[cfg(test)]
impl TokenBucket {
    /// Returns the time in which an empty bucket becomes full.
    pub fn fill_time(&self) -> Span {
        self.fill_time
    }

    /// Takes all cells that the bucket releases at once, and returns how many they are.
    pub fn drain_cells(&self) -> u64 {
        std::iter::from_fn(|| self.bucket.check().ok()).count() as u64
    }
}
