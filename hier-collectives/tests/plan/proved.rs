//! Every fabric has a valid plan.

use crate::fabrics::wild;
use crate::memory::{UsedMemory, assert_within_memory};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Operation, Plan, Tree, TreeUpstream};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use proptest::prelude::*;
use std::collections::BTreeMap;
use units::ByteCount;

/// 4 GiB, the buffer whose forecasts are checked.
const BUFFER_SIZE: ByteCount = ByteCount::new(1 << 32);

/// Simulates each tree by the gateways' roles alone, and counts how often each contribution is in
/// each result.
fn assert_exactly_once(plan: &Plan, gateways: u16) {
    let roles: Vec<_> = (0..gateways).map(|id| plan.roles(GatewayId(id))).collect();
    let mut summed: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    for (tree, Tree { direction, .. }) in plan.trees.iter().enumerate() {
        let role = |id: u16| &roles[usize::from(id)][tree];
        let mut partials: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        let mut results: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        // Runs until nothing changes; a deadlock would leave gateways without result.
        loop {
            let before = partials.len() + results.len();
            for id in 0..gateways {
                let children = &role(id).children;
                if direction.has_partials() && !partials.contains_key(&id) {
                    let theirs: Option<Vec<_>> =
                        children.iter().map(|child| partials.get(&child.0)).collect();
                    let Some(theirs) = theirs else { continue };
                    let mut sum = vec![0; usize::from(gateways)];
                    sum[usize::from(id)] = 1;
                    theirs.into_iter().for_each(|partial| add(&mut sum, partial));
                    partials.insert(id, sum);
                }
                let result = match &role(id).upstream {
                    TreeUpstream::Parent(_) if !direction.has_results() => None,
                    TreeUpstream::RootSet(_) if !direction.has_partials() => {
                        summed.get(&id).cloned()
                    }
                    TreeUpstream::Parent(parent) => {
                        assert!(role(parent.0).children.contains(&GatewayId(id)));
                        results.get(&parent.0).cloned()
                    }
                    TreeUpstream::RootSet(roots) => {
                        let all: Option<Vec<_>> =
                            roots.iter().map(|member| partials.get(&member.0)).collect();
                        all.map(|all| {
                            let mut sum = vec![0; usize::from(gateways)];
                            all.into_iter().for_each(|partial| add(&mut sum, partial));
                            sum
                        })
                    }
                };
                if let Some(result) = result {
                    results.insert(id, result);
                }
            }
            if partials.len() + results.len() == before {
                break;
            }
        }
        let all = if direction.has_results() { usize::from(gateways) } else { 1 };
        assert_eq!(results.len(), all, "tree {tree} is stuck");
        for (id, result) in &results {
            assert!(result.iter().all(|count| *count == 1), "tree {tree}, {id}: {result:?}");
        }
        summed = results;
    }
}

fn add(sum: &mut [u32], partial: &[u32]) {
    sum.iter_mut().zip(partial).for_each(|(sum, count)| *sum += count);
}

/// Checks that only gateways with a port and a link exchange between regions.
///
/// A gateway without a port owns nothing, and gateways of a region send in proportion to their
/// ports.
fn assert_possible(fabric: &Fabric, plan: &Plan) {
    let edges = plan.trees.iter().flat_map(|tree| {
        let roots = tree.roots.iter().flat_map(|one| tree.roots.iter().map(move |two| (one, two)));
        tree.parents.iter().chain(roots.filter(|(one, two)| one != two))
    });
    for (one, other) in edges {
        let (one, other) = (fabric.gateway(*one), fabric.gateway(*other));
        if one.region != other.region {
            assert!(one.wan.is_some() && other.wan.is_some(), "{} to {}", one.name, other.name);
            assert!(fabric.link(one.region, other.region).is_some());
        }
    }
    let several = fabric.regions().len() > 1;
    let apart = plan.has_separate_trees();
    for (gateway, owned) in fabric.gateways().iter().zip(plan.ownership_fractions(fabric, u64::MAX))
    {
        assert!(owned == 0.0 || !several || gateway.wan.is_some(), "{} owns {owned}", gateway.name);
    }
    let forecast = plan.forecast(fabric, Operation::AllReduce, BUFFER_SIZE);
    for region in fabric.regions().iter().filter(|_| several && !apart) {
        let mine = region.gateways.clone().map(|id| {
            let wan = fabric.gateway(GatewayId(id)).wan;
            let rate = wan.map_or(0, |wan| wan.egress.min(wan.ingress).bits_per_second());
            (rate as f64, forecast.gateways[usize::from(id)])
        });
        let mine: Vec<_> = mine.collect();
        let rates: f64 = mine.iter().map(|(rate, _)| rate).sum();
        let bytes: f64 = mine.iter().map(|(_, load)| load.wan_out.get() as f64).sum();
        for (rate, load) in &mine {
            let fair = bytes * rate / rates;
            assert!((load.wan_out.get() as f64 - fair).abs() < 0.002 * bytes, "{mine:?}");
            assert_eq!(load.wan_out, load.wan_in);
        }
    }
    assert!(forecast.predicted >= forecast.bound, "{} below the bound", forecast.predicted);
}

