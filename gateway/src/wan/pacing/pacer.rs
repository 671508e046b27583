//! The link's rate limit: `governor`'s bucket on the host's clock.
//!
//! Lanes take payload bytes before they hand them to QUIC. Bytes are bought in cells of two
//! milliseconds of rate, at most 64 KiB or what leaves in 0.2 ms, and at least about a packet, since
//! each may end in a short one. The bucket holds a cell and as many as leave while a timer is late;
//! they and a cell that was bought and not used yet are what may leave at once. On a short link, whose
//! queue may hold no more than a round trip, cells are so small that this fits. The rate may change at
//! any time: the bucket is replaced, and what was owed is forgiven.

use crate::host::Host;
use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use hier_collectives::plan::{self, PairShare};
use hier_collectives::topology::Link;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use units::{BitRate, Span, TimeNs};

type Bucket = RateLimiter<NotKeyed, InMemoryState, HostClock, NoOpMiddleware<Nanos>>;

/// Shared by all lanes of a link.
pub struct LinkRate {
    host: Arc<dyn Host>,
    /// What its queue is taken to hold, in time at the rate.
    queue: Span,
    state: Mutex<State>,
    line: Mutex<Line>,
}

/// What the payload to one peer is held to: the pair's part of a link whose rate, in IP bytes as
/// links have it, may change.
pub struct HeldRate {
    link: Link,
    mtu: u16,
    /// The pair's part, and what the link is held to.
    part: Mutex<(PairShare, BitRate)>,
    limit: LinkRate,
}

impl HeldRate {
    /// The pair's part of the whole of `link`.
    pub fn new(host: Arc<dyn Host>, pair: PairShare, link: Link, mtu: u16) -> Self {
        let rate = payload_bytes_per_second(&pair, &link, link.rate, mtu);
        let limit = LinkRate::new(host, rate, queue(&link));
        let part = Mutex::new((pair, link.rate));
        Self { link, mtu, part, limit }
    }

    /// What the link is held to, all its pairs together.
    pub fn held_to(&self) -> BitRate {
        self.part().1
    }

    /// The pair's part of it.
    pub fn pair(&self) -> PairShare {
        self.part().0
    }

    /// Holds the link to another rate, and never to more than its own; the pair gets its part.
    pub fn hold(&self, rate: BitRate) {
        let pair = self.pair();
        self.set(pair, rate.min(self.link.rate));
    }

    /// Gives the pair another part of what the link is held to.
    pub fn divide(&self, pair: PairShare) {
        let rate = self.held_to();
        self.set(pair, rate);
    }

    fn set(&self, pair: PairShare, rate: BitRate) {
        let mut part = self.part();
        if *part != (pair, rate) {
            *part = (pair, rate);
            self.limit.set(payload_bytes_per_second(&pair, &self.link, rate, self.mtu));
        }
    }

    fn part(&self) -> MutexGuard<'_, (PairShare, BitRate)> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where payload waits until it may leave.
    pub fn limit(&self) -> &LinkRate {
        &self.limit
    }
}

/// What a link's queue is taken to hold, in time at the rate.
fn queue(link: &Link) -> Span {
    link.rtt.max(QUEUE_MIN)
}

fn payload_bytes_per_second(pair: &PairShare, link: &Link, held_to: BitRate, mtu: u16) -> f64 {
    plan::payload_limit(pair.rate_over(held_to), link.loss.as_f64(), mtu)
}

struct State {
    cell_bytes: u64,
    bucket: Bucket,
    /// Bytes bought and not used yet.
    credit_bytes: u64,
    /// Bytes that have left without being bought: idle time pays for them, or the next to come.
    owed_bytes: u64,
    owed_bytes_max: u64,
    bytes_per_second: f64,
    /// In which an empty bucket fills.
    fills_in: Span,
    /// When somebody last waited here, or owed.
    seen: TimeNs,
}

/// Those who wait, by the order of their segments and then of their coming: so a lane that wakes
/// up late is not passed over.
#[derive(Default)]
struct Line {
    waiting: BTreeMap<Place, Arc<Notify>>,
    came: u64,
}

type Place = (u64, u64);

/// A place in the line, given up when dropped.
struct Standing<'r> {
    rate: &'r LinkRate,
    place: Place,
    moved_up: Arc<Notify>,
}

