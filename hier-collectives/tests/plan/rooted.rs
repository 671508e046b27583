//! The planned time of a reduction and of a broadcast, against their lower bound.

use crate::fabrics::{simple, unlike, wild};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Operation};
use hier_collectives::testing::{SplitMix64, mbit};
use hier_collectives::topology::Fabric;
use units::ByteCount;

/// 16 TiB, a buffer so large that delays do not count.
const LARGE_BUFFER: ByteCount = ByteCount::new(1 << 44);

/// Returns predicted time over lower bound of a reduction to, and of a broadcast from, the first and
/// the last gateway.
fn ratios(fabric: &Fabric) -> [f64; 4] {
    let plan = plan::make_plan(fabric).expect("small enough");
    let last = fabric.gateway_ids().last().expect("a gateway");
    let [first, last] = [GatewayId(0), last].map(|root| {
        [Operation::Reduce { to: root }, Operation::Broadcast { from: root }].map(|operation| {
            let forecast = plan.forecast(fabric, operation, LARGE_BUFFER);
            forecast.predicted.as_secs_f64() / forecast.bound.as_secs_f64()
        })
    });
    [first[0], first[1], last[0], last[1]]
}

/// Returns the mean and the largest ratio of many fabrics, and prints them.
fn mean_and_worst(name: &str, fabrics: impl Iterator<Item = Fabric>) -> (f64, f64) {
    let all: Vec<f64> = fabrics.flat_map(|fabric| ratios(&fabric)).collect();
    assert!(all.iter().all(|ratio| *ratio > 0.9999), "{name}: below the bound");
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let worst = all.iter().copied().fold(0.0, f64::max);
    println!("{name}: {mean:.4} times the bound on average, at most {worst:.4}");
    (mean, worst)
}

/// Returns random fabrics of two to eight regions, by seed.
fn random(count: u64, fabric: impl Fn(&mut SplitMix64, usize) -> Fabric) -> Vec<Fabric> {
    let of_seed = |seed| {
        let mut dice = SplitMix64(seed);
        let regions = usize::try_from(dice.range(2, 8)).expect("small");
        fabric(&mut dice, regions)
    };
    (0..count).map(of_seed).collect()
}

#[test]
fn reductions_and_broadcasts_of_equal_regions_take_the_bound() {
    let fabrics = (2..9).map(|regions| simple(&vec![500; regions], 60, |_, _| Some(1000)));
    let (_, worst) = mean_and_worst("equal ports", fabrics);
    assert!(worst < 1.001, "{worst}");
}

#[test]
fn reductions_and_broadcasts_are_planned_near_the_bound() {
    let alike = random(500, |dice, regions| {
        let top = [150, 1_000, 20_000][usize::try_from(dice.range(0, 2)).expect("small")];
        let ports: Vec<u64> = (0..regions).map(|_| dice.range(100, top)).collect();
        simple(&ports, 40, |one, other| Some(ports[one].min(ports[other])))
    });
    let (mean, worst) = mean_and_worst("symmetric ports", alike.into_iter());
    assert!(mean < 1.02 && worst < 1.3, "{mean} {worst}");
    let apart = random(500, |dice, regions| {
        let mut some = || dice.range(100, 1000);
        unlike(&(0..regions).map(|_| (some(), some())).collect::<Vec<_>>(), 20_000)
    });
    let (mean, worst) = mean_and_worst("asymmetric ports", apart.into_iter());
    assert!(mean < 1.25 && worst < 5.0, "{mean} {worst}");
    let wild = random(500, |dice, regions| wild(dice, regions, 40));
    let (mean, worst) = mean_and_worst("any ports and links", wild.into_iter());
    assert!(mean < 1.25 && worst < 5.0, "{mean} {worst}");
}

/// Files of gateways may differ in rates, and all gateways must divide a buffer alike.
#[test]
fn the_parts_of_a_reduction_do_not_depend_on_rates() {
    for fabric in random(50, |dice, regions| wild(dice, regions, 40)) {
        let plan = plan::make_plan(&fabric).expect("small enough");
        let mut links = fabric.links().to_vec();
        links.iter_mut().for_each(|link| link.rate = mbit(7));
        let other = fabric.with_links(links);
        for operation in
            [Operation::Reduce { to: GatewayId(0) }, Operation::Broadcast { from: GatewayId(0) }]
        {
            assert_eq!(plan.rerooted_for(&fabric, operation), plan.rerooted_for(&other, operation));
        }
    }
}