/// Checks that the forecast memory of each gateway is within the plan's bound, for a huge buffer.
fn assert_bounded(fabric: &Fabric, plan: &Plan) {
    let forecast =
        plan.forecast(fabric, Operation::AllReduce, ByteCount::new(BUFFER_SIZE.get() << 10));
    let owner_trees = plan.owner_trees(fabric);
    for (id, load) in fabric.gateway_ids().zip(&forecast.gateways) {
        let memory = plan.memory_bound(fabric, &owner_trees, id, ByteCount::new(0));
        assert!(load.held <= memory.result_windows, "{id} holds {} of {memory:?}", load.held);
    }
}

fn check(fabric: &Fabric) -> UsedMemory {
    let plan = plan::make_plan(fabric).expect("small enough");
    let gateways = u16::try_from(fabric.gateways().len()).expect("small");
    plan.prove(gateways).unwrap_or_else(|fault| panic!("{fault}: {plan:?}"));
    assert_exactly_once(&plan, gateways);
    assert_possible(fabric, &plan);
    assert_bounded(fabric, &plan);
    let used = assert_within_memory(fabric, &plan, &mut SplitMix64(1));
    for root in [GatewayId(0), GatewayId(gateways - 1)] {
        for operation in [Operation::Reduce { to: root }, Operation::Broadcast { from: root }] {
            plan.rerooted_for(fabric, operation).prove(gateways).expect("held elsewhere, as good");
            let forecast = plan.forecast(fabric, operation, BUFFER_SIZE);
            let (predicted, bound) = (forecast.predicted, forecast.bound);
            assert!(predicted >= bound, "{operation:?}: {predicted} below {bound}");
        }
    }
    used
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn small_fabrics(seed: u64, regions in 1usize..10, missing in 0u64..100) {
        check(&wild(&mut SplitMix64(seed), regions, missing));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn fabrics_of_up_to_64_regions(seed: u64, regions in 10usize..65, missing in 0u64..100) {
        check(&wild(&mut SplitMix64(seed), regions, missing));
    }
}

/// The memory bound of a plan is not far above the memory that is needed.
#[test]
fn stopped_gateways_let_others_fill_their_memory() {
    let used = (0..80).map(|seed| check(&wild(&mut SplitMix64(seed), 2 + seed as usize % 6, 40)));
    let used = used.fold(UsedMemory::default(), UsedMemory::max);
    println!("{used:?}");
    assert!(used.partials > 0.99 && used.ahead > 0.5 && used.relayed > 0.3, "{used:?}");
}

/// Some of the random fabrics with asymmetric ports get separate trees.
#[test]
fn separate_trees_are_among_the_proved_plans() {
    let apart = |seed: &u64| {
        let plan = plan::make_plan(&wild(&mut SplitMix64(*seed), 3 + *seed as usize % 6, 20));
        plan.expect("small").has_separate_trees()
    };
    let count = (0..40).filter(apart).count();
    println!("{count} of 40");
    assert!(count >= 4, "{count} of 40");
}

#[test]
fn the_same_fabric_gives_the_same_plan() {
    for seed in 0..20 {
        let fabric = wild(&mut SplitMix64(seed), 9, 40);
        let again = wild(&mut SplitMix64(seed), 9, 40);
        let (one, other) = (plan::make_plan(&fabric), plan::make_plan(&again));
        assert_eq!(
            one.map(|plan| plan.encoding_hash()),
            other.map(|plan| plan.encoding_hash()),
            "seed {seed}"
        );
    }
}

/// 3,000 random fabrics whose plans are proved.
const FABRICS_PROVED: u64 = 3000;

#[test]
#[ignore = "takes minutes: cargo test -p hier-collectives --test plan -- --ignored"]
fn thousands_of_fabrics_of_up_to_64_regions() {
    let (mut gateways, mut trees, mut used) = (0, 0, UsedMemory::default());
    for seed in 0..FABRICS_PROVED {
        let mut dice = SplitMix64(seed);
        let regions = usize::try_from(dice.range(1, 64)).expect("small");
        let missing = dice.range(0, 99);
        let fabric = wild(&mut dice, regions, missing);
        let checked = std::panic::catch_unwind(|| check(&fabric));
        used = used.max(checked.unwrap_or_else(|_| panic!("seed {seed}")));
        gateways += fabric.gateways().len();
        trees += plan::make_plan(&fabric).expect("small enough").trees.len();
    }
    println!(
        "proved {FABRICS_PROVED} fabrics of 1 to 64 regions: {gateways} gateways, {trees} trees; of their \
         memory gateways held at most {used:.2?}"
    );
}
