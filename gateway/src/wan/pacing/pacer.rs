//! The pacer of one pair of gateways: payload leaves no faster than the pair's share of the link.
//!
//! Sender tasks of all lanes take tokens before they hand payload bytes to QUIC. They are released in
//! the order of their segments (FIFO within a segment), each when the token bucket has enough. Nobody
//! is turned away: a waiter waits until it is first and the tokens are there. The rate may change at
//! any time; the bucket is then replaced, and the debt of the old one is forgiven.
//!
//! Each waiter sleeps, by the timer of its own thread, until the tokens for itself and all before it
//! are there. A waiter that leaves wakes the next one, which may be on another thread, only where
//! that timer would be late.
//!
//! Two locks protect the state: the wait queue, and below it the bucket. Both are held briefly and
//! never across an await.

use super::token_bucket::TokenBucket;
use crate::host::Host;
use crate::lock::lock_ignoring_poison;
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use units::Span;

/// 0: the place of small segments in the order in which the pacer releases payload. They precede
/// all segments of larger operations, whose places begin with 1.
pub const RELEASE_ORDER_FIRST: u64 = 0;
/// The place, `u64::MAX`, of a segment that no lane has pulled yet in the order in which the pacer
/// releases payload. All segments with a place of their own precede it.
pub const RELEASE_ORDER_LAST: u64 = u64::MAX;

/// A pacer, shared by all lanes to one peer.
pub struct Pacer {
    host: Arc<dyn Host>,
    bucket: Mutex<TokenBucket>,
    waiters: Mutex<TokenWaitQueue>,
}

/// The tasks that wait for tokens, by release order and then by arrival: a lane that wakes up late is
/// not overtaken.
#[derive(Default)]
struct TokenWaitQueue {
    waiting: BTreeMap<Ticket, WaitingTask>,
    arrivals: u64,
}

/// The release order of a segment, and the arrival number of the waiter.
type Ticket = (u64, u64);

/// A task in the wait queue.
struct WaitingTask {
    /// Bytes that it wants tokens for. It gets those of a cell at most.
    wanted_bytes: u64,
    /// Whether its tokens were there before its turn, so that it set no timer.
    is_due: bool,
    /// Wakes the task to look at its turn again.
    look_again: Arc<Notify>,
}

/// The turn of a waiter, as it stands.
enum Turn {
    /// Tokens for so many bytes are taken.
    Taken(u64),
    /// The waiter looks again after this time. If it is first, the next cell is due then, else the
    /// tokens for it and all before it.
    After(Span),
    /// The tokens are there, and a waiter before takes them first.
    Next,
}

/// One place in the wait queue, given up when dropped.
struct PacerWaiter<'p> {
    pacer: &'p Pacer,
    ticket: Ticket,
    look_again: Arc<Notify>,
    has_taken: bool,
}

impl Pacer {
    /// Creates a pacer of `bytes_per_second` payload bytes for `lanes` lanes. Its bursts fit a
    /// link's queue that holds `queue` of time.
    pub fn new(host: Arc<dyn Host>, bytes_per_second: f64, queue: Span, lanes: NonZeroU16) -> Self {
        let bucket = Mutex::new(TokenBucket::new(&host, bytes_per_second, queue, lanes));
        Self { host, bucket, waiters: Mutex::default() }
    }

    /// Changes the rate, in payload bytes per second, the queue that the link is taken to have, and the
    /// number of lanes that share the rate, from the next cell on. All waiters look at their turns again.
    pub fn set_rate(&self, bytes_per_second: f64, queue: Span, lanes: NonZeroU16) {
        let waiters = lock_ignoring_poison(&self.waiters);
        let bucket = TokenBucket::new(&self.host, bytes_per_second, queue, lanes);
        *lock_ignoring_poison(&self.bucket) = bucket;
        waiters.waiting.values().for_each(|task| task.look_again.notify_one());
    }

    /// Returns the bytes of a cell: the best amount for one [`Pacer::take_tokens`].
    pub fn cell_bytes(&self) -> u64 {
        lock_ignoring_poison(&self.bucket).cell_bytes()
    }

    /// Adds `bytes` that left without tokens, retransmissions or control messages, to the pacer's
    /// debt, which is at most one second of rate. The next waiter pays for them. Idle time before
    /// the call repays debt first.
    pub fn charge_debt(&self, bytes: u64) {
        let waiters = lock_ignoring_poison(&self.waiters);
        let mut bucket = lock_ignoring_poison(&self.bucket);
        if waiters.waiting.is_empty() {
            bucket.repay_by_idling(self.host.now());
        }
        bucket.add_debt(bytes);
    }

