//! Efficiency of the production session on fabrics of unequal ports and links.

use gateway::simulate::{SimulatedTraffic, Simulation, SimulationSpec, TimedCollective};
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::plan::{self, Operation, Plan, baseline};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, Link, WanPort,
};
use scenarios::collectives::baselines::{self, Algorithm};
use scenarios::collectives::batch::{Case, outcomes, post_all};
use scenarios::lab::expected::expected;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{mbit, simulate};
use units::{ByteCount, Fraction, Span};

/// Returns a fabric of regions with these ports in Mbit/s, each pair `pair` Mbit/s wide, at RTT 60
/// ms.
fn mesh(ports: &[u64], pair: u64) -> Fabric {
    let regions: Vec<_> = ports.iter().map(|port| vec![(1, *port)]).collect();
    mesh_of(&regions, pair, None)
}

/// Returns a fabric of regions whose gateways have these ranks and ports, and one pair of regions
/// without a link.
pub(super) fn mesh_of(
    regions: &[Vec<(u32, u64)>],
    pair: u64,
    missing: Option<(usize, usize)>,
) -> Fabric {
    let (regions, links) = mesh_specs(regions, pair, missing);
    Fabric::new("shapes", 1500, regions, links).expect("valid")
}

/// Returns regions and links of a fabric: each region a list of gateways, with ranks and port in
/// Mbit/s.
fn mesh_specs(
    regions: &[Vec<(u32, u64)>],
    pair: u64,
    missing: Option<(usize, usize)>,
) -> (Vec<FabricRegionSpec>, Vec<FabricLinkSpec>) {
    let region = |(index, gateways): (usize, &Vec<(u32, u64)>)| {
        let gateway = |(number, (ranks, port)): (usize, &(u32, u64))| {
            let wan = Some(WanPort { egress: mbit(*port), ingress: mbit(*port) });
            FabricGatewaySpec::new(format!("g{index}-{number}"), *ranks, wan)
        };
        FabricRegionSpec {
            name: format!("r{index}"),
            speeds: vec![1.0; gateways.iter().map(|(ranks, _)| *ranks as usize).sum()],
            gateways: gateways.iter().enumerate().map(gateway).collect(),
        }
    };
    let mut links = Vec::new();
    for one in 0..regions.len() {
        for other in (one + 1..regions.len()).filter(|other| missing != Some((one, *other))) {
            links.push(FabricLinkSpec {
                between: (format!("r{one}"), format!("r{other}")),
                rate: mbit(pair),
                rtt: Span::from_ms(60),
                loss: Fraction::default(),
            });
        }
    }
    (regions.iter().enumerate().map(region).collect(), links)
}

/// Runs one all-reduce; returns its seconds and its efficiency. Each link must carry the bytes of
/// the plan.
fn all_reduce(fabric: &Fabric, plan: Plan, size: ByteCount, seed: u64) -> (f64, f64) {
    collective(fabric, plan, Pattern::AllReduce, size, seed)
}

/// Runs one collective and checks the bytes on each link.
fn collective(
    fabric: &Fabric,
    plan: Plan,
    pattern: Pattern,
    size: ByteCount,
    seed: u64,
) -> (f64, f64) {
    let operation = pattern.over_gateways(fabric).expect("a rank of the fabric");
    let forecast = plan.forecast(fabric, operation, size);
    let (seconds, links) = taken(fabric, plan, pattern, size, seed);
    for link in &links {
        let planned =
            forecast.links.iter().find(|load| (load.from, load.to) == (link.from, link.to));
        let planned = planned.expect("a link of the fabric").bytes.get();
        assert_eq!(link.payload.get(), planned, "{link:?}");
        let full_packets = planned as f64 / bound::payload_rate_fraction(fabric.mtu());
        let off = link.counters.ip_bytes as f64 / full_packets - 1.0;
        assert!(planned == 0 || off.abs() < 0.02, "{off:.4} over plan: {link:?}");
        assert_eq!(link.counters.drops_queue, 0, "{link:?}");
    }
    let eta = forecast.bound.as_secs_f64() / seconds;
    println!("{seconds:.4} s, predicted {}, eta {eta:.4}", forecast.predicted);
    (seconds, eta)
}

