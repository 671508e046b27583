//! Gateways name the rank, region or link that delays the others.

use gateway::client::{BatchShare, Client};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, Shape, simulate, simulated_address};
use std::sync::Arc;
use units::{BitRate, Span};
use wan_sim::LinkSpec;

/// A gateway with one rank.
const GATEWAY: MeshGateway =
    MeshGateway { ranks: 1, port: Some(BitRate::from_bits_per_second(1_000_000_000)) };

/// Runs a step: each rank computes for its time, posts 8 samples, and waits for the result.
async fn step(lab: &Lab, clients: &[Client], compute_ms: &[u64]) {
    let begin = lab.host.now();
    let mut order: Vec<(u64, &Client)> = compute_ms.iter().copied().zip(clients).collect();
    order.sort_by_key(|(ms, _)| *ms);
    let mut operations = Vec::new();
    for (ms, client) in order {
        lab.host.sleep_until(begin + Span::from_ms(ms)).await;
        let tensor = client.allocate(Dtype::F32, 1 << 14).expect("room");
        let timeout = Span::from_secs(60);
        let posted = client.all_reduce_with(tensor, ReduceOp::Avg, 8.0, timeout).await;
        operations.push(posted.expect("posted"));
    }
    for operation in &mut operations {
        operation.ready().await.expect("a result");
    }
}

/// Returns the stragglers that gateways name after `steps` steps, as `kind name`.
async fn named(lab: &Lab, clients: &[Client], compute_ms: &[u64], steps: u32) -> Vec<String> {
    for _ in 0..steps {
        step(lab, clients, compute_ms).await;
    }
    named_now(lab).await
}

/// Returns the stragglers that gateways name now, as `kind name`.
async fn named_now(lab: &Lab) -> Vec<String> {
    let mut said = Vec::new();
    for gateway in lab.fabric.gateway_ids() {
        let straggler = lab.status(gateway).await.jobs[0].straggler.clone();
        said.push(straggler.map_or("nobody".to_owned(), |s| format!("{} {}", s.kind, s.name)));
    }
    said
}

#[test]
fn slow_ranks_and_regions_are_named_within_three_steps() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), 1).await;
        let clients = lab.clients(16 << 20).await;
        let even = named(&lab, &clients, &[300, 300, 300], 4).await;
        assert_eq!(even, ["nobody", "nobody"]);
        let rank = named(&lab, &clients, &[300, 500, 300], 3).await;
        assert_eq!(rank, ["rank 1", "region east"]);
        let region = named(&lab, &clients, &[300, 300, 500], 3).await;
        assert_eq!(region, ["region west", "rank 2"]);
        let again = named(&lab, &clients, &[300, 300, 300], 1).await;
        assert_eq!(again, ["nobody", "nobody"]);
    });
}

/// The trainers of east leave; the one of west pauses.
#[test]
fn a_straggler_of_before_is_not_shown_as_now() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), 1).await;
        let mut clients = lab.clients(16 << 20).await;
        let said = named(&lab, &clients, &[300, 500, 300], 4).await;
        assert_eq!(said, ["rank 1", "region east"]);
        let east = lab.status(GatewayId(0)).await;
        let straggler = east.jobs[0].straggler.clone().expect("named");
        assert!((0.1..5.0).contains(&straggler.since_seconds), "{straggler:?}");
        assert!(east.jobs[0].ranks.iter().all(|rank| rank.samples_per_second.is_some()));
        let _west = clients.split_off(2);
        drop(clients);
        lab.sleep(Span::from_secs(1)).await;
        let east = lab.status(GatewayId(0)).await;
        assert_eq!(east.jobs[0].straggler, None);
        assert!(east.jobs[0].ranks.iter().all(|rank| rank.samples_per_second.is_none()));
        lab.sleep(Span::from_secs(70)).await;
        assert_eq!(named_now(&lab).await, ["nobody", "nobody"]);
        let west = lab.status(GatewayId(1)).await;
        assert!(west.jobs[0].completed_seconds_ago > Some(70.0), "{west:?}");
    });
}

