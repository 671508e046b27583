//! The fidelity of a run in real time to its links.
//!
//! An emulator that falls behind delays packets by more than the link would, and reads
//! them later than they came, which idles the link. A run where that happened says so.

use std::fmt;
use units::Span;

/// Measurements of a front end about itself.
#[derive(Debug, Clone)]
pub struct Fidelity {
    lateness: FidelityLateness,
    own_drops: u64,
    late_reads: u64,
    stalled: Span,
    stall_max: Span,
    cpu: Span,
}

/// How long a run has been, as its front end knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed {
    /// Wall-clock time.
    pub wall: Span,
    /// How busy all processors were, in thousandths; `None` where the system does not say.
    pub machine_permille: Option<u64>,
}

/// Limits beyond which a run is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FidelityLimits {
    /// The lateness that all but one delivery in a thousand must keep below.
    pub lateness_p999: Span,
    /// Most late reads for every thousand deliveries.
    pub late_reads_permille: u64,
    /// Most that any delivery may be late, and that the emulator may stand still at once.
    pub worst: Span,
    /// Most of the run that the emulator may stand still in all, in thousandths.
    pub stalled_permille: u64,
}

impl FidelityLimits {
    /// The fidelity limits of a run whose shortest round trip is 50 ms or more; beyond one of them
    /// the run is void. In order: lateness that 999 of 1,000 deliveries keep, late reads for 1,000
    /// deliveries, worst lateness or standstill, thousandths of the run at a standstill.
    pub const DEFAULT: Self = Self {
        lateness_p999: Span::from_ms(5),
        late_reads_permille: 1,
        worst: Span::from_ms(100),
        stalled_permille: 10,
    };

    /// Returns the limits for links of which the shortest has this round trip without queueing.
    ///
    /// At most one delivery in a thousand may be late by more than a tenth of the round trip. The
    /// tenth counts as 1 ms at least and 5 ms at most.
    pub fn for_round_trip(shortest: Span) -> Self {
        let tenth = Span::from_ns(shortest.ns() / 10);
        let lateness_p999 = Self::DEFAULT.lateness_p999.min(tenth.max(LATENESS_LIMIT_MIN));
        Self { lateness_p999, ..Self::DEFAULT }
    }
}

/// 20 ms: a read of packets that comes more than this after the emulator's thread should have woken
/// counts as late, and as a standstill. Late reads can make a run void. The time is chosen.
pub(crate) const READ_GAP_MAX: Span = Span::from_ms(20);

/// 1 ms: the limit on the lateness of deliveries is never below this, however short the links. A
/// thread's wake-up is as late on a machine with other work.
const LATENESS_LIMIT_MIN: Span = Span::from_ms(1);

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FidelityReport {
    /// Deliveries made.
    pub deliveries: u64,
    /// The median lateness of deliveries against the link's decision.
    pub lateness_p50: Span,
    /// The lateness that all but one delivery in a thousand keep below.
    pub lateness_p999: Span,
    /// The greatest lateness of any delivery.
    pub lateness_max: Span,
    /// Packets lost by the emulator rather than by a link.
    pub own_drops: u64,
    /// Reads that came more than 20 ms late, whether or not packets waited.
    pub late_reads: u64,
    /// How long the emulator stood still in all: the sum of the gaps before late reads.
    pub stalled: Span,
    /// The longest time that the emulator stood still at once.
    pub stall_max: Span,
    /// Processor time of the emulator's threads, in thousandths of one processor. Where it
    /// hands packets to the kernel, this contains the receiver's work in there.
    pub cpu_permille: u64,
    /// How busy all processors were, by any program, in thousandths.
    pub machine_permille: Option<u64>,
    /// Why the run does not count; empty when it does.
    pub void: Vec<String>,
}

impl Default for Fidelity {
    /// Makes all counts and times, at zero.
    fn default() -> Self {
        Self {
            lateness: FidelityLateness::new(),
            own_drops: 0,
            late_reads: 0,
            stalled: Span::ZERO,
            stall_max: Span::ZERO,
            cpu: Span::ZERO,
        }
    }
}

impl Fidelity {
    /// Counts a delivery with its lateness against the time that the link decided.
    pub fn record_delivery(&mut self, late: Span) {
        self.lateness.add(late.ns());
    }

    /// Counts packets that the system did not take, or that the emulator could not handle.
    pub fn record_drops(&mut self, packets: u64) {
        self.own_drops += packets;
    }

    /// Counts a read as late, and the emulator as standing still for `gap`, if `gap` is above
    /// 20 ms. `gap` is the time since the read before, less the longest planned sleep.
    pub fn record_read(&mut self, gap: Span) {
        if gap > READ_GAP_MAX {
            self.late_reads += 1;
            self.stalled = self.stalled + gap;
            self.stall_max = self.stall_max.max(gap);
        }
    }

    /// Sets the processor time that this part of the emulator has used since its start, in place of
    /// the time set before.
    pub fn record_cpu_time(&mut self, so_far: Span) {
        self.cpu = so_far;
    }

