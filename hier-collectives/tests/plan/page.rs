//! The page docs/algorithms.md describes the plans as they are.

use crate::fabrics::{simple, unlike};
use hier_collectives::buffer_part;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::baseline;
use hier_collectives::plan::{self, Operation, Plan, Tree, TreeDirection};
use hier_collectives::topology::Fabric;
use units::ByteCount;

/// Crossings from the last contribution to the last result; one gateway for each region here.
fn hops_of(tree: &Tree, operation: Operation) -> usize {
    let depth = |id: &GatewayId| {
        let (mut at, mut depth) = (*id, 0);
        while let Some(parent) = tree.parents.get(&at) {
            (at, depth) = (*parent, depth + 1);
        }
        (at, depth)
    };
    let below = |top: &GatewayId| {
        let deep = tree.parents.keys().map(depth).filter(|(at, _)| at == top);
        deep.map(|(_, depth)| depth).max().unwrap_or(0)
    };
    if !operation.has_up_phase() || !operation.has_down_phase() {
        return below(&tree.roots[0]);
    }
    let ready = |top: &GatewayId| {
        let others = tree.roots.iter().filter(|other| *other != top);
        others.map(|other| below(other) + 1).max().unwrap_or(0).max(below(top))
    };
    tree.roots.iter().map(|top| ready(top) + below(top)).max().unwrap_or(0)
}

fn row(name: &str, fabric: &Fabric, operation: Operation, bytes: u64) -> String {
    row_of(name, fabric, plan::make_plan(fabric).expect("small"), operation, bytes)
}

fn row_of(name: &str, fabric: &Fabric, plan: Plan, operation: Operation, bytes: u64) -> String {
    let held = plan.rerooted_for(fabric, operation);
    let carried = if operation.has_data() { bytes } else { 0 };
    let used = held.trees.iter().zip(buffer_part::divide_into_buffer_parts(&held, carried));
    let used: Vec<&Tree> =
        used.filter(|(_, part)| part.segment_count() > 0).map(|(tree, _)| tree).collect();
    let (mut hops, mut before) = (0, 0);
    for tree in &used {
        before = match tree.direction {
            TreeDirection::Both => hops_of(tree, operation),
            TreeDirection::Partials => hops_of(tree, Operation::Reduce { to: tree.roots[0] }),
            TreeDirection::Results => {
                before + hops_of(tree, Operation::Broadcast { from: tree.roots[0] })
            }
        };
        hops = hops.max(before);
    }
    let express = if used[0].is_express() { ", express" } else { "" };
    let forecast = plan.forecast(fabric, operation, ByteCount::new(bytes));
    let times = |bytes: u64, of: u64| {
        let text = format!("{:.2}", bytes as f64 / of as f64);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let out: Vec<u64> = forecast.gateways.iter().map(|load| load.wan_out.get()).collect();
    let each: Vec<String> = out.iter().map(|sent| times(*sent, bytes)).collect();
    let links: u64 = forecast.links.iter().map(|link| link.bytes.get()).sum();
    assert_eq!(links, out.iter().sum::<u64>(), "{name}");
    format!(
        "| {name} | {} | {}{express} | {hops} | {} | {} |",
        operation.name(),
        plan.algorithm.name(),
        each.join(", "),
        times(links, bytes)
    )
}

fn control(name: &str, fabric: &Fabric, plan: fn(&Fabric) -> Plan, bytes: u64) -> String {
    row_of(name, fabric, plan(fabric), Operation::AllReduce, bytes)
}

#[test]
fn the_page_on_algorithms_describes_the_plans() {
    let all = |ports: &[u64]| simple(ports, 60, |_, _| Some(10_000));
    let star = simple(&[300, 900, 300, 300], 60, |a, b| (a == 1 || b == 1).then_some(300));
    let chain = simple(&[300; 4], 60, |a, b| (b == a + 1).then_some(300));
    let gap = simple(&[400, 300, 300, 250, 250], 60, |a, b| ((a, b) != (3, 4)).then_some(1000));
    let (two, three, uneven) = (all(&[500; 2]), all(&[500; 3]), all(&[400, 250, 100, 100]));
    let apart = unlike(&[(1000, 500), (1000, 500), (500, 1000), (500, 1000)], 1000);
    let (four, six) = (all(&[500; 4]), all(&[500; 6]));
    let (up, down) = (GatewayId(0), GatewayId(0));
    let large = 3 << 40;
    let rows = [
        row("two equal regions", &two, Operation::AllReduce, large),
        row("three equal regions", &three, Operation::AllReduce, large),
        row("ports 400, 250, 100, 100", &uneven, Operation::AllReduce, large),
        row(
            "ports 1000 out and 500 in, twice, and the other way round, twice",
            &apart,
            Operation::AllReduce,
            large,
        ),
        row("a star of four regions", &star, Operation::AllReduce, large),
        row("a chain of four regions", &chain, Operation::AllReduce, large),
        row(
            "ports 400, 300, 300, 250, 250, the last two not linked",
            &gap,
            Operation::AllReduce,
            large,
        ),
        row("three equal regions", &three, Operation::AllReduce, 1 << 20),
        row("three equal regions", &three, Operation::Reduce { to: up }, large),
        row("three equal regions", &three, Operation::Broadcast { from: down }, large),
        row("three equal regions", &three, Operation::Barrier, large),
        row("one region", &all(&[500]), Operation::AllReduce, large),
        control("ports 400, 250, 100, 100: even", &uneven, baseline::even_baseline_plan, large),
        control("four equal regions: ring", &four, baseline::ring_baseline_plan, large),
        control("six equal regions: ring", &six, baseline::ring_baseline_plan, large),
        control(
            "four equal regions: halving and doubling",
            &four,
            baseline::halving_doubling_baseline_plan,
            large,
        ),
        control(
            "six equal regions: halving and doubling",
            &six,
            baseline::halving_doubling_baseline_plan,
            large,
        ),
    ];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/algorithms.md");
    let page = std::fs::read_to_string(path).expect("readable");
    // All rows of the section, and no others: a row that no plan makes any more is as wrong as one
    // that is missing.
    let counted = page.split_once("\n## Counted\n").expect("the section").1;
    let section = counted.split("\n## ").next().unwrap_or(counted);
    let table = section.lines().skip_while(|line| !line.starts_with("|---"));
    let table: Vec<&str> = table.skip(1).take_while(|line| line.starts_with('|')).collect();
    let beside = section.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(table, rows, "the table of docs/algorithms.md, and what plans do");
    assert_eq!(beside, table.len() + 2, "one table, with its head");
}