    /// Waits until tokens for some of `wanted_bytes` payload bytes are there, and takes them: for a
    /// cell of the present rate at most. Returns for how many bytes. Waiters are released by
    /// `order`, the place of their segment, then by arrival.
    pub async fn take_tokens(&self, wanted_bytes: u64, order: u64) -> u64 {
        let mut waiter = self.enqueue_waiter(wanted_bytes, order);
        loop {
            match waiter.try_turn() {
                Turn::Taken(bytes) => return bytes,
                Turn::After(wait) => tokio::select! {
                    biased;
                    () = waiter.look_again.notified() => {}
                    () = self.host.sleep_until(self.host.now() + wait) => {}
                },
                Turn::Next => waiter.look_again.notified().await,
            }
        }
    }

    /// Puts a waiter into the pacer's queue, behind those with the same or a lower release order.
    fn enqueue_waiter(&self, wanted_bytes: u64, order: u64) -> PacerWaiter<'_> {
        let mut waiters = lock_ignoring_poison(&self.waiters);
        if waiters.waiting.is_empty() {
            lock_ignoring_poison(&self.bucket).repay_by_idling(self.host.now());
        }
        waiters.arrivals += 1;
        let (ticket, look_again) = ((order, waiters.arrivals), Arc::new(Notify::new()));
        let task = WaitingTask { wanted_bytes, is_due: false, look_again: Arc::clone(&look_again) };
        waiters.waiting.insert(ticket, task);
        PacerWaiter { pacer: self, ticket, look_again, has_taken: false }
    }
}

impl PacerWaiter<'_> {
    /// Takes the tokens if it is this waiter's turn and they are there; returns how its turn
    /// stands.
    fn try_turn(&mut self) -> Turn {
        let mut waiters = lock_ignoring_poison(&self.pacer.waiters);
        let mut bucket = lock_ignoring_poison(&self.pacer.bucket);
        let now = self.pacer.host.now();
        let is_first =
            waiters.waiting.first_key_value().is_none_or(|(first, _)| *first == self.ticket);
        let cell = bucket.cell_bytes();
        let up_to_own = waiters.waiting.range(..=self.ticket);
        let up_to_own: u64 = up_to_own.map(|(_, task)| task.wanted_bytes.min(cell)).sum();
        if is_first {
            return match bucket.try_take(up_to_own, now) {
                Ok(()) => {
                    self.has_taken = true;
                    Turn::Taken(up_to_own)
                }
                Err(wait) => Turn::After(wait),
            };
        }
        let wait = bucket.time_until(up_to_own, now);
        let is_due = wait == Span::ZERO;
        if let Some(task) = waiters.waiting.get_mut(&self.ticket) {
            task.is_due = is_due;
        }
        if is_due { Turn::Next } else { Turn::After(wait) }
    }
}