/// Runs one collective over idle links; returns its seconds and the counters of each link.
fn taken(
    fabric: &Fabric,
    plan: Plan,
    pattern: Pattern,
    bytes: ByteCount,
    seed: u64,
) -> (f64, Vec<SimulatedTraffic>) {
    simulate(async {
        let deployment = SimulationSpec::of_fabric(fabric.clone(), plan).expect("can be simulated");
        let simulation = Simulation::start(deployment, bytes, seed).await.expect("starts");
        let post = TimedCollective { after: Span::ZERO, bytes, pattern };
        let done = simulation.run_collectives(&[post], Dtype::F32, || {}).await.expect("a result");
        (done[0].as_secs_f64(), simulation.link_traffic().expect("links"))
    })
}

/// Returns 20 bandwidth-delay products of a port in Mbit/s.
fn twenty_bdp(port: u64) -> ByteCount {
    let bdp = mbit(port).bytes_per_second() * 0.060;
    ByteCount::new((20.0 * bdp) as u64 / 64 * 64)
}

#[test]
fn unequal_ports_are_filled() {
    let fabric = mesh(&[1000, 600, 300], 1000);
    let plan = plan::make_plan(&fabric).expect("a plan");
    let (_, eta) = all_reduce(&fabric, plan, twenty_bdp(300), 1);
    assert!(eta >= 0.93, "eta {eta:.4}");
}

/// Two regions send at twice their ingress rate, two the reverse.
#[test]
fn ports_with_unequal_directions_are_filled() {
    let out = [1000, 500, 1000, 500].map(|port| vec![(1, port)]);
    let (mut regions, links) = mesh_specs(&out, 1000, None);
    for (region, inward) in regions.iter_mut().zip([500, 1000, 500, 1000]) {
        region.gateways[0].wan.as_mut().expect("a port").ingress = mbit(inward);
    }
    let fabric = Fabric::new("shapes", 1500, regions, links).expect("valid");
    let plan = plan::make_plan(&fabric).expect("a plan");
    let (_, eta) = all_reduce(&fabric, plan, twenty_bdp(500), 1);
    assert!(eta >= 0.9, "eta {eta:.4}");
}

/// Rooted at another region, a tree for partials alone loads the other direction of an edge.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn reduce_and_broadcast_over_asymmetric_trees_take_the_forecast_time() {
    let out = [1000, 500, 500].map(|port| vec![(1, port)]);
    let (mut regions, links) = mesh_specs(&out, 1000, None);
    for (region, inward) in regions.iter_mut().zip([500, 990, 510]) {
        region.gateways[0].wan.as_mut().expect("a port").ingress = mbit(inward);
    }
    let fabric = Fabric::new("shapes", 1500, regions, links).expect("valid");
    let plan = plan::make_plan(&fabric).expect("a plan");
    assert!(plan.has_separate_trees(), "{}", plan.reason);
    let size = twenty_bdp(500);
    for rank in (0..3).map(RankId) {
        for pattern in [Pattern::Reduce { to: rank }, Pattern::Broadcast { from: rank }] {
            let operation = pattern.over_gateways(&fabric).expect("a rank of the fabric");
            let forecast = plan.forecast(&fabric, operation, size);
            let (predicted, bound) =
                (forecast.predicted.as_secs_f64(), forecast.bound.as_secs_f64());
            let (seconds, _) = taken(&fabric, plan.clone(), pattern, size, 1);
            let text = format!(
                "{pattern:?}: {seconds:.3} s, {predicted:.3} s predicted, {bound:.3} s at best"
            );
            println!("{text}");
            assert!(seconds < 1.15 * predicted && seconds < 2.5 * bound, "{text}");
        }
    }
}

