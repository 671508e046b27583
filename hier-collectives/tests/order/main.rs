//! The order in which parts of operations are sent and come changes no bit of a result.
//!
//! Gateways follow plans that are made for random fabrics, with several gateways in a region and any
//! ports. Sums are not commutative here, so that another order of operands would show.

mod sessions;

use hier_collectives::descriptor::{AgreedCounts, ArrayShape, Counts};
use hier_collectives::descriptor::{Descriptor, Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::plan::{self, Plan};
use hier_collectives::testing::{SplitMix64, mbit};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use proptest::prelude::*;
use sessions::{Order, Posted, Sessions};
use std::sync::Arc;
use units::{ByteCount, Fraction, Span};

/// 128 bytes: the segments of the plans, so that a part has several.
const SEGMENT: ByteCount = ByteCount::new(128);
/// 512 bytes: the largest buffers of the express tree.
const EXPRESS: ByteCount = ByteCount::new(512);

/// Returns a random fabric of two to four regions with one to three gateways each. A chain of links
/// connects it, and most other pairs of regions have a link.
fn random_fabric(dice: &mut SplitMix64) -> Fabric {
    let count = dice.range(2, 4) as usize;
    let name = |region: usize| format!("r{region}");
    let region = |dice: &mut SplitMix64, number: usize| {
        let gateways: Vec<FabricGatewaySpec> = (0..dice.range(1, 3))
            .map(|index| {
                let (egress, ingress) = (mbit(dice.range(50, 1000)), mbit(dice.range(50, 1000)));
                let wan = (index == 0 || dice.chance(60)).then_some(WanPort { egress, ingress });
                let ranks = u32::try_from(dice.range(1, 3)).expect("small");
                FabricGatewaySpec::new(format!("g{number}-{index}"), ranks, wan)
            })
            .collect();
        let ranks: u32 = gateways.iter().map(|gateway| gateway.ranks).sum();
        FabricRegionSpec { name: name(number), speeds: vec![1.0; ranks as usize], gateways }
    };
    let regions = (0..count).map(|number| region(dice, number)).collect();
    let mut links = Vec::new();
    for one in 0..count {
        for other in one + 1..count {
            if other == one + 1 || dice.chance(70) {
                let between = (name(one), name(other));
                let (rate, rtt) = (mbit(dice.range(50, 2000)), Span::from_ms(dice.range(1, 100)));
                links.push(FabricLinkSpec { between, rate, rtt, loss: Fraction::default() });
            }
        }
    }
    Fabric::new("order", 1500, regions, links).expect("valid")
}

/// Returns a random operation of all ranks, mostly on blocks, with even, ragged or missing blocks.
fn random_operation(dice: &mut SplitMix64, ranks: u32) -> Vec<Posted> {
    let root = RankId(u32::try_from(dice.range(0, u64::from(ranks) - 1)).expect("small"));
    let patterns = [
        Pattern::AllGather,
        Pattern::ReduceScatter,
        Pattern::ReduceScatter,
        Pattern::Gather { to: root },
        Pattern::Scatter { from: root },
        Pattern::AllToAll,
        Pattern::AllReduce,
        Pattern::Reduce { to: root },
    ];
    let pattern = patterns[dice.range(0, patterns.len() as u64 - 1) as usize];
    let is_of_blocks = !matches!(pattern, Pattern::AllReduce | Pattern::Reduce { .. });
    let is_even = !is_of_blocks || dice.chance(40);
    let mut sizes = || if dice.chance(25) { 0 } else { dice.range(1, 70) };
    let even = sizes() + 1;
    let list: Arc<[u64]> = (0..ranks).map(|_| sizes()).collect();
    let matrix: Vec<Vec<u64>> = (0..ranks).map(|_| (0..ranks).map(|_| sizes()).collect()).collect();
    let counts = |rank: usize| match pattern {
        _ if is_even => Counts::Even,
        Pattern::AllToAll => Counts::ByPair {
            to: matrix[rank].iter().copied().collect(),
            from: matrix.iter().map(|row| row[rank]).collect(),
        },
        _ => Counts::ByRank(Arc::clone(&list)),
    };
    let elements = match pattern {
        _ if is_even && is_of_blocks => even * u64::from(ranks),
        _ if is_even => even * 5,
        Pattern::AllToAll => 0,
        _ => list.iter().sum(),
    };
    let posted = |rank: usize| {
        let counts = counts(rank);
        let (op, dtype, shape) = (ReduceOp::Sum, Dtype::I64, ArrayShape::FLAT);
        let agreed: AgreedCounts = counts.agreed();
        let layout_hash = 0;
        let descriptor =
            Descriptor { op, dtype, elements, layout_hash, shape, pattern, counts: agreed };
        Posted { descriptor, counts }
    };
    (0..ranks as usize).map(posted).collect()
}

/// Returns the plan of a fabric, with short segments.
fn plan_of(fabric: &Fabric) -> Plan {
    let plan = plan::make_plan(fabric).expect("a plan");
    let express_bytes = plan.express_bytes.min(EXPRESS);
    Plan { segment: SEGMENT, express_bytes, ..plan }
}

/// Runs some operations at once on a random fabric, in several orders. All results must be equal.
fn check_orders(seed: u64, operations: usize) -> Result<(), TestCaseError> {
    let mut dice = SplitMix64(seed);
    let fabric = Arc::new(random_fabric(&mut dice));
    let plan = plan_of(&fabric);
    let ranks = fabric.world_size();
    let posts: Vec<Vec<Posted>> =
        (0..operations).map(|_| random_operation(&mut dice, ranks)).collect();
    let drawn = [seed, seed ^ 1].map(|seed| Order::Drawn(SplitMix64(seed)));
    let mut first = None;
    for order in [Order::Oldest, Order::Newest].into_iter().chain(drawn) {
        let which = format!("{order:?}");
        let results = Sessions::start(&fabric, &plan, order).run(&posts);
        let first = first.get_or_insert_with(|| results.clone());
        prop_assert!(*first == results, "{}: other results in the order {}", plan.reason, which);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn the_order_of_parts_changes_no_result(seed: u64, operations in 1usize..4) {
        check_orders(seed, operations)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    #[ignore = "long: cargo xtask test --long"]
    fn the_order_of_parts_changes_no_result_at_length(seed: u64, operations in 1usize..6) {
        check_orders(seed, operations)?;
    }
}
