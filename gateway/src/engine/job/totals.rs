//! The work that a job has done, summed since the gateway's start.
//!
//! `report` adds each collective that ended, on the engine's task. The status shows the sums.

use crate::observe::status::TotalsReport;
use hier_collectives::bound::operation_bound;
use hier_collectives::descriptor::Pattern;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{ByteCount, Span};

/// 1 MiB: the least buffer whose collective counts for the efficiency. Round trips and timers
/// dominate the time of smaller buffers, and bounds of many sizes take time to compute.
/// Tested by `small_collectives_do_not_count_for_the_efficiency`.
const EFFICIENCY_BYTES_MIN: u64 = 1 << 20;

/// 64 bounds: the most that are cached, by pattern and size. Trainers use few sizes.
const CACHED_BOUNDS_MAX: usize = 64;

/// The sums of one job.
pub(in crate::engine) struct WorkTotals {
    fabric: Arc<Fabric>,
    report: TotalsReport,
    /// Lower bounds of collectives, by pattern and bytes.
    bounds: BTreeMap<(Pattern, u64), Span>,
}

impl WorkTotals {
    /// Makes the sums of a job that has done nothing yet.
    pub fn new(fabric: Arc<Fabric>) -> Self {
        Self { fabric, report: TotalsReport::default(), bounds: BTreeMap::new() }
    }

    /// Returns the sums.
    pub fn report(&self) -> TotalsReport {
        self.report
    }

    /// Adds a collective that completed. It `took` the time from the last local post to the last
    /// local result.
    pub fn add_completed(&mut self, pattern: Pattern, bytes: u64, took: Span) {
        self.report.completed += 1;
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        if bytes >= EFFICIENCY_BYTES_MIN {
            self.report.seconds += took.as_secs_f64();
            self.report.bound_seconds += self.lower_bound(pattern, bytes).as_secs_f64();
        }
    }

    /// Adds a collective that failed.
    pub fn add_failed(&mut self) {
        self.report.failed += 1;
    }

    /// Returns the least time that a collective may take on the fabric.
    fn lower_bound(&mut self, pattern: Pattern, bytes: u64) -> Span {
        if let Some(known) = self.bounds.get(&(pattern, bytes)) {
            return *known;
        }
        let operation = pattern.over_gateways(&self.fabric);
        let bound = operation.map_or(Span::ZERO, |operation| {
            operation_bound(&self.fabric, operation, ByteCount::new(bytes))
        });
        if self.bounds.len() >= CACHED_BOUNDS_MAX {
            self.bounds.clear();
        }
        self.bounds.insert((pattern, bytes), bound);
        bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::bound::all_reduce_bound;
    use hier_collectives::topology::{LinkSpec, RegionGateway, RegionSpec, WanPort};
    use units::{BitRate, Fraction};

    /// Returns a fabric of two regions, 10 ms and 1 Gbit/s apart.
    fn fabric() -> Arc<Fabric> {
        let rate = BitRate::from_bits_per_second(1_000_000_000);
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let region = |name: &str| RegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![RegionGateway::new(format!("{name}-0"), 1, wan)],
        };
        let between = ("east".to_owned(), "west".to_owned());
        let link = LinkSpec { between, rate, rtt: Span::from_ms(10), loss: Fraction::default() };
        let regions = vec![region("east"), region("west")];
        Arc::new(Fabric::new("two", 1500, regions, vec![link]).expect("valid"))
    }

    #[test]
    fn sums_grow_with_each_collective() {
        let fabric = fabric();
        let mut totals = WorkTotals::new(Arc::clone(&fabric));
        let bytes = 64 << 20;
        for _ in 0..2 {
            totals.add_completed(Pattern::AllReduce, bytes, Span::from_secs(1));
        }
        totals.add_failed();
        let report = totals.report();
        assert_eq!((report.completed, report.failed, report.bytes), (2, 1, 2 * bytes));
        let bound = all_reduce_bound(&fabric, ByteCount::new(bytes)).as_secs_f64();
        assert!((report.bound_seconds - 2.0 * bound).abs() < 1e-9 && report.seconds == 2.0);
    }

    #[test]
    fn small_collectives_do_not_count_for_the_efficiency() {
        let mut totals = WorkTotals::new(fabric());
        totals.add_completed(Pattern::Barrier, 0, Span::from_secs(3));
        totals.add_completed(Pattern::AllReduce, EFFICIENCY_BYTES_MIN - 1, Span::from_secs(3));
        let report = totals.report();
        assert_eq!((report.completed, report.seconds, report.bound_seconds), (2, 0.0, 0.0));
    }

    #[test]
    fn the_number_of_cached_bounds_is_bounded() {
        let mut totals = WorkTotals::new(fabric());
        for bytes in 0..1000 {
            let bytes = EFFICIENCY_BYTES_MIN + 4 * bytes;
            totals.add_completed(Pattern::AllReduce, bytes, Span::from_secs(1));
        }
        assert!(totals.bounds.len() <= CACHED_BOUNDS_MAX && totals.report().bound_seconds > 0.0);
    }
}