/// Runs every operation but an all-reduce over so many regions.
fn check_operations(regions: u64) {
    let last = RankId(2 * regions as u32 - 1);
    let of_blocks = [
        Pattern::AllGather,
        Pattern::ReduceScatter,
        Pattern::AllToAll,
        Pattern::Gather { to: RankId(3) },
        Pattern::Scatter { from: last },
    ];
    for pattern in of_blocks {
        check_operation(regions, 250, pattern, 0.93);
    }
    // From three regions on the root's peers are two hops away, which is less of a wider port's time.
    for pattern in [Pattern::Reduce { to: RankId(3) }, Pattern::Broadcast { from: last }] {
        check_operation(regions, 500, pattern, 0.94);
    }
}

/// Runs an operation over so many regions of two ranks each, behind ports of so many Mbit/s. Each link
/// must carry the bytes of the forecast, which are those that must cross it.
fn check_operation(regions: u64, port: u64, pattern: Pattern, least: f64) {
    let gateways = vec![vec![(2, port)]; regions as usize];
    let (specs, links) = mesh_specs(&gateways, 2 * port, None);
    let fabric = Fabric::new("shapes", 1500, specs, links).expect("valid");
    let plan = plan::make_plan(&fabric).expect("a plan");
    // Whole blocks of 64 bytes for two to four regions.
    let size = ByteCount::new(twenty_bdp(port).get() / 1536 * 1536);
    let operation = pattern.over_gateways(&fabric).expect("a rank of the fabric");
    let forecast = plan.forecast(&fabric, operation, size);
    let sent: u64 = forecast.links.iter().map(|link| link.bytes.get()).sum();
    // What a region has is needed once in each other one, or what a rank has but its region's part.
    let beyond = size.get() * (regions - 1);
    let must = match pattern {
        Pattern::AllGather | Pattern::ReduceScatter => beyond,
        Pattern::Reduce { .. } | Pattern::Broadcast { .. } => beyond,
        Pattern::AllToAll => 2 * beyond,
        _ => beyond / regions,
    };
    assert_eq!(sent, must, "{pattern}");
    let (seconds, eta) = collective(&fabric, plan, pattern, size, 1);
    let predicted = forecast.predicted.as_secs_f64();
    let text = format!("{pattern}: {seconds:.3} s, {predicted:.3} s predicted, eta {eta:.3}");
    assert!((0.95..1.1).contains(&(seconds / predicted)), "{text}");
    assert!(eta >= least, "{text}");
}

/// Runs an operation on 20 BDP of a port of `port` Mbit/s, and checks its efficiency.
pub(super) fn check_filled(fabric: &Fabric, pattern: Pattern, port: u64, least: f64) {
    let plan = plan::make_plan(fabric).expect("a plan");
    let even = 64 * u64::from(fabric.world_size());
    let size = ByteCount::new(twenty_bdp(port).get() / even * even);
    let operation = pattern.over_gateways(fabric).expect("a rank of the fabric");
    let forecast = plan.forecast(fabric, operation, size);
    let (seconds, links) = taken(fabric, plan, pattern, size, 1);
    for link in &links {
        let planned = forecast.links.iter().find(|l| (l.from, l.to) == (link.from, link.to));
        assert_eq!(Some(link.payload), planned.map(|load| load.bytes), "{link:?}");
    }
    let eta = forecast.bound.as_secs_f64() / seconds;
    println!("{pattern}: {seconds:.3} s, predicted {}, eta {eta:.3}", forecast.predicted);
    assert!(eta >= least, "{pattern}: eta {eta:.3}");
}

#[test]
fn every_operation_fills_the_ports_of_two_regions() {
    check_operations(2);
}

#[test]
fn every_operation_fills_the_ports_of_three_regions() {
    check_operations(3);
}

#[test]
fn every_operation_fills_the_ports_of_four_regions() {
    check_operations(4);
}

