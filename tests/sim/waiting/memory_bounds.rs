//! Gateways hold no more memory than planned, whichever rank, gateway or link is slow.

use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, outcomes, post_all};
use scenarios::lab::expected::expected;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{JOB, simulate, simulated_address};
use units::{BitRate, ByteCount, Span};
use wan_sim::LinkSpec;

const RATE: BitRate = BitRate::from_bits_per_second(200_000_000);
const ONE_WAY: Span = Span::from_ms(20);

/// Regions of gateways with these ranks, whose ports are as fast as all links.
fn mesh(regions: &[&[u32]]) -> Mesh {
    let gateways =
        |ranks: &&[u32]| ranks.iter().map(|ranks| MeshGateway::with_port(*ranks, RATE)).collect();
    let mut mesh = Mesh::of_gateways(regions.iter().map(gateways).collect());
    for link in &mut mesh.links {
        (link.rate, link.rtt) = (RATE, ONE_WAY + ONE_WAY);
    }
    mesh.memory = ByteCount::new(4 << 20);
    mesh
}

/// Runs an all-reduce of `mib` MiB while one direction of a link has a tenth of its rate. Returns
/// the most that each gateway held, and its limit.
fn held(mesh: &Mesh, mib: u64, from: u16, to: u16) -> Vec<(u64, u64)> {
    let case = Case::new(ReduceOp::Sum, Dtype::I32, mib << 18, 1);
    let (fabric, plan) = (mesh.fabric(), mesh.plan());
    let held = simulate(async {
        let lab = mesh.start(1).await;
        let clients = lab.clients((2 * mib + 2) << 20).await;
        let slow = BitRate::from_bits_per_second(RATE.bits_per_second() / 10);
        let slow = LinkSpec::new(slow, ONE_WAY).expect("a link");
        let [from, to] = [from, to].map(|id| simulated_address(GatewayId(id)).ip());
        lab.net.set_spec(from, to, slow).expect("a link");
        let mut operations = post_all(&clients, &case).await;
        let expected = expected(&fabric, &plan, &case);
        for outcome in outcomes(&mut operations).await {
            assert!(outcome.expect("a result") == expected, "other bits");
        }
        let metrics = fabric.gateway_ids().map(|id| lab.metrics(id));
        let most = metrics.map(|metrics| metrics.job_metrics(JOB).scratch_bytes_max.get());
        most.map(|most| u64::try_from(most).expect("not negative")).collect::<Vec<_>>()
    });
    let owner_trees = plan.owner_trees(&fabric);
    let bound = |id| plan.memory_bound(&fabric, &owner_trees, id, mesh.memory).total().get();
    let may = fabric.gateway_ids().map(bound);
    held.into_iter().zip(may).collect()
}

/// Owners wait for one of the others.
#[test]
fn owners_hold_at_most_windows_and_partial_memory() {
    let held = held(&mesh(&[&[2], &[2], &[2], &[1]]), 32, 0, 1);
    println!("{held:?}");
    assert!(held.iter().all(|(held, may)| held <= may), "{held:?}");
    assert!(held.iter().any(|(held, may)| 4 * held > *may), "{held:?}");
}

/// Four regions in a row.
fn chain() -> Mesh {
    mesh(&[&[1], &[1], &[1], &[1]]).without(0, 2).without(0, 3).without(1, 3)
}

/// Data from one side cannot go on to the other.
#[test]
fn relays_below_a_slow_link_hold_one_window() {
    let held = held(&chain(), 48, 1, 2);
    println!("{held:?}");
    assert!(held.iter().all(|(held, may)| held <= may), "{held:?}");
    let (relay, may) = held[1];
    assert!(may < 32 << 20 && relay > may / 4, "{held:?}");
}

/// A large buffer fills for seconds a relay's window, the unsolicited window of a link or LAN, or
/// the memory for partials.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn small_buffers_do_not_wait_for_a_large_one() {
    let near = || {
        let mut mesh = chain();
        mesh.links.iter_mut().for_each(|link| link.rtt = Span::from_ms(20));
        mesh
    };
    for (what, mesh) in [
        ("relays", chain()),
        ("relays, nearer", near()),
        ("two gateways each", mesh(&[&[1, 1], &[1, 1]])),
        ("several ranks each", mesh(&[&[2], &[3]])),
    ] {
        // 4 KiB take two hops to the middle of the row and three back, and a segment at each; 1 MiB
        // takes a quarter of that time at each hop.
        for (elements, within) in [(1 << 10, 300), (256 << 10, 600)] {
            smaller_behind_large(what, &mesh, elements, Span::from_ms(within));
        }
    }
}

fn smaller_behind_large(what: &str, mesh: &Mesh, elements: u64, within: Span) {
    let large = Case::new(ReduceOp::Sum, Dtype::I32, 48 << 18, 1);
    let small = Case::new(ReduceOp::Sum, Dtype::I32, elements, 2);
    let ranks = mesh.fabric().world_size();
    simulate(async {
        let lab = mesh.start(1).await;
        let clients = lab.clients(110 << 20).await;
        let mut before = post_all(&clients, &large).await;
        lab.sleep(Span::from_ms(700)).await;
        let posted = lab.host.now();
        let mut behind = post_all(&clients, &small).await;
        for outcome in outcomes(&mut behind).await {
            assert!(outcome.expect("a result") == small.in_any_order(ranks), "other bits");
        }
        let small_took = lab.host.now().since(posted);
        for outcome in outcomes(&mut before).await {
            assert!(outcome.expect("a result") == large.in_any_order(ranks), "other bits");
        }
        let large_took = lab.host.now().since(posted);
        println!("{what}: {elements} in {small_took}, the large one {large_took}");
        assert!(small_took < within, "{what}: {elements} in {small_took}");
        assert!(large_took > Span::from_secs(1), "{what}: nothing to wait for");
    });
}
