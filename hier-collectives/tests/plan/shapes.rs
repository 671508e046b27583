//! The algorithm that each shape of fabric gets.

use crate::fabrics::{fabric, link, port, region, simple, unlike};
use hier_collectives::buffer_part;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Operation, Plan, PlanAlgorithm, TreeDirection};
use hier_collectives::testing::{SplitMix64, mbit};
use hier_collectives::topology::{Fabric, WanPort};
use units::ByteCount;

#[test]
fn two_regions_swap_with_any_gateways() {
    let regions = vec![
        region(0, &[(1, Some(port(300))), (1, Some(port(100))), (2, None)]),
        region(1, &[(1, Some(port(200))), (1, Some(port(200)))]),
    ];
    let fabric = fabric(regions, vec![link(0, 1, 400, 80)]);
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Swap);
    // 3:1 on one side, 1:1 on the other: they meet on the union of the cuts, 1/2 and 3/4.
    let shares: Vec<u64> = plan.trees.iter().map(|tree| tree.share).collect();
    assert_eq!(shares, [1 << 19, 1 << 18, 1 << 18]);
    let roots: Vec<_> = plan.trees.iter().map(|tree| tree.roots.clone()).collect();
    let pair = |one, other| vec![GatewayId(one), GatewayId(other)];
    assert_eq!(roots, [pair(0, 3), pair(0, 4), pair(1, 4)]);
    let size = ByteCount::new(1 << 30);
    let forecast = plan.forecast(&fabric, Operation::AllReduce, size);
    let seconds = size.get() as f64 / (50e6 * 1433.0 / 1500.0) + 0.04;
    assert!((forecast.predicted.as_secs_f64() - seconds).abs() < 1e-3, "{forecast:?}");
    assert_eq!(forecast.predicted.as_secs_f64() / forecast.bound.as_secs_f64(), 1.0);
}

#[test]
fn a_star_of_links_is_a_hub() {
    let fabric = simple(&[100, 1000, 100, 100], 20, |a, b| (a == 1 || b == 1).then_some(100));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Hub);
    assert_eq!(plan.trees.len(), 1);
    assert_eq!(plan.trees[0].roots, [GatewayId(1)]);
    assert!(plan.reason.contains("r001"), "{}", plan.reason);
}

#[test]
fn asymmetric_ports_get_separate_trees() {
    let fabric = unlike(&[(1000, 500), (500, 1000), (1000, 500), (500, 1000)], 1000);
    let plan = plan::make_plan(&fabric).expect("small");
    assert!(ratio(&fabric, &plan) < 1.001, "{plan:?}");
    assert!(plan.reason.contains("1.5 times as fast"), "{}", plan.reason);
    // Where the least port limits, nothing is gained.
    let fabric = unlike(&[(1000, 100), (1000, 1000), (1000, 1000)], 1000);
    let plan = plan::make_plan(&fabric).expect("small");
    assert!(ratio(&fabric, &plan) < 1.001, "{plan:?}");
    assert!(plan.trees.iter().all(|tree| tree.direction == TreeDirection::Both), "{plan:?}");
}

/// Separate trees are up to four times as many.
#[test]
fn asymmetric_ports_never_leave_a_fabric_without_plan() {
    let mut dice = SplitMix64(1);
    let regions = (0..64).map(|number| {
        let gateways: Vec<_> = (0..4)
            .map(|_| {
                let (egress, ingress) = (mbit(dice.range(100, 1000)), mbit(dice.range(100, 1000)));
                (1, Some(WanPort { egress, ingress }))
            })
            .collect();
        region(number, &gateways)
    });
    let regions = regions.collect();
    let mut links = Vec::new();
    for one in 0..64 {
        for other in one + 1..64 {
            if other == one + 1 || !dice.chance(30) {
                links.push(link(one, other, dice.range(20, 200), 40));
            }
        }
    }
    let plan = plan::make_plan(&fabric(regions, links)).expect("one with trees for both, at least");
    println!("{} trees: {}", plan.trees.len(), plan.reason);
}