/// Ranks 0 and 1 are of one region, each at a gateway of its own.
#[test]
fn a_slow_rank_is_named_at_every_gateway() {
    simulate(async {
        let lab = Mesh::of_gateways(vec![vec![GATEWAY, GATEWAY], vec![GATEWAY]]).start(1).await;
        let clients = lab.clients(16 << 20).await;
        for (compute_ms, said) in [
            ([300, 300, 300], ["nobody", "nobody", "nobody"]),
            ([300, 500, 300], ["rank 1", "rank 1", "region a"]),
            ([500, 300, 300], ["rank 0", "rank 0", "region a"]),
            ([300, 300, 500], ["region b", "region b", "rank 2"]),
        ] {
            assert_eq!(named(&lab, &clients, &compute_ms, 3).await, said, "{compute_ms:?}");
        }
    });
}

/// The outer regions learn of each other through the middle one.
#[test]
fn distance_over_others_is_no_lateness() {
    simulate(async {
        let lab = Mesh::of_gateways(vec![vec![GATEWAY]; 3]).without(0, 2).start(1).await;
        let clients = lab.clients(16 << 20).await;
        let even = named(&lab, &clients, &[300, 300, 300], 4).await;
        assert_eq!(even, ["nobody", "nobody", "nobody"]);
        let last = named(&lab, &clients, &[300, 300, 400], 3).await;
        assert_eq!(last, ["region c", "region c", "rank 2"]);
    });
}

/// Runs a step whose gradients are exchanged bucket by bucket while the next one is computed; the
/// first bucket is small.
async fn step_of_buckets(lab: &Lab, clients: &[Client]) {
    let mut operations = Vec::new();
    for elements in [1 << 16; 1].into_iter().chain([1 << 19; 8]) {
        lab.sleep(Span::from_ms(if elements < 1 << 19 { 100 } else { 40 })).await;
        for client in clients {
            let tensor = client.allocate(Dtype::F32, elements).expect("room");
            operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
        }
    }
    for operation in &mut operations {
        operation.ready().await.expect("a result");
    }
}

#[test]
fn a_link_that_becomes_slow_is_named_though_buckets_overlap() {
    simulate(async {
        let mut mesh = Mesh::of_gateways(vec![vec![GATEWAY]; 2]);
        mesh.links[0].rate = BitRate::from_bits_per_second(200_000_000);
        let lab = mesh.start(1).await;
        let clients = lab.clients(128 << 20).await;
        for _ in 0..4 {
            step_of_buckets(&lab, &clients).await;
            assert_eq!(named_now(&lab).await, ["nobody", "nobody"]);
        }
        let [a, b] = [0, 1].map(|id| simulated_address(GatewayId(id)).ip());
        let half = BitRate::from_bits_per_second(100_000_000);
        let half = LinkSpec::new(half, Span::from_ns(mesh.links[0].rtt.ns() / 2)).expect("a link");
        for (from, to) in [(a, b), (b, a)] {
            lab.net.set_spec(from, to, half).expect("a link");
        }
        for _ in 0..3 {
            step_of_buckets(&lab, &clients).await;
        }
        assert_eq!(named_now(&lab).await, ["link a-b", "link a-b"]);
    });
}

#[test]
fn a_link_with_a_longer_path_is_named_until_restored() {
    simulate(async {
        let mut mesh = Mesh::of_gateways(vec![vec![GATEWAY]; 2]);
        mesh.links[0].rate = BitRate::from_bits_per_second(200_000_000);
        let (rate, rtt) = (mesh.links[0].rate, mesh.links[0].rtt);
        let lab = mesh.start(1).await;
        let clients = lab.clients(128 << 20).await;
        // The plan is known after fifty spans: the link stays named beyond them.
        for (times, steps, seen) in [
            (1, 4, "nobody"),
            (5, 3, "link a-b"),
            (1, 3, "nobody"),
            (5, 3, "link a-b"),
            (5, 16, "link a-b"),
            (1, 3, "nobody"),
        ] {
            let delay = Span::from_ns(rtt.ns() / 2 * times);
            let spec = LinkSpec::new(rate, delay).expect("a link");
            let [a, b] = [0, 1].map(|id| simulated_address(GatewayId(id)).ip());
            for (from, to) in [(a, b), (b, a)] {
                lab.net.set_spec(from, to, spec).expect("a link");
            }
            for _ in 0..steps {
                step_of_buckets(&lab, &clients).await;
            }
            assert_eq!(named_now(&lab).await, [seen, seen], "{times} times as long");
        }
    });
}

