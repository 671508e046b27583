//! The planned time against the optimum.

use crate::fabrics::{simple, unlike};
use hier_collectives::bound;
use hier_collectives::plan::{self, Operation, PlanAlgorithm};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use microlp::{ComparisonOp, OptimizationDirection, Problem};
use std::collections::BTreeMap;
use units::ByteCount;

/// 16 TiB, a buffer so large that delays do not count.
const LARGE_BUFFER: ByteCount = ByteCount::new(1 << 44);

fn predicted(fabric: &Fabric) -> f64 {
    let plan = plan::make_plan(fabric).expect("small enough");
    plan.forecast(fabric, Operation::AllReduce, LARGE_BUFFER).predicted.as_secs_f64()
}

fn payload(mbit: f64) -> f64 {
    mbit * 1e6 / 8.0 * 1433.0 / 1500.0
}

#[test]
fn symmetric_ports_are_planned_near_the_bound() {
    let size = LARGE_BUFFER.get() as f64;
    let mut worst = 0.0f64;
    for seed in 0..10_000 {
        let mut dice = SplitMix64(seed);
        let regions = usize::try_from(dice.range(2, 8)).expect("small");
        let top = [150, 1_000, 20_000][usize::try_from(dice.range(0, 2)).expect("small")];
        let ports: Vec<u64> = (0..regions).map(|_| dice.range(100, top)).collect();
        let fabric =
            simple(&ports, dice.range(1, 200), |one, other| Some(ports[one].min(ports[other])));
        let least = *ports.iter().min().expect("some") as f64;
        let all: u64 = ports.iter().sum();
        let rate = least.min(all as f64 / (2.0 * (regions as f64 - 1.0)));
        let optimum = size / payload(rate);
        let ratio = predicted(&fabric) / optimum;
        assert!((0.99999..1.01).contains(&ratio), "seed {seed}: {ratio} for {ports:?}");
        let bound = bound::all_reduce_lower_bound(&fabric, LARGE_BUFFER).as_secs_f64();
        assert!((bound / optimum - 1.0).abs() < 0.001, "seed {seed}: bound {bound}, {optimum}");
        worst = worst.max(ratio);
    }
    println!("at most {worst:.5} of the bound");
}

/// Partials fit the ingress rates and results the egress rates.
#[test]
fn asymmetric_ports_are_planned_near_the_bound() {
    let (mut worst, mut gained) = (0.0f64, 0.0);
    for seed in 0..4_000 {
        let mut dice = SplitMix64(seed);
        let regions = usize::try_from(dice.range(2, 8)).expect("small");
        let top = [150, 1_000, 20_000][usize::try_from(dice.range(0, 2)).expect("small")];
        let mut some = || dice.range(100, top);
        let ports: Vec<(u64, u64)> = (0..regions).map(|_| (some(), some())).collect();
        // Links as wide as any port: only these limit it.
        let fabric = unlike(&ports, 20_000);
        let bound = bound::all_reduce_lower_bound(&fabric, LARGE_BUFFER).as_secs_f64();
        let ratio = predicted(&fabric) / bound;
        assert!((0.99999..1.01).contains(&ratio), "seed {seed}: {ratio} for {ports:?}");
        worst = worst.max(ratio);
        let lesser = ports.iter().map(|(out, inward)| *out.min(inward) as f64);
        let all = lesser.clone().sum::<f64>() / (2.0 * (regions as f64 - 1.0));
        let rate = lesser.fold(all, f64::min);
        gained += LARGE_BUFFER.get() as f64 / payload(rate) / (ratio * bound);
    }
    println!(
        "at most {worst:.5} of the bound, {:.2} times as fast as by the lesser direction on average",
        gained / 4000.0
    );
}

/// Link rates in Mbit/s by (lower region, higher region).
type Rates = BTreeMap<(usize, usize), u64>;

/// Random link rates. A chain keeps the regions connected; `missing` percent of the other links are
/// left out.
fn rates(dice: &mut SplitMix64, regions: usize, missing: u64, top: u64) -> Rates {
    let pairs = (0..regions).flat_map(|one| (one + 1..regions).map(move |other| (one, other)));
    let mut rates = Rates::new();
    for (one, other) in pairs {
        if other == one + 1 || !dice.chance(missing) {
            rates.insert((one, other), dice.range(10, top));
        }
    }
    rates
}

/// The highest rate of spanning trees that only pairs limit (Nash-Williams and Tutte).
///
/// It is the least of (rate between the parts) / (parts - 1) over all partitions of the regions.
fn tree_packing(regions: usize, rates: &Rates) -> f64 {
    let mut parts = vec![0; regions];
    let mut least = f64::INFINITY;
    partitions(&mut parts, 1, 1, &mut |parts, count| {
        let apart = rates.iter().filter(|((one, other), _)| parts[*one] != parts[*other]);
        let between: u64 = apart.map(|(_, rate)| rate).sum();
        if count > 1 {
            least = least.min(between as f64 / (count as f64 - 1.0));
        }
    });
    least
}

fn partitions(
    parts: &mut [usize],
    at: usize,
    count: usize,
    visit: &mut impl FnMut(&[usize], usize),
) {
    if at == parts.len() {
        return visit(parts, count);
    }
    for part in 0..=count {
        parts[at] = part;
        partitions(parts, at + 1, count.max(part + 1), visit);
    }
}

/// The least rate between a group of regions and the others, by trying all groups.
fn cut(regions: usize, rates: &Rates) -> u64 {
    let rate = |group: usize| {
        let apart = |(one, other): &(usize, usize)| (group >> one ^ group >> other) & 1 == 1;
        rates.iter().filter(|(pair, _)| apart(pair)).map(|(_, rate)| rate).sum()
    };
    (1..(1 << regions) - 1).map(rate).min().expect("several regions")
}

