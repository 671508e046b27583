//! The planned time of operations on blocks behind several gateways, against their lower bound.

use crate::fabrics::{fabric, link, port, region, wild};
use hier_collectives::plan::{self, Operation, Plan};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use units::ByteCount;

/// 16 TiB, a buffer so large that delays do not count.
const LARGE_BUFFER: ByteCount = ByteCount::new(1 << 44);

/// Returns all operations on blocks: to the last gateway, or from it.
fn operations(fabric: &Fabric) -> [Operation; 5] {
    let last = fabric.gateway_ids().last().expect("a gateway");
    [
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::Gather { to: last },
        Operation::Scatter { from: last },
        Operation::AllToAll,
    ]
}

/// Returns the lower bound over the predicted time of each operation on blocks.
fn etas(fabric: &Fabric) -> [f64; 5] {
    let plan = plan::make_plan(fabric).expect("small enough");
    operations(fabric).map(|operation| eta(fabric, &plan, operation))
}

/// Returns the lower bound over the predicted time of one operation.
fn eta(fabric: &Fabric, plan: &Plan, operation: Operation) -> f64 {
    let forecast = plan.forecast(fabric, operation, LARGE_BUFFER);
    forecast.bound.as_secs_f64() / forecast.predicted.as_secs_f64()
}

/// Returns a fabric whose regions have these numbers of gateways, two ranks each, and ports in
/// Mbit/s. All pairs have a link as wide as the widest region.
fn meshed(regions: &[(usize, u64)]) -> Fabric {
    let widest = regions.iter().map(|(count, rate)| *count as u64 * rate).max().expect("regions");
    let of = |(number, (count, rate)): (usize, &(usize, u64))| {
        region(number, &vec![(2, Some(port(*rate))); *count])
    };
    let pairs = (0..regions.len()).flat_map(|a| (a + 1..regions.len()).map(move |b| (a, b)));
    let links = pairs.map(|(a, b)| link(a, b, widest, 50)).collect();
    fabric(regions.iter().enumerate().map(of).collect(), links)
}

#[test]
fn blocks_behind_equal_gateways_are_planned_at_the_bound() {
    for (regions, gateways) in (2..=5).flat_map(|one| (1..=4).map(move |other| (one, other))) {
        let etas = etas(&meshed(&vec![(gateways, 1000); regions]));
        println!("{regions} regions of {gateways}: {etas:.3?}");
        assert!(etas.iter().all(|eta| *eta > 0.999), "{regions} of {gateways}: {etas:.3?}");
    }
}

/// Returns the middle and the least of the etas of each operation over fabrics, and prints them.
fn middle_and_least(name: &str, fabrics: impl Iterator<Item = Fabric>) -> [(f64, f64); 5] {
    let all: Vec<[f64; 5]> = fabrics.map(|fabric| etas(&fabric)).collect();
    let of_operation = |at: usize| {
        let mut etas: Vec<f64> = all.iter().map(|etas| etas[at]).collect();
        etas.sort_by(f64::total_cmp);
        assert!(etas.last().is_some_and(|most| *most < 1.0001), "{name}: below the bound");
        (etas[etas.len() / 2], etas[0])
    };
    let found = [0, 1, 2, 3, 4].map(of_operation);
    println!("{name}: {found:.3?}");
    found
}

/// Regions with most ranks send blocks to each other region in an all-gather, which the bound does not
/// ask for.
#[test]
fn blocks_are_planned_within_a_factor_of_the_bound() {
    let alike = (0..200).map(|seed| {
        let mut dice = SplitMix64(seed);
        let regions = 0..dice.range(2, 4);
        let rates = [100, 200, 500, 1000];
        let region = |_| (dice.range(1, 3) as usize, rates[dice.range(0, 3) as usize]);
        meshed(&regions.map(region).collect::<Vec<_>>())
    });
    let found = middle_and_least("several gateways", alike);
    for ((middle, least), known) in found.into_iter().zip([0.999; 5]) {
        assert!(middle > 0.999 && least > known, "{middle:.3} {least:.3}");
    }
    let wild = (0..200).map(|seed| {
        let mut dice = SplitMix64(seed);
        let regions = dice.range(2, 6) as usize;
        wild(&mut dice, regions, 40)
    });
    let found = middle_and_least("any ports and links", wild);
    for ((middle, least), known) in found.into_iter().zip([0.06, 0.06, 0.07, 0.04, 0.05]) {
        assert!(middle > 0.999 && least > known, "{middle:.3} {least:.3}");
    }
}

/// Returns regions of one gateway each, with these numbers of ranks and ports in Mbit/s.
fn of_ranks(regions: &[(u32, u64)]) -> Fabric {
    let widest = regions.iter().map(|(_, rate)| *rate).max().expect("regions");
    let of = |(number, (ranks, rate)): (usize, &(u32, u64))| {
        region(number, &[(*ranks, Some(port(*rate)))])
    };
    let pairs = (0..regions.len()).flat_map(|a| (a + 1..regions.len()).map(move |b| (a, b)));
    let links = pairs.map(|(a, b)| link(a, b, widest, 50)).collect();
    fabric(regions.iter().enumerate().map(of).collect(), links)
}

/// A region with most of the ranks sends a part of its blocks to one region, which sends them on.
#[test]
fn blocks_of_unequal_regions_are_planned_at_the_bound() {
    for ranks in
        [[2, 4, 6].as_slice(), &[1, 8, 2, 5], &[1, 1, 1, 9], &[3, 1, 1], &[1, 2, 3, 4, 5, 6]]
    {
        let regions: Vec<(u32, u64)> = ranks.iter().map(|ranks| (*ranks, 1000)).collect();
        let etas = etas(&of_ranks(&regions));
        println!("ranks {ranks:?}: {etas:.3?}");
        assert!(etas.iter().all(|eta| *eta > 0.99), "ranks {ranks:?}: {etas:.3?}");
    }
    let random = (0..200).map(|seed| {
        let mut dice = SplitMix64(seed);
        let regions = dice.range(3, 8) as usize;
        let mut region = |_| (dice.range(1, 8) as u32, dice.range(1, 10) * 100);
        of_ranks(&(0..regions).map(&mut region).collect::<Vec<_>>())
    });
    let found = middle_and_least("unequal ranks and ports", random);
    assert!(found.iter().all(|(_, least)| *least > 0.99), "{found:.3?}");
}