/// A cell is no larger than what leaves in this time,
const CELL_SPAN_MAX: Span = Span::from_ms(2);
/// and so small that two fit a link's queue beside what leaves while a timer is this late: tokio's have
/// steps of one millisecond, and whoever wakes up waits for a core.
const LATE: Span = Span::from_ns(1_500_000);
/// A queue that holds less than this is not spared.
const QUEUE_MIN: Span = Span::from_ms(2);
/// A cell is no larger than this either, or than what leaves in so much time: each is some work,
const CELL_BYTES_MAX: f64 = 65_536.0;
const CELL_SPAN_FAST: Span = Span::from_ns(200_000);
/// and no smaller than what fits a packet on every path.
const CELL_BYTES_MIN: f64 = 1200.0;
/// Goes before everything.
pub const FIRST: u64 = 0;
/// Goes after everything.
pub const LAST: u64 = u64::MAX;

#[derive(Clone)]
struct HostClock(Arc<dyn Host>);

impl Clock for HostClock {
    type Instant = Nanos;
    fn now(&self) -> Nanos {
        Nanos::from(self.0.now().ns())
    }
}

impl LinkRate {
    /// A limit of `bytes_per_second` payload bytes, of which no more leave at once than in `queue`.
    pub fn new(host: Arc<dyn Host>, bytes_per_second: f64, queue: Span) -> Self {
        let state = Mutex::new(State::new(&host, bytes_per_second, queue));
        Self { host, queue, state, line: Mutex::default() }
    }

    /// Another limit, from the next cell on; what waits for one of the old waits no longer
    /// than that.
    pub fn set(&self, bytes_per_second: f64) {
        *self.lock() = State::new(&self.host, bytes_per_second, self.queue);
    }

    /// What one [`LinkRate::take`] asks for at best.
    pub fn cell_bytes(&self) -> u64 {
        self.lock().cell_bytes
    }

    /// So many bytes have left that nobody took: sent again by QUIC. Whoever comes next waits for
    /// them as well, for a second at most, less the time in which nobody came.
    pub fn charge(&self, bytes: u64) {
        let line = self.line();
        let mut state = self.lock();
        if line.waiting.is_empty() {
            state.pay_by_idling(self.host.now());
        }
        state.owed_bytes = (state.owed_bytes + bytes).min(state.owed_bytes_max);
    }

    /// Waits until `bytes` bytes may leave, of a segment with this place among those that are
    /// under way.
    pub async fn take(&self, bytes: u64, order: u64) {
        let standing = self.stand(order);
        loop {
            standing.is_first().await;
            match self.try_take(bytes) {
                Ok(()) => return,
                Err(wait) => self.host.sleep_until(self.host.now() + wait).await,
            }
        }
    }

    fn stand(&self, order: u64) -> Standing<'_> {
        let mut line = self.line();
        if line.waiting.is_empty() {
            self.lock().pay_by_idling(self.host.now());
        }
        line.came += 1;
        let (place, moved_up) = ((order, line.came), Arc::new(Notify::new()));
        line.waiting.insert(place, Arc::clone(&moved_up));
        Standing { rate: self, place, moved_up }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self, bytes: u64) -> Result<(), Span> {
        let mut state = self.lock();
        // More than one where the rate fell since the bytes were cut.
        while state.credit_bytes < bytes + state.owed_bytes {
            state.bucket.check().map_err(|not_yet| {
                let now = Nanos::from(self.host.now().ns());
                let earliest = not_yet.earliest_possible();
                Span::from_ns(earliest.duration_since(now).as_u64())
            })?;
            state.credit_bytes += state.cell_bytes;
        }
        state.credit_bytes -= bytes + state.owed_bytes;
        state.owed_bytes = 0;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(host: &Arc<dyn Host>, bytes_per_second: f64, queue: Span) -> Self {
        let in_time = |span: Span| bytes_per_second * span.as_secs_f64();
        let largest = CELL_BYTES_MAX.max(in_time(CELL_SPAN_FAST)).min(in_time(CELL_SPAN_MAX));
        let (queue_bytes, late_bytes) = (in_time(queue), in_time(LATE));
        let cell_bytes = largest.min((queue_bytes - late_bytes) / 2.0).max(CELL_BYTES_MIN);
        let late_cells = (late_bytes / cell_bytes).ceil();
        // Whole cells are more than what is late.
        let cell_bytes = cell_bytes.min(queue_bytes / (late_cells + 2.0));
        let cell_bytes = cell_bytes.max(CELL_BYTES_MIN).floor();
        let period = Duration::from_secs_f64(cell_bytes / bytes_per_second);
        let burst = 1 + late_cells as u32;
        let fills_in = Span::from_ns(period.as_nanos() as u64 * u64::from(burst));
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(period).expect("a cell takes time").allow_burst(burst);
        let bucket = RateLimiter::direct_with_clock(quota, HostClock(Arc::clone(host)));
        let (cell_bytes, owed_bytes_max) = (cell_bytes as u64, bytes_per_second as u64);
        let (credit_bytes, owed_bytes, seen) = (0, 0, host.now());
        Self {
            cell_bytes,
            bucket,
            credit_bytes,
            owed_bytes,
            owed_bytes_max,
            bytes_per_second,
            fills_in,
            seen,
        }
    }

    /// Nobody has waited since it was last seen: what the bucket had no room for pays.
    fn pay_by_idling(&mut self, now: TimeNs) {
        // Once: a bucket that is full stays full until somebody takes.
        let full = self.seen + self.fills_in;
        let paid = (now.since(full).as_secs_f64() * self.bytes_per_second) as u64;
        self.owed_bytes = self.owed_bytes.saturating_sub(paid);
        let filling = TimeNs::from_ns(now.ns().saturating_sub(self.fills_in.ns()));
        self.seen = self.seen.max(filling);
    }
}

