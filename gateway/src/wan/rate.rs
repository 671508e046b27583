//! The link's rate limit: `governor`'s bucket on the host's clock.
//!
//! Lanes take payload bytes before they hand them to QUIC. Bytes are bought in cells of one
//! millisecond of rate, at most 64 KiB; the bucket holds two milliseconds, since timers wake
//! up to one millisecond late. The rate may change at any time: the bucket is replaced.

use crate::host::Host;
use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use hier_collectives::bound;
use hier_collectives::topology::Link;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use units::{BitRate, Span};

type Bucket = RateLimiter<NotKeyed, InMemoryState, HostClock, NoOpMiddleware<Nanos>>;

/// Shared by all lanes of a link.
pub struct LinkRate {
    host: Arc<dyn Host>,
    state: Mutex<State>,
    /// Lanes take in turn, or one that wakes up late each time would hold its segment back.
    turn: tokio::sync::Mutex<()>,
}

/// What one link's payload is held to: a rate in IP bytes, as links have it, that may change.
pub struct HeldRate {
    link: Link,
    mtu: u16,
    bits_per_second: AtomicU64,
    limit: LinkRate,
}

/// The part of the link's rate that first-sent payload is held to, after loss: the rest is for
/// acknowledgements and for what a queue needs in order not to grow.
const RATE_SHARE: f64 = 0.98;

impl HeldRate {
    /// The whole of `link`.
    pub fn new(host: Arc<dyn Host>, link: Link, mtu: u16) -> Self {
        let bits_per_second = link.rate.bits_per_second().into();
        let limit = LinkRate::new(host, payload_bytes_per_second(&link, link.rate, mtu));
        Self { link, mtu, bits_per_second, limit }
    }

    /// What the link is held to.
    pub fn held_to(&self) -> BitRate {
        BitRate::from_bits_per_second(self.bits_per_second.load(Ordering::Relaxed))
    }

    /// Holds the link to another rate, and never to more than its own.
    pub fn hold(&self, rate: BitRate) {
        let rate = rate.min(self.link.rate);
        let before = self.bits_per_second.swap(rate.bits_per_second(), Ordering::Relaxed);
        if before != rate.bits_per_second() {
            self.limit.set(payload_bytes_per_second(&self.link, rate, self.mtu));
        }
    }

    /// Where payload waits until it may leave.
    pub fn limit(&self) -> &LinkRate {
        &self.limit
    }
}

fn payload_bytes_per_second(link: &Link, rate: BitRate, mtu: u16) -> f64 {
    bound::payload_rate(rate, mtu) * (1.0 - link.loss.as_f64()) * RATE_SHARE
}

struct State {
    cell_bytes: u64,
    bucket: Bucket,
    /// Bytes bought and not used yet.
    credit_bytes: u64,
}

#[derive(Clone)]
struct HostClock(Arc<dyn Host>);

impl Clock for HostClock {
    type Instant = Nanos;
    fn now(&self) -> Nanos {
        Nanos::from(self.0.now().ns())
    }
}

impl LinkRate {
    /// A limit of `bytes_per_second` payload bytes.
    pub fn new(host: Arc<dyn Host>, bytes_per_second: f64) -> Self {
        let state = Mutex::new(State::new(&host, bytes_per_second));
        Self { host, state, turn: tokio::sync::Mutex::default() }
    }

    /// Another limit, from the next cell on; what waits for one of the old waits no longer
    /// than that.
    pub fn set(&self, bytes_per_second: f64) {
        *self.lock() = State::new(&self.host, bytes_per_second);
    }

    /// What one [`LinkRate::take`] asks for at best.
    pub fn cell_bytes(&self) -> u64 {
        self.lock().cell_bytes
    }

    /// Waits until `bytes` payload bytes may leave.
    pub async fn take(&self, bytes: u64) {
        let _turn = self.turn.lock().await;
        while let Err(wait) = self.try_take(bytes) {
            self.host.sleep_until(self.host.now() + wait).await;
        }
    }

    fn try_take(&self, bytes: u64) -> Result<(), Span> {
        let mut state = self.lock();
        // More than one where the rate fell since the bytes were cut.
        while state.credit_bytes < bytes {
            state.bucket.check().map_err(|not_yet| {
                let now = Nanos::from(self.host.now().ns());
                let earliest = not_yet.earliest_possible();
                Span::from_ns(earliest.duration_since(now).as_u64())
            })?;
            state.credit_bytes += state.cell_bytes;
        }
        state.credit_bytes -= bytes;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(host: &Arc<dyn Host>, bytes_per_second: f64) -> Self {
        let cell_bytes = (bytes_per_second / 1000.0).clamp(1.0, 65_536.0).floor();
        let period = Duration::from_secs_f64(cell_bytes / bytes_per_second);
        let burst = (0.002 / period.as_secs_f64()).ceil().clamp(2.0, 1e6);
        let burst = NonZeroU32::new(burst as u32).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(period).expect("a cell takes time").allow_burst(burst);
        let bucket = RateLimiter::direct_with_clock(quota, HostClock(Arc::clone(host)));
        Self { cell_bytes: cell_bytes as u64, bucket, credit_bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use units::TimeNs;

    async fn time_for(rate: f64, total: u64, piece: u64) -> f64 {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = LinkRate::new(Arc::clone(&host), rate);
        let begin: TimeNs = host.now();
        let mut left = total;
        while left > 0 {
            let bytes = left.min(piece).min(limit.cell_bytes());
            limit.take(bytes).await;
            left -= bytes;
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
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = LinkRate::new(Arc::clone(&host), 1e8);
        host.sleep_until(host.now() + Span::from_secs(5)).await;
        let begin = host.now();
        let mut sent = 0;
        while host.now() == begin {
            limit.take(1000).await;
            sent += 1000;
        }
        // Two milliseconds of rate, and one cell bought before.
        assert!(sent <= 310_000, "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_take_in_turn() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = Arc::new(LinkRate::new(Arc::clone(&host), 1.25e8));
        let taken = Arc::new(Mutex::new([0u32; 4]));
        for lane in 0..4 {
            let (limit, taken) = (Arc::clone(&limit), Arc::clone(&taken));
            host.spawn(Box::pin(async move {
                loop {
                    limit.take(limit.cell_bytes()).await;
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

    #[tokio::test(start_paused = true)]
    async fn a_rate_that_changes_holds_from_then_on() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = Arc::new(LinkRate::new(Arc::clone(&host), 1e8));
        let taken = Arc::new(Mutex::new(0u64));
        let (task_limit, task_taken) = (Arc::clone(&limit), Arc::clone(&taken));
        host.spawn(Box::pin(async move {
            loop {
                // Cut at the first rate, also when a cell has become smaller.
                task_limit.take(65_536).await;
                *task_taken.lock().expect("no panic") += 65_536;
            }
        }));
        for rate in [1e8, 1e7, 5e7, 1e8] {
            limit.set(rate);
            let before = *taken.lock().expect("no panic");
            host.sleep_until(host.now() + Span::from_secs(1)).await;
            let bytes = *taken.lock().expect("no panic") - before;
            assert!((bytes as f64 / rate - 1.0).abs() < 0.02, "{bytes} bytes in 1 s at {rate}");
        }
    }
}