#[test]
fn unequal_shares_beat_equal_ones() {
    let fabric = mesh(&[400, 250, 100, 100], 400);
    let size = twenty_bdp(100);
    let plan = plan::make_plan(&fabric).expect("a plan");
    let (uneven, eta) = all_reduce(&fabric, plan, size, 1);
    let (even, _) = all_reduce(&fabric, baseline::even_baseline_plan(&fabric), size, 1);
    assert!(even / uneven >= 1.4, "{even} s with equal shares, {uneven} s without");
    assert!(eta >= 0.93, "eta {eta:.4}");
}

#[test]
fn all_pairs_of_a_mesh_are_filled() {
    let fabric = mesh(&[1000; 4], 100);
    let plan = plan::make_plan(&fabric).expect("a plan");
    let (_, eta) = all_reduce(&fabric, plan, twenty_bdp(100), 1);
    assert!(eta >= 0.9, "eta {eta:.4}");
}

#[test]
fn a_hierarchy_sends_each_byte_once_and_flat_algorithms_more() {
    let size = ByteCount::new(4 << 20);
    let out = |way, sites: &[u32]| {
        let taken = baselines::all_reduce(way, sites, size, 1).expect("a result");
        println!("{sites:?} {}: {taken:?}", way.name());
        taken.out.into_iter().fold(0.0, f64::max)
    };
    for sites in [&[3, 3][..], &[2, 2, 2], &[1, 1, 1, 1]] {
        let regions = sites.len() as f64;
        let ranks = sites.iter().sum::<u32>() as f64;
        let least = 2.0 * (regions - 1.0) / regions;
        let hierarchy = out(Algorithm::Hierarchy, sites);
        assert!(hierarchy <= 1.02 * least, "{sites:?}: {hierarchy}");
        let ring = out(Algorithm::Ring, sites);
        let of_ring = 2.0 * (ranks - 1.0) / ranks;
        assert!((ring / of_ring - 1.0).abs() < 0.02, "{sites:?}: {ring}, not {of_ring}");
    }
    let halving = out(Algorithm::HalvingDoubling, &[3, 3]);
    assert!(halving > 1.5, "{halving}");
}

/// Floats match to the bit in the order of the trees, integers in any order.
#[test]
fn a_hierarchy_and_flat_algorithms_give_right_sums() {
    for sites in [&[3, 2][..], &[2, 1, 3]] {
        for way in [Algorithm::Hierarchy, Algorithm::Ring, Algorithm::HalvingDoubling] {
            let wrong = baselines::wrong_sums(way, sites, 1).expect("results");
            assert!(wrong.is_empty(), "{sites:?} {}: {wrong:?}", way.name());
        }
    }
}

#[test]
fn a_mesh_of_four_beats_a_one_way_ring() {
    // Twenty BDP of a link.
    let size = ByteCount::new(30_000_000);
    let seconds = |way| baselines::all_reduce(way, &[1; 4], size, 1).expect("a result").seconds;
    let [hierarchy, one_way, both_ways] =
        [Algorithm::Hierarchy, Algorithm::OneWayRing, Algorithm::Ring].map(seconds);
    let text = format!("{hierarchy:.3} s, a ring {one_way:.3} s, one both ways {both_ways:.3} s");
    println!("{text}");
    assert!(one_way >= 2.5 * hierarchy, "{text}");
    assert!(both_ways >= 1.5 * hierarchy, "{text}");
}

#[test]
fn distant_ports_are_filled_with_a_pair_missing() {
    let ports = [900, 350, 350, 120, 80];
    let regions: Vec<_> = [8, 1, 3, 2, 5].into_iter().zip(ports).map(|r| vec![r]).collect();
    for missing in [(1, 2), (3, 4)] {
        let fabric = mesh_of(&regions, 1000, Some(missing));
        let plan = plan::make_plan(&fabric).expect("a plan");
        let (_, eta) = all_reduce(&fabric, plan, twenty_bdp(80), 1);
        assert!(eta >= 0.9, "without {missing:?}: eta {eta:.4}");
    }
}

