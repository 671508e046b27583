//! Whether a run in real time was true to its links.
//!
//! An emulator that falls behind delays packets by more than the link would, and reads
//! them later than they came, which idles the link. A run where that happened says so.

use std::fmt;
use units::Span;

/// What a front end noticed about itself.
#[derive(Debug, Clone)]
pub struct Fidelity {
    lateness: Histogram,
    own_drops: u64,
    late_reads: u64,
    cpu: Span,
}

/// How long a run has been, as its front end knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed {
    /// By the clock.
    pub wall: Span,
    /// How busy all processors were, in thousandths; `None` where the system does not say.
    pub machine_permille: Option<u64>,
}

/// What makes a run void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FidelityLimits {
    /// Most lateness of all but one delivery in a thousand.
    pub lateness_p999: Span,
    /// Reads more than this after the one before, with packets waiting, are late.
    pub read_gap: Span,
    /// Most late reads for every thousand.
    pub late_reads_permille: u64,
}

impl FidelityLimits {
    /// What a run may show and still be good: a hundredth of a long link's round trip.
    pub const DEFAULT: Self = Self {
        lateness_p999: Span::from_ms(5),
        read_gap: Span::from_ms(20),
        late_reads_permille: 1,
    };
}

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FidelityReport {
    /// Deliveries made.
    pub deliveries: u64,
    /// Half of them were later than the link said by at most this.
    pub lateness_p50: Span,
    /// All but one in a thousand.
    pub lateness_p999: Span,
    /// All.
    pub lateness_max: Span,
    /// Packets lost by the emulator rather than by a link.
    pub own_drops: u64,
    /// Reads that came late while packets waited.
    pub late_reads: u64,
    /// Processor time of the emulator's threads, in thousandths of one processor. Where it
    /// hands packets to the kernel, this contains the receiver's work in there.
    pub cpu_permille: u64,
    /// How busy all processors were, by whatever, in thousandths.
    pub machine_permille: Option<u64>,
    /// Why the run does not count; empty when it does.
    pub void: Vec<String>,
}

impl Default for Fidelity {
    fn default() -> Self {
        Self { lateness: Histogram::new(), own_drops: 0, late_reads: 0, cpu: Span::ZERO }
    }
}

impl Fidelity {
    /// A delivery, so much later than the link said.
    pub fn delivered(&mut self, late: Span) {
        self.lateness.add(late.ns());
    }

    /// Packets that the system did not take, or that the emulator could not handle.
    pub fn dropped(&mut self, packets: u64) {
        self.own_drops += packets;
    }

    /// A read of packets that had waited, so long after the chance to read before it.
    pub fn read(&mut self, gap: Span, limits: &FidelityLimits) {
        self.late_reads += u64::from(gap > limits.read_gap);
    }

    /// The processor time that this part has used so far.
    pub fn worked(&mut self, so_far: Span) {
        self.cpu = so_far;
    }

    /// Adds what another part of the same run noticed.
    pub fn merge(&mut self, other: &Self) {
        self.lateness.merge(&other.lateness);
        self.own_drops += other.own_drops;
        self.late_reads += other.late_reads;
        self.cpu = self.cpu + other.cpu;
    }

    /// The verdict.
    pub fn report(&self, limits: &FidelityLimits, elapsed: &Elapsed) -> FidelityReport {
        let deliveries = self.lateness.count;
        let mut report = FidelityReport {
            deliveries,
            lateness_p50: Span::from_ns(self.lateness.quantile_permille(500)),
            lateness_p999: Span::from_ns(self.lateness.quantile_permille(999)),
            lateness_max: Span::from_ns(self.lateness.max),
            own_drops: self.own_drops,
            late_reads: self.late_reads,
            cpu_permille: (self.cpu.ns() / 1000)
                .checked_div(elapsed.wall.ns() / 1_000_000)
                .unwrap_or(0),
            machine_permille: elapsed.machine_permille,
            void: Vec::new(),
        };
        if report.lateness_p999 > limits.lateness_p999 {
            let (was, most) = (report.lateness_p999, limits.lateness_p999);
            report.void.push(format!("one delivery in a thousand was {was} late, above {most}"));
        }
        if self.own_drops > 0 {
            report.void.push(format!("the emulator itself lost {} packets", self.own_drops));
        }
        // A few stalls are part of any machine, unless there is little else.
        if self.late_reads * 1000 > deliveries * limits.late_reads_permille {
            let gap = limits.read_gap;
            let reads = self.late_reads;
            report.void.push(format!("{reads} reads came more than {gap} late"));
        }
        report
    }
}