impl Standing<'_> {
    async fn is_first(&self) {
        while self.rate.line().waiting.first_key_value().is_some_and(|(p, _)| *p < self.place) {
            self.moved_up.notified().await;
        }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut line = self.rate.line();
        line.waiting.remove(&self.place);
        self.rate.lock().seen = self.rate.host.now();
        if let Some((_, next)) = line.waiting.first_key_value() {
            next.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use hier_collectives::topology::{Fabric, LinkSpec, RegionSpec, WanPort};
    use units::Fraction;

    /// Of a link of 80 ms.
    const QUEUE: Span = Span::from_ms(80);

    async fn time_for(rate: f64, total: u64, piece: u64) -> f64 {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = LinkRate::new(Arc::clone(&host), rate, QUEUE);
        let begin: TimeNs = host.now();
        let mut left = total;
        while left > 0 {
            let bytes = left.min(piece).min(limit.cell_bytes());
            limit.take(bytes, FIRST).await;
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
        let limit = LinkRate::new(Arc::clone(&host), 1e8, QUEUE);
        host.sleep_until(host.now() + Span::from_secs(5)).await;
        let begin = host.now();
        let mut sent = 0;
        while host.now() == begin {
            limit.take(1000, FIRST).await;
            sent += 1000;
        }
        // Four cells of 64 KiB: the one that is due, and 1.5 ms of rate in whole ones. The last
        // piece was waited for.
        assert!(sent <= 4 * 65_536 + 1000, "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_left_unbought_is_waited_for_once_and_for_a_second_at_most() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = LinkRate::new(Arc::clone(&host), 1e6, QUEUE);
        for (charged, seconds) in [(500_000, 0.5), (50_000_000, 1.0), (0, 0.0)] {
            limit.charge(charged);
            let begin = host.now();
            limit.take(1000, FIRST).await;
            let waited = host.now().since(begin).as_secs_f64();
            assert!((waited - seconds).abs() < 0.01, "{charged}: {waited} s");
        }
        // What nobody waits for pays as well: half a second owed, after a third of it.
        limit.charge(500_000);
        host.sleep_until(host.now() + Span::from_ms(300)).await;
        limit.charge(100_000);
        let begin = host.now();
        limit.take(1000, FIRST).await;
        let waited = host.now().since(begin).as_secs_f64();
        assert!((waited - 0.3).abs() < 0.01, "{waited} s");
        // Also where a little is charged all the time, as for control messages.
        limit.charge(500_000);
        for _ in 0..300 {
            host.sleep_until(host.now() + Span::from_ms(1)).await;
            limit.charge(1);
        }
        let begin = host.now();
        limit.take(1000, FIRST).await;
        let waited = host.now().since(begin).as_secs_f64();
        assert!((waited - 0.2).abs() < 0.01, "{waited} s");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_bucket_fills_pays_for_nothing_else() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        for rate in [1e5, 1e6, 1.25e7, 1.25e8] {
            let limit = LinkRate::new(Arc::clone(&host), rate, QUEUE);
            let fills_in = limit.lock().fills_in;
            let charged = (rate * fills_in.as_secs_f64() * 1.25) as u64;
            let (begin, mut left) = (host.now(), 0);
            for _ in 0..100 {
                limit.charge(charged);
                host.sleep_until(host.now() + fills_in).await;
                limit.take(100, FIRST).await;
                left += charged + 100;
            }
            // Beside it, the bucket was full at the beginning.
            let most = rate * (host.now().since(begin) + fills_in).as_secs_f64();
            assert!(left as f64 <= most * 1.02, "{rate}: {left} bytes, {most}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_take_in_turn() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = Arc::new(LinkRate::new(Arc::clone(&host), 1.25e8, QUEUE));
        let taken = Arc::new(Mutex::new([0u32; 4]));
        for lane in 0..4 {
            let (limit, taken) = (Arc::clone(&limit), Arc::clone(&taken));
            host.spawn(Box::pin(async move {
                loop {
                    limit.take(limit.cell_bytes(), FIRST).await;
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
        let limit = Arc::new(LinkRate::new(Arc::clone(&host), 1e8, QUEUE));
        let taken = Arc::new(Mutex::new(0u64));
        let (task_limit, task_taken) = (Arc::clone(&limit), Arc::clone(&taken));
        host.spawn(Box::pin(async move {
            loop {
                // Cut at the first rate, also when a cell has become smaller.
                task_limit.take(65_536, FIRST).await;
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

    #[tokio::test(start_paused = true)]
    async fn what_was_pulled_first_is_whole_first() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        let limit = Arc::new(LinkRate::new(Arc::clone(&host), 1.25e8, QUEUE));
        let ends = Arc::new(Mutex::new(BTreeMap::new()));
        let begin = host.now();
        for order in [3, 1, 2] {
            let (limit, ends, host) = (Arc::clone(&limit), Arc::clone(&ends), Arc::clone(&host));
            host.clone().spawn(Box::pin(async move {
                for _ in 0..160 {
                    limit.take(62_500, order).await;
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

    /// With what was bought and not used yet it fits the least queue that such a link is said to have.
    /// Who waits for a cell finds all that came due meanwhile, if the bucket had room for it.
    #[test]
    fn what_leaves_at_once_fits_a_round_trip_of_a_short_link_and_a_late_timer_loses_nothing() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        for mbit in [50, 100, 200, 300, 500, 1000, 2500, 10_000] {
            for rtt_us in [2000, 2200, 3000, 5000, 8000, 20_000] {
                let rate = BitRate::from_bits_per_second(mbit * 1_000_000);
                let rtt = Span::from_ns(rtt_us * 1000);
                let fabric = fabric(rate, rtt);
                let bytes = rate.bytes_per_second();
                let state = State::new(&host, bytes, queue(&fabric.links()[0]));
                let cells = std::iter::from_fn(|| state.bucket.check().ok()).count() as u64;
                let most = (cells + 1) * state.cell_bytes;
                let holds = bytes * rtt.as_secs_f64();
                assert!(most as f64 <= holds, "{mbit} Mbit/s, {rtt}: {most} of {holds}");
                let late = (cells - 1) * state.cell_bytes;
                assert!(late as f64 >= 0.00149 * bytes, "{mbit} Mbit/s, {rtt}: {late} bytes late");
            }
        }
    }

    /// quinn goes through all that was written to a stream for each piece that it sends again.
    #[tokio::test(start_paused = true)]
    async fn a_segment_is_written_in_few_cells_whatever_the_link() {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(wan_sim::VirtualNet::new(), 1));
        for mbit in [1, 10, 100, 1000, 10_000, 400_000] {
            for rtt_ms in [1, 20, 200, 1000] {
                let rate = BitRate::from_bits_per_second(mbit * 1_000_000);
                let fabric = fabric(rate, Span::from_ms(rtt_ms));
                let limit = payload_bytes_per_second(
                    &PairShare::unshared(rate),
                    &fabric.links()[0],
                    rate,
                    fabric.mtu(),
                );
                let queue = queue(&fabric.links()[0]);
                let cell = LinkRate::new(Arc::clone(&host), limit, queue).cell_bytes();
                let cells = plan::segment_bytes(&fabric).get().div_ceil(cell);
                assert!(cells <= 128, "{mbit} Mbit/s, {rtt_ms} ms: {cells} cells");
            }
        }
    }

    fn fabric(rate: BitRate, rtt: Span) -> Fabric {
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let region = |name: &str| RegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![(format!("{name}-0"), 1, wan)],
        };
        let between = ("east".to_owned(), "west".to_owned());
        let link = LinkSpec { between, rate, rtt, loss: Fraction::default() };
        Fabric::new("two", 1500, vec![region("east"), region("west")], vec![link]).expect("valid")
    }
}
