//! The express limit: buffers take one tree whole as long as the forecast says that is sooner.

use crate::fabrics::{simple, wild};
use hier_collectives::plan::{self, EXPRESS_MAX, Operation, Plan, unsolicited_window_size};
use hier_collectives::size_class::{MEDIUM_BYTES, SizeClass};
use hier_collectives::testing::SplitMix64;
use hier_collectives::topology::Fabric;
use proptest::prelude::*;
use units::ByteCount;

/// Nanoseconds of a buffer of `bytes` bytes over the express tree, and over the other trees.
fn times(fabric: &Fabric, plan: &Plan, bytes: u64) -> (u64, u64) {
    let express = Plan { express_bytes: ByteCount::new(bytes), ..plan.clone() };
    let trees = plan.trees.iter().filter(|tree| !tree.is_express()).cloned().collect();
    let bulk = Plan { trees, express_bytes: ByteCount::default(), ..plan.clone() };
    let of = |plan: &Plan| {
        plan.forecast(fabric, Operation::AllReduce, ByteCount::new(bytes)).predicted.ns()
    };
    (of(&express), of(&bulk))
}

/// The largest buffer that fits the unsolicited windows along the express tree.
fn room(fabric: &Fabric, plan: &Plan) -> u64 {
    let tree = plan.trees.iter().find(|tree| tree.is_express()).expect("an express tree");
    let region = |id| fabric.gateway(id).region;
    let far = tree.edges().filter(|(one, other)| region(*one) != region(*other));
    let room = |(one, other)| unsolicited_window_size(fabric, one, other, plan).get();
    let least = far.map(room).min().expect("regions");
    SizeClass::Large
        .usable_window(least)
        .max(SizeClass::Medium.usable_window(least).min(MEDIUM_BYTES))
}

/// Sizes next to the limit, and half of it: the chosen trees are never later, except by rounding.
fn check(fabric: &Fabric) {
    let plan = plan::make_plan(fabric).expect("small enough");
    let Some(most) = plan.express_limit().map(ByteCount::get) else { return };
    let allowed = EXPRESS_MAX.get().min(room(fabric, &plan));
    assert!(most <= allowed, "{most}, {allowed} at most: {plan:?}");
    for bytes in [most, most.saturating_sub(1 << 10), most / 2] {
        let (express, bulk) = times(fabric, &plan, bytes);
        assert!(express <= bulk + 1, "{bytes} of {most}: {express} ns, not {bulk} ns: {plan:?}");
    }
    let bytes = most + (1 << 10);
    if bytes <= allowed {
        let (express, bulk) = times(fabric, &plan, bytes);
        assert!(bulk <= express + 1, "{bytes} of {most}: {bulk} ns, not {express} ns: {plan:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_chosen_tree_is_the_sooner_one_around_the_limit(
        seed: u64,
        regions in 3usize..10,
        missing in 0u64..100,
    ) {
        check(&wild(&mut SplitMix64(seed), regions, missing));
    }
}

fn seconds(fabric: &Fabric, plan: &Plan, bytes: u64) -> f64 {
    let bytes = ByteCount::new(bytes);
    plan.forecast(fabric, Operation::AllReduce, bytes).predicted.as_secs_f64()
}

#[test]
fn a_mebibyte_over_far_and_wide_links_takes_one_hop() {
    let fabric = simple(&[10_000; 3], 100, |_, _| Some(10_000));
    let plan = plan::make_plan(&fabric).expect("small");
    assert_eq!(plan.express_limit(), Some(EXPRESS_MAX), "{}", plan.reason);
    assert!((0.050..0.053).contains(&seconds(&fabric, &plan, 1 << 20)), "{}", plan.reason);
    assert!(seconds(&fabric, &plan, EXPRESS_MAX.get() + 1) > 0.1);
}

#[test]
fn a_barrier_over_a_thin_mesh_takes_one_hop() {
    // 14 kB fill a pair for 120 ms, four times what a hop less saves; shared among all pairs they
    // fill each for half of that, and pass on a quarter.
    let fabric = simple(&[1000; 4], 60, |_, _| Some(1));
    let plan = plan::make_plan(&fabric).expect("small");
    let most = plan.express_limit().expect("an express tree").get();
    assert!((12 << 10..16 << 10).contains(&most), "{}", plan.reason);
    let barrier = plan.forecast(&fabric, Operation::Barrier, ByteCount::default());
    assert_eq!(barrier.predicted, barrier.bound, "{}", plan.reason);
    assert_eq!(barrier.predicted.as_secs_f64(), 0.03);
    check(&fabric);
}

#[test]
fn the_express_limit_balances_delay_and_bytes() {
    // Half a round trip less, (N-1)S instead of 2(N-1)/N S: for four, a third of a BDP; a
    // little more, since owners also wait for whole segments.
    let fabric = simple(&[300; 4], 60, |_, _| Some(300));
    let plan = plan::make_plan(&fabric).expect("small");
    let most = plan.express_limit().expect("an express tree").get() as f64;
    let third = 300e6 / 8.0 * 0.060 / 3.0;
    assert!((1.0..1.4).contains(&(most / third)), "{most}: {}", plan.reason);
}

/// A pair that large buffers avoid keeps its small share also when only a small buffer is sent.
#[test]
fn a_pair_with_a_small_share_counts_as_slow() {
    let mut found = 0;
    for seed in 0..200 {
        let fabric = wild(&mut SplitMix64(seed), 4, 0);
        let plan = plan::make_plan(&fabric).expect("small");
        let Some(most) = plan.express_limit() else { continue };
        let rates = plan.pair_shares(&fabric);
        let tree = plan.trees.last().expect("trees");
        for (one, other) in tree.edges() {
            let ends = (fabric.gateway(one).region, fabric.gateway(other).region);
            let Some(link) = fabric.link(ends.0, ends.1) else { continue };
            let held = rates[&(one, other)].rate_over(link.rate);
            let alone = most.get() as f64 / held.bytes_per_second();
            assert!(seconds(&fabric, &plan, most.get()) >= alone, "seed {seed}");
            found += 1;
        }
    }
    assert!(found > 100, "{found} pairs");
}