/// Forecast time over the lower bound, for a large buffer.
fn ratio(fabric: &Fabric, plan: &Plan) -> f64 {
    let forecast = plan.forecast(fabric, Operation::AllReduce, ByteCount::new(1 << 44));
    forecast.predicted.as_secs_f64() / forecast.bound.as_secs_f64()
}

#[test]
fn a_missing_pair_beside_a_limiting_port_costs_nothing() {
    let ports = [900, 350, 350, 120, 80];
    let fabric = simple(&ports, 60, |a, b| ((a, b) != (3, 4)).then(|| ports[a].min(ports[b])));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Hub);
    assert!(ratio(&fabric, &plan) < 1.001);
}

#[test]
fn a_missing_pair_is_relayed() {
    let ports = [400, 300, 300, 250, 250];
    let fabric = simple(&ports, 60, |a, b| ((a, b) != (3, 4)).then(|| ports[a].min(ports[b])));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Relay);
    assert!(plan.trees.len() > 2, "{plan:?}");
    assert!(ratio(&fabric, &plan) < 1.005, "{}", ratio(&fabric, &plan));
}

#[test]
fn a_small_buffer_takes_one_hop() {
    let fabric = simple(&[1000, 600, 300], 60, |_, _| Some(1000));
    let plan = plan::make_plan(&fabric).expect("small");
    let express = plan.trees.last().expect("trees");
    assert!(express.is_express() && express.roots.len() == 3, "{plan:?}");
    let time = |bytes| {
        let bytes = ByteCount::new(bytes);
        plan.forecast(&fabric, Operation::AllReduce, bytes).predicted.as_secs_f64()
    };
    // It includes 6 ms on the pair with the smallest share.
    assert!((0.03..0.037).contains(&time(64 << 10)), "{}", time(64 << 10));
    assert!(time(plan.express_bytes.get()) < time(plan.express_bytes.get() + 1));
    let parts = buffer_part::divide_into_buffer_parts(&plan, 8);
    assert_eq!(parts.iter().map(buffer_part::BufferPart::segment_count).sum::<u32>(), 1);
    let barrier = plan.forecast(&fabric, Operation::Barrier, ByteCount::new(1 << 30));
    assert_eq!(barrier.predicted, barrier.bound);
}

#[test]
fn a_chain_has_its_root_in_the_middle() {
    let fabric = simple(&[100; 4], 20, |a, b| (b == a + 1).then_some(100));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.trees[0].roots, [GatewayId(1), GatewayId(2)]);
}

#[test]
fn one_region_shares_among_its_gateways() {
    let fabric = fabric(vec![region(0, &[(1, None), (1, None), (2, None)])], vec![]);
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.algorithm, PlanAlgorithm::Local);
    assert_eq!(plan.ownership_fractions(&fabric, u64::MAX), [1.0 / 3.0; 3]);
    assert_eq!(plan.prove(3), Ok(()));
}

#[test]
fn sixty_four_regions_with_gaps_are_planned_near_the_bound() {
    for seed in 0..3 {
        let mut dice = SplitMix64(seed);
        let ports: Vec<u64> = (0..64).map(|_| dice.range(500, 1_000)).collect();
        let fabric = simple(&ports, 60, |a, b| {
            (b == a + 1 || !dice.chance(30)).then(|| ports[a].min(ports[b]))
        });
        let plan = plan::make_plan(&fabric).expect("small");
        plan.prove(64).expect("sound");
        assert_eq!(plan.algorithm, PlanAlgorithm::Relay);
        let ratio = ratio(&fabric, &plan);
        assert!(ratio < 1.01, "seed {seed}: {ratio}");
    }
}

#[test]
fn many_narrow_pairs_are_planned_without_pricing() {
    for (regions, missing) in [(24, 0), (40, 30), (64, 30)] {
        let mut dice = SplitMix64(7);
        let fabric = simple(&vec![100_000; regions], 60, |a, b| {
            (b == a + 1 || !dice.chance(missing)).then(|| dice.range(100, 1000))
        });
        let plan = plan::make_plan(&fabric).expect("small");
        println!("{}", plan.reason);
        assert_eq!(plan.algorithm, PlanAlgorithm::Relay);
        let ratio = ratio(&fabric, &plan);
        assert!(ratio < 1.10, "{regions} regions: {ratio}");
    }
}
