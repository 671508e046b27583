//! The work that a job has done, summed since the gateway's start.
//!
//! `report` adds each collective that ended, on the engine's task. The status shows the sums.

use crate::observe::status::TotalsReport;
use hier_collectives::bound::LowerBound;
use hier_collectives::descriptor::Pattern;
use units::{ByteCount, Span};

/// 1 MiB: the smallest buffer of an all-reduce that gets an efficiency (lower bound over the time
/// taken). A smaller buffer gets none, since round trips and timers dominate its time.
/// Tested by `only_large_all_reduces_have_an_efficiency`.
const RATED_BYTES_MIN: u64 = 1 << 20;

/// The sums of one job.
#[derive(Debug, Default)]
pub(in crate::engine) struct WorkTotals {
    report: TotalsReport,
}

/// The time of a collective, and the least time that it could take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct WorkTotalsEntry {
    took: Span,
    least: Span,
}

impl WorkTotals {
    /// Returns the sums in the form of the status.
    pub fn report(&self) -> TotalsReport {
        self.report
    }

    /// Adds a completed collective of `bytes` bytes to the sums; `rated` has its times if its
    /// efficiency counts.
    pub fn add_completed(&mut self, bytes: u64, rated: Option<WorkTotalsEntry>) {
        self.report.completed += 1;
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        if let Some(WorkTotalsEntry { took, least }) = rated {
            self.report.seconds += took.as_secs_f64();
            self.report.bound_seconds += least.as_secs_f64();
        }
    }

    /// Adds a collective that failed to the sums.
    pub fn add_failed(&mut self) {
        self.report.failed += 1;
    }
}

impl WorkTotalsEntry {
    /// Rates a collective that `took` the time from the last local post to the last local result.
    /// Returns `None` unless it is an all-reduce of 1 MiB or more between regions, whose `bound` is
    /// known.
    pub fn of_collective(
        bound: Option<&LowerBound>,
        pattern: Pattern,
        bytes: u64,
        took: Span,
    ) -> Option<Self> {
        let is_rated = pattern == Pattern::AllReduce && bytes >= RATED_BYTES_MIN;
        let least = bound.filter(|_| is_rated)?.span(ByteCount::new(bytes));
        (least > Span::ZERO && took > Span::ZERO).then_some(Self { took, least })
    }

    /// Returns the least time that the collective needs over the time taken, 1 at best.
    pub fn efficiency(self) -> f64 {
        self.least.as_secs_f64() / self.took.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::operation::Operation;
    use hier_collectives::topology::{
        Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
    };
    use units::{BitRate, Fraction};

    /// Returns the bound of all-reduces on two regions, 10 ms and 1 Gbit/s apart.
    fn bound() -> LowerBound {
        let rate = BitRate::from_bits_per_second(1_000_000_000);
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
        };
        let between = ("east".to_owned(), "west".to_owned());
        let link =
            FabricLinkSpec { between, rate, rtt: Span::from_ms(10), loss: Fraction::default() };
        let regions = vec![region("east"), region("west")];
        let fabric = Fabric::new("two", 1500, regions, vec![link]).expect("valid");
        LowerBound::new(&fabric, Operation::AllReduce)
    }

    #[test]
    fn sums_grow_with_each_collective() {
        let (bound, mut totals) = (bound(), WorkTotals::default());
        let (bytes, took) = (64 << 20, Span::from_secs(1));
        for _ in 0..2 {
            let rated =
                WorkTotalsEntry::of_collective(Some(&bound), Pattern::AllReduce, bytes, took);
            totals.add_completed(bytes, rated);
        }
        totals.add_failed();
        let report = totals.report();
        assert_eq!((report.completed, report.failed, report.bytes), (2, 1, 2 * bytes));
        let least = bound.span(ByteCount::new(bytes)).as_secs_f64();
        assert!((report.bound_seconds - 2.0 * least).abs() < 1e-9 && report.seconds == 2.0);
    }

    #[test]
    fn only_large_all_reduces_have_an_efficiency() {
        let bound = bound();
        let rate = |bound, pattern, bytes, seconds| {
            WorkTotalsEntry::of_collective(bound, pattern, bytes, Span::from_secs(seconds))
        };
        let rated = rate(Some(&bound), Pattern::AllReduce, RATED_BYTES_MIN, 2).expect("rated");
        let least = bound.span(ByteCount::new(RATED_BYTES_MIN)).as_secs_f64();
        assert_eq!(rated.efficiency(), least / 2.0);
        assert_eq!(rate(Some(&bound), Pattern::AllReduce, RATED_BYTES_MIN - 1, 2), None);
        assert_eq!(rate(Some(&bound), Pattern::Barrier, RATED_BYTES_MIN, 2), None);
        assert_eq!(rate(None, Pattern::AllReduce, RATED_BYTES_MIN, 2), None);
        assert_eq!(rate(Some(&bound), Pattern::AllReduce, RATED_BYTES_MIN, 0), None);
    }
}