impl Drop for PacerWaiter<'_> {
    /// Leaves the pacer's queue. Wakes the next waiter if its tokens are there, or if it has to come
    /// for several cells. Wakes all if this one took no tokens, which are there sooner then.
    fn drop(&mut self) {
        let mut waiters = lock_ignoring_poison(&self.pacer.waiters);
        waiters.waiting.remove(&self.ticket);
        let (mut bucket, now) = (lock_ignoring_poison(&self.pacer.bucket), self.pacer.host.now());
        bucket.note_waiter_left(now);
        if !self.has_taken {
            waiters.waiting.values().for_each(|task| task.look_again.notify_one());
        } else if let Some((_, next)) = waiters.waiting.first_key_value() {
            let cell = bucket.cell_bytes();
            let wait = bucket.time_until(next.wanted_bytes.min(cell), now);
            if next.is_due || wait == Span::ZERO || wait > bucket.cell_time() {
                next.look_again.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use units::TimeNs;

    /// The queue of a link of 80 ms.
    const QUEUE: Span = Span::from_ms(80);

    fn host() -> Arc<dyn Host> {
        Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1))
    }

    async fn time_for(rate: f64, total: u64, piece: u64) -> f64 {
        let host = host();
        let pacer = Pacer::new(Arc::clone(&host), rate, QUEUE, NonZeroU16::MIN);
        let begin: TimeNs = host.now();
        let mut left = total;
        while left > 0 {
            left -= pacer.take_tokens(left.min(piece), RELEASE_ORDER_FIRST).await;
        }
        host.now().since(begin).as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_for_any_piece_and_rate() {
        for rate in [1e6, 62.5e6, 125e6, 1.25e9] {
            for piece in [1000, 1460, 65_536] {
                let total = (rate * 0.5) as u64;
                let seconds = time_for(rate, total, piece).await;
                assert!((0.495..0.505).contains(&seconds), "{rate} {piece}: {seconds}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_bucket_holds_no_more_than_the_burst() {
        let host = host();
        let pacer = Pacer::new(Arc::clone(&host), 1e8, QUEUE, NonZeroU16::MIN);
        host.sleep_until(host.now() + Span::from_secs(5)).await;
        let begin = host.now();
        let mut sent = 0;
        while host.now() == begin {
            pacer.take_tokens(1000, RELEASE_ORDER_FIRST).await;
            sent += 1000;
        }
        // Two cells of 2 ms: the one that is due, and 1.5 ms of rate in whole ones. The last piece
        // was waited for.
        assert!(sent <= 2 * 200_000 + 1000, "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn debt_delays_the_next_waiter_by_one_second_at_most() {
        let host = host();
        let pacer = Pacer::new(Arc::clone(&host), 1e6, QUEUE, NonZeroU16::MIN);
        for (charged, seconds) in [(500_000, 0.5), (50_000_000, 1.0), (0, 0.0)] {
            pacer.charge_debt(charged);
            let begin = host.now();
            pacer.take_tokens(1000, RELEASE_ORDER_FIRST).await;
            let waited = host.now().since(begin).as_secs_f64();
            assert!((waited - seconds).abs() < 0.01, "{charged}: {waited} s");
        }
        // Idle time repays as well: half a second of debt, after a third of a second.
        pacer.charge_debt(500_000);
        host.sleep_until(host.now() + Span::from_ms(300)).await;
        pacer.charge_debt(100_000);
        let begin = host.now();
        pacer.take_tokens(1000, RELEASE_ORDER_FIRST).await;
        let waited = host.now().since(begin).as_secs_f64();
        assert!((waited - 0.3).abs() < 0.01, "{waited} s");
        // It does so where a little is charged all the time, as for control messages.
        pacer.charge_debt(500_000);
        for _ in 0..300 {
            host.sleep_until(host.now() + Span::from_ms(1)).await;
            pacer.charge_debt(1);
        }
        let begin = host.now();
        pacer.take_tokens(1000, RELEASE_ORDER_FIRST).await;
        let waited = host.now().since(begin).as_secs_f64();
        assert!((waited - 0.2).abs() < 0.01, "{waited} s");
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_fill_the_bucket_repay_no_debt() {
        let host = host();
        for rate in [1e5, 1e6, 1.25e7, 1.25e8] {
            let pacer = Pacer::new(Arc::clone(&host), rate, QUEUE, NonZeroU16::MIN);
            let fill_time = lock_ignoring_poison(&pacer.bucket).fill_time();
            let charged = (rate * fill_time.as_secs_f64() * 1.25) as u64;
            let (begin, mut left) = (host.now(), 0);
            for _ in 0..100 {
                pacer.charge_debt(charged);
                host.sleep_until(host.now() + fill_time).await;
                pacer.take_tokens(100, RELEASE_ORDER_FIRST).await;
                left += charged + 100;
            }
            // Beside it, the bucket was full at the beginning.
            let most = rate * (host.now().since(begin) + fill_time).as_secs_f64();
            assert!(left as f64 <= most * 1.02, "{rate}: {left} bytes, {most}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_take_in_turn() {
        let host = host();
        let pacer = Arc::new(Pacer::new(Arc::clone(&host), 1.25e8, QUEUE, NonZeroU16::MIN));
        let taken = Arc::new(Mutex::new([0u32; 4]));
        for lane in 0..4 {
            let (pacer, taken) = (Arc::clone(&pacer), Arc::clone(&taken));
            host.spawn(Box::pin(async move {
                loop {
                    pacer.take_tokens(pacer.cell_bytes(), RELEASE_ORDER_FIRST).await;
                    taken.lock().expect("no panic")[lane] += 1;
                }
            }));
        }
        host.sleep_until(host.now() + Span::from_ms(500)).await;
        let taken = *taken.lock().expect("no panic");
        let fair = taken.iter().sum::<u32>() / 4;
        // The first lane takes the burst before the others are there.
        assert!(taken.iter().all(|cells| cells.abs_diff(fair) <= 5), "{taken:?}");
    }

    /// Each lane on a thread of its own would be woken so often.
    #[tokio::test(start_paused = true)]
    async fn a_lane_is_woken_about_once_a_cell() {
        let host = host();
        let pacer = Arc::new(Pacer::new(Arc::clone(&host), 1.25e7, QUEUE, NonZeroU16::MIN));
        let counted = Arc::new(Mutex::new((0_u32, 0_u32)));
        for _ in 0..4 {
            let (pacer, counted) = (Arc::clone(&pacer), Arc::clone(&counted));
            host.spawn(Box::pin(async move {
                loop {
                    let mut taking =
                        std::pin::pin!(pacer.take_tokens(pacer.cell_bytes(), RELEASE_ORDER_FIRST));
                    let polled = std::future::poll_fn(|context| {
                        counted.lock().expect("no panic").0 += 1;
                        taking.as_mut().poll(context)
                    });
                    polled.await;
                    counted.lock().expect("no panic").1 += 1;
                }
            }));
        }
        host.sleep_until(host.now() + Span::from_secs(1)).await;
        let (polls, cells) = *counted.lock().expect("no panic");
        // Each begins with a poll.
        let woken = polls - cells;
        assert!(cells > 100 && woken <= cells + cells / 4, "{woken} times for {cells} cells");
    }

    /// Those behind tasks that give up do not sleep until the tokens of all.
    #[tokio::test(start_paused = true)]
    async fn waiters_that_give_up_delay_nobody() {
        let host = host();
        let pacer = Pacer::new(Arc::clone(&host), 1e6, QUEUE, NonZeroU16::MIN);
        pacer.charge_debt(100_000);
        let begin = host.now();
        // A tenth of a second of debt, and as much of cells.
        let cell = pacer.cell_bytes();
        let mut before: Vec<_> =
            (0..100_000 / cell).map(|_| Box::pin(pacer.take_tokens(cell, 1))).collect();
        let mut last = std::pin::pin!(pacer.take_tokens(100, 2));
        std::future::poll_fn(|context| {
            let waiting = before.iter_mut().all(|task| task.as_mut().poll(context).is_pending());
            assert!(waiting && last.as_mut().poll(context).is_pending(), "the debt comes first");
            std::task::Poll::Ready(())
        })
        .await;
        // The first comes for each cell, so that none is lost.
        tokio::select! {
            biased;
            _ = before[0].as_mut() => unreachable!("the debt comes first"),
            () = host.sleep_until(begin + Span::from_ms(20)) => {}
        }
        drop(before);
        last.await;
        let took = host.now().since(begin);
        assert!(took < Span::from_ms(105), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_that_changes_holds_from_then_on() {
        let host = host();
        let pacer = Arc::new(Pacer::new(Arc::clone(&host), 1e8, QUEUE, NonZeroU16::MIN));
        let taken = Arc::new(Mutex::new(0u64));
        let (task_pacer, task_taken) = (Arc::clone(&pacer), Arc::clone(&taken));
        host.spawn(Box::pin(async move {
            loop {
                // A cell of the rate at the time, also when cells have become smaller.
                let bytes = task_pacer.take_tokens(65_536, RELEASE_ORDER_FIRST).await;
                *task_taken.lock().expect("no panic") += bytes;
            }
        }));
        for rate in [1e8, 1e7, 5e7, 1e8] {
            pacer.set_rate(rate, QUEUE, NonZeroU16::MIN);
            let before = *taken.lock().expect("no panic");
            host.sleep_until(host.now() + Span::from_secs(1)).await;
            let bytes = *taken.lock().expect("no panic") - before;
            assert!((bytes as f64 / rate - 1.0).abs() < 0.02, "{bytes} bytes in 1 s at {rate}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_segment_pulled_first_is_complete_first() {
        let host = host();
        let pacer = Arc::new(Pacer::new(Arc::clone(&host), 1.25e8, QUEUE, NonZeroU16::MIN));
        let ends = Arc::new(Mutex::new(BTreeMap::new()));
        let begin = host.now();
        for order in [3, 1, 2] {
            let (pacer, ends, host) = (Arc::clone(&pacer), Arc::clone(&ends), Arc::clone(&host));
            host.clone().spawn(Box::pin(async move {
                for _ in 0..160 {
                    pacer.take_tokens(62_500, order).await;
                }
                ends.lock().expect("no panic").insert(order, host.now());
            }));
        }
        host.sleep_until(begin + Span::from_ms(500)).await;
        let ends = ends.lock().expect("no panic").clone();
        for (order, end) in ends {
            let (took, due) = (end.since(begin).as_secs_f64(), 0.080 * order as f64);
            assert!((took - due).abs() < 0.005, "{order}: {took} s, {due} s due");
        }
    }
}