    /// Adds the measurements of another part of the run, such as another thread. Deliveries, drops,
    /// late reads and processor times are summed; of standstills the longer one counts.
    pub fn merge(&mut self, other: &Self) {
        self.lateness.merge(&other.lateness);
        self.own_drops += other.own_drops;
        self.late_reads += other.late_reads;
        // What holds one part up mostly holds up all of them.
        self.stalled = self.stalled.max(other.stalled);
        self.stall_max = self.stall_max.max(other.stall_max);
        self.cpu = self.cpu + other.cpu;
    }

    /// Returns the verdict on the run so far, by `limits`.
    pub fn report(&self, limits: &FidelityLimits, elapsed: &Elapsed) -> FidelityReport {
        FidelityReport {
            deliveries: self.lateness.count,
            lateness_p50: Span::from_ns(self.lateness.quantile_permille(500)),
            lateness_p999: Span::from_ns(self.lateness.quantile_permille(999)),
            lateness_max: Span::from_ns(self.lateness.max),
            own_drops: self.own_drops,
            late_reads: self.late_reads,
            stalled: self.stalled,
            stall_max: self.stall_max,
            cpu_permille: (self.cpu.ns() / 1000)
                .checked_div(elapsed.wall.ns() / 1_000_000)
                .unwrap_or(0),
            machine_permille: elapsed.machine_permille,
            void: Vec::new(),
        }
        .with_void_reasons(limits, elapsed.wall)
    }
}

impl FidelityReport {
    /// Returns the report with one reason for each of `limits` that the run exceeded. `wall` is the
    /// length of the run.
    fn with_void_reasons(mut self, limits: &FidelityLimits, wall: Span) -> Self {
        let stalled_most = u128::from(wall.ns()) * u128::from(limits.stalled_permille);
        let FidelityLimits { lateness_p999, worst, .. } = *limits;
        for (is, reason) in [
            (
                self.lateness_p999 > lateness_p999,
                format!(
                    "one delivery in a thousand was {} late, above {lateness_p999}",
                    self.lateness_p999.rounded()
                ),
            ),
            (
                self.lateness_max > worst,
                format!("a delivery was {} late, above {worst}", self.lateness_max.rounded()),
            ),
            (self.own_drops > 0, format!("the emulator itself lost {} packets", self.own_drops)),
            (
                // A few stalls are part of any machine, unless there is little else.
                self.late_reads * 1000 > self.deliveries * limits.late_reads_permille,
                format!("{} reads came more than {READ_GAP_MAX} late", self.late_reads),
            ),
            (
                self.stall_max > worst,
                format!("it stood still for {}, above {worst}", self.stall_max.rounded()),
            ),
            (
                u128::from(self.stalled.ns()) * 1000 > stalled_most,
                format!(
                    "it stood still for {} in all, above {} thousandths of the run",
                    self.stalled.rounded(),
                    limits.stalled_permille
                ),
            ),
        ] {
            if is {
                self.void.push(reason);
            }
        }
        self
    }
}

impl fmt::Display for FidelityReport {
    /// Prints one line, which ends with `good`, or with `VOID: ` and the reasons. Times are
    /// rounded to three digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fidelity: {} deliveries, late by {} (p50), {} (p99.9), {} (max); {} own drops, {} \
             late reads, stood still for {} in all, {} at once; CPU {} % of one core",
            self.deliveries,
            self.lateness_p50.rounded(),
            self.lateness_p999.rounded(),
            self.lateness_max.rounded(),
            self.own_drops,
            self.late_reads,
            self.stalled.rounded(),
            self.stall_max.rounded(),
            self.cpu_permille / 10
        )?;
        if let Some(permille) = self.machine_permille {
            write!(f, ", machine {} % busy", permille / 10)?;
        }
        write!(f, ": ")?;
        match self.void.as_slice() {
            [] => write!(f, "good"),
            reasons => write!(f, "VOID: {}", reasons.join("; ")),
        }
    }
}

/// How late deliveries were: counts by magnitude: 8 buckets for every doubling, each at most 12.5 % wide.
#[derive(Debug, Clone)]
struct FidelityLateness {
    counts: Vec<u64>,
    count: u64,
    max: u64,
}

impl FidelityLateness {
    /// Makes a histogram without counts.
    fn new() -> Self {
        Self { counts: vec![0; 64 * BUCKETS_PER_DOUBLING as usize], count: 0, max: 0 }
    }