#[test]
fn gateways_of_a_region_fill_their_ports_together() {
    let others = [vec![(1, 300)], vec![(1, 100), (3, 100)]];
    // Without the last pair the first region passes on what the others exchange.
    for (first, missing) in [([200, 100], None), ([300, 150], Some((1, 2)))] {
        let first = vec![(2, first[0]), (1, first[1])];
        let regions = [&[first][..], &others].concat();
        let fabric = mesh_of(&regions, 1000, missing);
        let plan = plan::make_plan(&fabric).expect("a plan");
        let (_, eta) = all_reduce(&fabric, plan, twenty_bdp(200), 1);
        assert!(eta >= 0.9, "without {missing:?}: eta {eta:.4}");
    }
}

/// Each gateway has two ranks, whose partials take four times the memory available for them.
#[test]
fn all_owners_ports_are_filled_with_little_memory_for_partials() {
    let mut mesh = Mesh::of_gateways(vec![vec![MeshGateway::with_port(2, mbit(200))]; 4]);
    for link in &mut mesh.links {
        (link.rate, link.rtt) = (mbit(200), Span::from_ms(40));
    }
    mesh.memory = ByteCount::new(4 << 20);
    // Of four bytes each.
    let elements = mesh.memory.get();
    let case = Case::new(ReduceOp::Sum, Dtype::I32, elements, 1);
    let fabric = mesh.fabric();
    let seconds = simulate(async {
        let lab = mesh.start(1).await;
        let clients = lab.clients(40 << 20).await;
        // Until all lanes are up.
        lab.sleep(Span::from_secs(1)).await;
        let begin = lab.host.now();
        let mut operations = post_all(&clients, &case).await;
        let outcomes = outcomes(&mut operations).await;
        let seconds = lab.host.now().since(begin).as_secs_f64();
        let expected = expected(&fabric, &mesh.plan(), &case);
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            assert!(outcome.expect("a result") == expected, "rank {rank} has other bits");
        }
        seconds
    });
    let bytes = ByteCount::new(case.elements * case.dtype.size());
    let eta = bound::all_reduce_lower_bound(&fabric, bytes).as_secs_f64() / seconds;
    println!("{seconds:.4} s, eta {eta:.4}");
    assert!(eta >= 0.8, "eta {eta:.4}");
}

/// Returns the seconds of an all-reduce by the express tree alone, and without the express tree.
fn by_express_or_not(fabric: &Fabric, plan: &Plan, size: ByteCount) -> [f64; 2] {
    [size, ByteCount::default()].map(|express_bytes| {
        let plan = Plan { express_bytes, ..plan.clone() };
        let predicted = plan.forecast(fabric, Operation::AllReduce, size).predicted;
        let (seconds, _) = taken(fabric, plan, Pattern::AllReduce, size, 1);
        println!("{size}, express up to {express_bytes}: {seconds:.4} s, predicted {predicted}");
        seconds
    })
}

#[test]
fn a_mebibyte_over_a_long_link_prefers_one_hop() {
    let near = mesh(&[10_000; 3], 10_000);
    let far = near.links().iter().map(|link| Link { rtt: Span::from_ms(100), ..link.clone() });
    let fabric = near.with_links(far.collect());
    let (plan, size) = (plan::make_plan(&fabric).expect("a plan"), ByteCount::new(1 << 20));
    assert!(plan.uses_express(size.get()), "{}", plan.reason);
    let [express, others] = by_express_or_not(&fabric, &plan, size);
    assert!(express < 0.06 && others > 0.1, "{express} s, {others} s");
}

#[test]
fn the_express_limit_is_where_one_hop_stops_winning() {
    let fabric = mesh(&[200; 3], 200);
    let plan = plan::make_plan(&fabric).expect("a plan");
    let most = plan.express_bytes.get();
    let [express, others] = by_express_or_not(&fabric, &plan, ByteCount::new(most / 2));
    assert!(express < 0.95 * others, "half of {most}: {express} s, {others} s");
    let [express, others] = by_express_or_not(&fabric, &plan, ByteCount::new(2 * most));
    assert!(others < 0.95 * express, "twice {most}: {express} s, {others} s");
}