#[test]
fn narrow_pairs_are_planned_near_the_best_packing() {
    let mut worst = 0.0f64;
    for seed in 0..400 {
        let mut dice = SplitMix64(seed);
        let regions = usize::try_from(dice.range(3, 8)).expect("small");
        let missing = [0, 30, 60][usize::try_from(dice.range(0, 2)).expect("small")];
        let rates = rates(&mut dice, regions, missing, 1000);
        let fabric = simple(&vec![100_000; regions], 40, |a, b| rates.get(&(a, b)).copied());
        let optimum = LARGE_BUFFER.get() as f64 / payload(tree_packing(regions, &rates));
        let ratio = predicted(&fabric) / optimum;
        assert!((0.99999..1.01).contains(&ratio), "seed {seed}: {ratio} for {rates:?}");
        let narrowest = bound::min_cut(&fabric).bits_per_second();
        assert_eq!(narrowest, cut(regions, &rates) * 1_000_000, "seed {seed}");
        worst = worst.max(ratio);
    }
    println!("at most {worst:.5} of the best packing");
}

/// Every spanning tree over `regions` regions, as edges (Pruefer's sequences).
fn all_trees(regions: usize) -> Vec<Vec<(usize, usize)>> {
    let count = regions.pow(u32::try_from(regions - 2).expect("small"));
    let tree = |mut code: usize| {
        let mut sequence = Vec::new();
        for _ in 0..regions - 2 {
            sequence.push(code % regions);
            code /= regions;
        }
        let mut degrees = vec![1; regions];
        sequence.iter().for_each(|region| degrees[*region] += 1);
        let mut edges = Vec::new();
        for region in sequence {
            let leaf = degrees.iter().position(|degree| *degree == 1).expect("a leaf");
            edges.push((leaf.min(region), leaf.max(region)));
            degrees[leaf] -= 1;
            degrees[region] -= 1;
        }
        let last: Vec<_> = (0..regions).filter(|region| degrees[*region] == 1).collect();
        edges.push((last[0], last[1]));
        edges
    };
    (0..count).map(tree).collect()
}

/// The highest rate of all trees together: a linear program over every tree.
fn best_packing(ports: &[u64], rates: &Rates) -> f64 {
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let trees = all_trees(ports.len()).into_iter();
    let possible = trees.filter(|tree| tree.iter().all(|pair| rates.contains_key(pair)));
    let trees: Vec<_> =
        possible.map(|tree| (problem.add_var(1.0, (0.0, f64::INFINITY)), tree)).collect();
    for (region, port) in ports.iter().enumerate() {
        let load = trees.iter().map(|(weight, tree)| {
            let degree = tree.iter().filter(|(a, b)| *a == region || *b == region).count();
            (*weight, degree as f64)
        });
        problem.add_constraint(load.collect::<Vec<_>>(), ComparisonOp::Le, *port as f64 / 100.0);
    }
    for (pair, rate) in rates {
        let through = trees.iter().filter(|(_, tree)| tree.contains(pair));
        let load: Vec<_> = through.map(|(weight, _)| (*weight, 1.0)).collect();
        if !load.is_empty() {
            problem.add_constraint(load, ComparisonOp::Le, *rate as f64 / 100.0);
        }
    }
    let outcome = problem.solve().expect("bounded");
    outcome.solution().expect("no limit interrupts").objective() * 100.0
}

#[test]
fn ports_and_pairs_are_planned_near_the_best_packing() {
    let mut worst = 0.0f64;
    for seed in 0..200 {
        let mut dice = SplitMix64(seed);
        let regions = usize::try_from(dice.range(3, 6)).expect("small");
        let ports: Vec<u64> = (0..regions).map(|_| dice.range(100, 1000)).collect();
        let rates = rates(&mut dice, regions, 30, 800);
        let fabric = simple(&ports, 40, |a, b| rates.get(&(a, b)).copied());
        let (predicted, optimum) = (predicted(&fabric), best_packing(&ports, &rates));
        let ratio = predicted * payload(optimum) / LARGE_BUFFER.get() as f64;
        assert!((0.99999..1.01).contains(&ratio), "seed {seed}: {ratio} {ports:?} {rates:?}");
        let bound = bound::all_reduce_lower_bound(&fabric, LARGE_BUFFER).as_secs_f64();
        assert!(predicted > bound * 0.99999, "seed {seed}: {predicted} below {bound}");
        worst = worst.max(ratio);
    }
    println!("at most {worst:.5} of the best packing");
}

#[test]
fn an_equal_mesh_of_narrow_pairs_is_used_whole() {
    let fabric = simple(&[10_000; 4], 60, |_, _| Some(100));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Direct);
    // Even shares: 2S/(Nc). A ring: 2(N-1)/N S/c.
    let ring = 1.5 * LARGE_BUFFER.get() as f64 / payload(100.0);
    assert!(ring / predicted(&fabric) > 2.99);
}

#[test]
fn owner_shares_follow_the_ports() {
    let fabric = simple(&[400, 250, 100, 100], 60, |_, _| Some(400));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Direct);
    let even = 1.5 * LARGE_BUFFER.get() as f64 / payload(100.0);
    assert!(even / predicted(&fabric) > 1.41, "{}", even / predicted(&fabric));
    let owned = plan.ownership_fractions(&fabric, u64::MAX);
    assert!(owned[0] > owned[1] && owned[1] > owned[2], "{owned:?}");
    assert!((owned.iter().sum::<f64>() - 1.0).abs() < 1e-9);
}