    /// Counts one delivery that was `ns` nanoseconds late.
    fn add(&mut self, ns: u64) {
        self.counts[fidelity_bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    /// Adds the counts of `other`.
    fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Returns a quantile of the lateness, in nanoseconds; `permille` is its place in thousandths.
    ///
    /// Rounds up to the edge of a bucket, but never above the greatest lateness.
    fn quantile_permille(&self, permille: u64) -> u64 {
        let wanted = (self.count * permille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return fidelity_bucket_edge(bucket).min(self.max);
            }
        }
        0
    }
}

/// Returns the index of the histogram's bucket for `ns` nanoseconds.
fn fidelity_bucket(ns: u64) -> usize {
    if ns < BUCKETS_PER_DOUBLING {
        return ns as usize;
    }
    let doubling = ns.ilog2() - BUCKETS_PER_DOUBLING.ilog2();
    (u64::from(doubling) * BUCKETS_PER_DOUBLING + (ns >> doubling)) as usize
}

/// Returns the greatest lateness of a delivery, in nanoseconds, that the bucket with this index
/// counts.
fn fidelity_bucket_edge(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * BUCKETS_PER_DOUBLING {
        return bucket;
    }
    let doubling = bucket / BUCKETS_PER_DOUBLING - 1;
    let low = (bucket - doubling * BUCKETS_PER_DOUBLING) << doubling;
    low.saturating_add((1 << doubling) - 1)
}

/// 8 buckets for each doubling of lateness in the histogram of deliveries, so that a quantile is
/// too high by an eighth at most.
const BUCKETS_PER_DOUBLING: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_good_run_is_good_and_each_fault_voids_it() {
        let limits = FidelityLimits::DEFAULT;
        let mut good = Fidelity::default();
        (0..10_000).for_each(|i| good.record_delivery(Span::from_ns(i * 10)));
        good.record_delivery(Span::from_ms(100));
        good.record_cpu_time(Span::from_ms(250));
        good.record_read(Span::from_ms(20));
        let elapsed = Elapsed { wall: Span::from_secs(2), machine_permille: Some(700) };
        let report = good.report(&limits, &elapsed);
        assert_eq!((report.cpu_permille, report.machine_permille), (125, Some(700)));
        assert!(report.to_string().contains("CPU 12 % of one core, machine 70 % busy: good"));
        assert_eq!((report.void.len(), report.lateness_max), (0, Span::from_ms(100)));
        assert!((50_000..57_000).contains(&report.lateness_p50.ns()), "{report}");

        let mut late = good.clone();
        (0..20).for_each(|_| late.record_delivery(Span::from_ms(100)));
        let mut lossy = good.clone();
        lossy.record_drops(1);
        let mut stalled = good.clone();
        (0..11).for_each(|_| stalled.record_read(Span::from_ms(21)));
        // Long enough that so much in all is no matter.
        let long = Elapsed { wall: Span::from_secs(24), ..elapsed };
        let mut latest = good.clone();
        latest.record_delivery(Span::from_ms(101));
        let mut once = good.clone();
        once.record_read(Span::from_secs(1));
        let hour = Elapsed { wall: Span::from_secs(3600), ..elapsed };
        let mut often = good.clone();
        (0..5).for_each(|_| often.record_read(Span::from_ms(50)));
        for (fidelity, elapsed, word) in [
            (late, elapsed, "one delivery in a thousand"),
            (latest, elapsed, "a delivery was 101 ms late"),
            (lossy, elapsed, "lost"),
            (stalled, long, "reads"),
            (once, hour, "stood still for 1 s, above"),
            (often, long, "stood still for 250 ms in all"),
        ] {
            let report = fidelity.report(&limits, &elapsed);
            assert_eq!(report.void.len(), 1, "{report}");
            assert!(
                report.void[0].contains(word) && report.to_string().contains("VOID"),
                "{report}"
            );
        }
    }

    #[test]
    fn a_short_link_bears_less_lateness_than_a_long_one() {
        let elapsed = Elapsed { wall: Span::from_secs(2), machine_permille: None };
        let good = |rtt_us: u64, late_us: u64| {
            let limits = FidelityLimits::for_round_trip(Span::from_ns(rtt_us * 1000));
            let mut fidelity = Fidelity::default();
            (0..100).for_each(|_| fidelity.record_delivery(Span::from_ns(late_us * 1000)));
            fidelity.report(&limits, &elapsed).void.is_empty()
        };
        for (rtt_us, most_us) in
            [(0, 1000), (300, 1000), (10_000, 1000), (20_000, 2000), (50_000, 5000), (80_000, 5000)]
        {
            assert!(good(rtt_us, most_us) && !good(rtt_us, most_us + 1), "{rtt_us} us");
        }
    }

    #[test]
    fn parts_that_stand_still_together_do_so_once() {
        let limits = FidelityLimits::DEFAULT;
        let mut part = Fidelity::default();
        part.record_read(Span::from_ms(60));
        part.record_read(Span::from_ms(40));
        let mut all = part.clone();
        all.merge(&part);
        let elapsed = Elapsed { wall: Span::from_secs(1), machine_permille: None };
        let report = all.report(&limits, &elapsed);
        assert_eq!((report.stalled, report.stall_max), (Span::from_ms(100), Span::from_ms(60)));
        assert_eq!(report.late_reads, 4);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_what_is_below_its_edge(ns: u64) {
            let bucket = fidelity_bucket(ns);
            prop_assert!(ns <= fidelity_bucket_edge(bucket));
            prop_assert!(bucket == 0 || ns > fidelity_bucket_edge(bucket - 1));
        }
    }
}