impl fmt::Display for FidelityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fidelity: {} deliveries, late by {} (p50), {} (p99.9), {} (max); {} own drops, {} \
             late reads; CPU {} % of one core",
            self.deliveries,
            in_ms(self.lateness_p50),
            in_ms(self.lateness_p999),
            in_ms(self.lateness_max),
            self.own_drops,
            self.late_reads,
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

fn in_ms(span: Span) -> String {
    format!("{}.{:03} ms", span.ns() / 1_000_000, span.ns() / 1000 % 1000)
}

/// Counts by magnitude: eight steps for every doubling, so 12 % at most between them.
#[derive(Debug, Clone)]
struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max: u64,
}

impl Histogram {
    fn new() -> Self {
        Self { counts: vec![0; 64 * STEPS as usize], count: 0, max: 0 }
    }

    fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The upper edge of the bucket that holds the quantile, or the maximum if that is less.
    fn quantile_permille(&self, permille: u64) -> u64 {
        let wanted = (self.count * permille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return upper_edge(bucket).min(self.max);
            }
        }
        0
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let doubling = ns.ilog2() - STEPS.ilog2();
    (u64::from(doubling) * STEPS + (ns >> doubling)) as usize
}

fn upper_edge(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let doubling = bucket / STEPS - 1;
    let low = (bucket - doubling * STEPS) << doubling;
    low.saturating_add((1 << doubling) - 1)
}

const STEPS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_good_run_is_good_and_each_fault_voids_it() {
        let limits = FidelityLimits::DEFAULT;
        let mut good = Fidelity::default();
        (0..10_000).for_each(|i| good.delivered(Span::from_ns(i * 10)));
        good.delivered(Span::from_ms(100));
        good.worked(Span::from_ms(250));
        let elapsed = Elapsed { wall: Span::from_secs(2), machine_permille: Some(700) };
        let report = good.report(&limits, &elapsed);
        assert_eq!((report.cpu_permille, report.machine_permille), (125, Some(700)));
        assert!(report.to_string().contains("CPU 12 % of one core, machine 70 % busy: good"));
        assert_eq!((report.void.len(), report.lateness_max), (0, Span::from_ms(100)));
        assert!((50_000..57_000).contains(&report.lateness_p50.ns()), "{report}");

        let mut late = good.clone();
        (0..20).for_each(|_| late.delivered(Span::from_ms(100)));
        let mut lossy = good.clone();
        lossy.dropped(1);
        let mut stalled = good.clone();
        (0..11).for_each(|_| stalled.read(Span::from_ms(21), &limits));
        for (fidelity, word) in [(late, "late"), (lossy, "lost"), (stalled, "reads")] {
            let report = fidelity.report(&limits, &elapsed);
            assert_eq!(report.void.len(), 1, "{report}");
            assert!(report.void[0].contains(word) && report.to_string().contains("VOID"));
        }
    }

    proptest! {
        #[test]
        fn a_bucket_holds_what_is_below_its_edge(ns: u64) {
            let bucket = bucket(ns);
            prop_assert!(ns <= upper_edge(bucket));
            prop_assert!(bucket == 0 || ns > upper_edge(bucket - 1));
        }
    }
}