#[test]
fn speeds_are_measured_between_a_result_and_the_next_post() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), 1).await;
        let clients = lab.clients(16 << 20).await;
        named(&lab, &clients, &[200, 400, 400], 12).await;
        let ranks = lab.status(GatewayId(0)).await.jobs[0].ranks.clone();
        for (rank, due) in ranks.iter().zip([8.0 / 0.2, 8.0 / 0.4]) {
            let speed = rank.samples_per_second.expect("measured");
            assert!((speed / due - 1.0).abs() < 0.15, "{rank:?}, {due} expected");
        }
    });
}

/// Runs steps in which each rank computes at its own speed, in samples per second. Returns the time
/// of a step, and the number of changes of the split.
async fn train(
    lab: &Lab,
    shares: &mut Vec<BatchShare>,
    speeds: &[f64],
    steps: u32,
) -> (f64, usize) {
    let (begin, mut changes) = (lab.host.now(), 0);
    for _ in 0..steps {
        let mut ends = Vec::new();
        for (mut share, speed) in shares.drain(..).zip(speeds) {
            let computed = Span::from_ns((share.samples() as f64 / speed * 1e9) as u64);
            let until = lab.host.now() + computed;
            let host = Arc::clone(&lab.host);
            ends.push(tokio::spawn(async move {
                host.sleep_until(until).await;
                let changed = share.end_step(computed).await.expect("exchanged");
                (share, changed)
            }));
        }
        let mut all_changed = Vec::new();
        for end in ends {
            let (share, changed) = end.await.expect("no panic");
            shares.push(share);
            all_changed.push(changed);
        }
        assert!(
            all_changed.iter().all(|one| *one == all_changed[0]),
            "ranks differ: {all_changed:?}"
        );
        assert!(shares.iter().all(|share| share.shares() == shares[0].shares()));
        assert_eq!(shares[0].shares().iter().sum::<u64>(), BATCH);
        changes += usize::from(all_changed[0]);
    }
    (lab.host.now().since(begin).as_secs_f64() / f64::from(steps), changes)
}

/// Samples of a global batch.
const BATCH: u64 = 4096;

/// Eight fast ranks and three slow ones: what the speeds predict; then one becomes slow.
#[test]
fn batches_follow_speeds_at_step_boundaries_on_all_ranks() {
    simulate(async {
        let lab = Lab::start(&Shape::new(8, 3), 1).await;
        let clients = lab.clients(16 << 20).await;
        let mut speeds = [[400.0; 8].as_slice(), &[100.0; 3]].concat();
        let of = |speeds: &[f64]| -> Vec<BatchShare> {
            let share = |client: &Client| client.batch_share(BATCH, speeds, &[u64::MAX; 11]);
            clients.iter().map(|client| share(client).expect("splits")).collect()
        };
        let (mut even, mut uneven) = (of(&[1.0; 11]), of(&speeds));
        let (slow, changes) = train(&lab, &mut even, &speeds, 4).await;
        assert_eq!(changes, 0);
        let (fast, _) = train(&lab, &mut uneven, &speeds, 4).await;
        let (predicted, got) = (BATCH as f64 / 11.0 / 100.0 / (BATCH as f64 / 3500.0), slow / fast);
        assert!((got / predicted - 1.0).abs() < 0.1, "{got} times as fast, {predicted} predicted");
        // An even split is changed within five steps.
        let (_, changes) = train(&lab, &mut even, &speeds, 1).await;
        assert_eq!((changes, even[0].shares()), (1, uneven[0].shares()));
        speeds[2] = 200.0;
        let (_, changes) = train(&lab, &mut even, &speeds, 20).await;
        assert_eq!(changes, 1);
        let (last, _) = train(&lab, &mut even, &speeds, 4).await;
        let best = BATCH as f64 / speeds.iter().sum::<f64>();
        // An exchange of speeds takes two delays.
        assert!(last <= 1.02 * best + 0.2, "{last} s a step, {best} s at best");
    });
}
