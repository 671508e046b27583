//! Results equal the reference on every rank with three regions and more, missing links, and
//! several gateways in a region.

use gateway::client::{Client, CollectiveSpec, Operation};
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::{GatewayId, RankId};
use scenarios::collectives::batch::{Case, outcomes, post_all, weight};
use scenarios::lab::expected::expected;
use scenarios::lab::mesh::{EXPRESS_SEGMENTS, Mesh, MeshGateway};
use scenarios::{Lab, mbit, ppm, simulate};
use units::{ByteCount, Span};

/// Posts all cases at once; each must give every rank the expected bits.
async fn check(mesh: &Mesh, clients: &[Client], cases: &[Case]) {
    let (fabric, plan) = (mesh.fabric(), mesh.plan());
    let mut under_way = Vec::new();
    for case in cases {
        under_way.push(post_all(clients, case).await);
    }
    for (case, operations) in cases.iter().zip(&mut under_way) {
        let expected = expected(&fabric, &plan, case);
        for (rank, outcome) in outcomes(operations).await.into_iter().enumerate() {
            let result = outcome.unwrap_or_else(|why| panic!("{mesh:?} {case:?}: {why}"));
            assert!(result == expected, "{mesh:?} {case:?}: rank {rank} has other bits");
        }
    }
}

/// Returns a short and a long case for every dtype and each op that accepts it; a long one exceeds
/// what one express tree takes.
fn every_op() -> Vec<Case> {
    let pairs = pairs();
    let short = |(index, (op, dtype)): (usize, &(ReduceOp, Dtype))| {
        Case::new(*op, *dtype, SHORT[index % SHORT.len()], index as u64)
    };
    let long = |(index, (op, dtype)): (usize, &(ReduceOp, Dtype))| {
        Case::new(*op, *dtype, long(*dtype, index), (pairs.len() + index) as u64)
    };
    let pairs = || pairs.iter().enumerate();
    pairs().map(short).chain(pairs().map(long)).collect()
}

/// Returns every op with each dtype that it accepts.
fn pairs() -> Vec<(ReduceOp, Dtype)> {
    let pairs = Dtype::ALL.into_iter().flat_map(|d| ReduceOp::ALL.map(|op| (op, d)));
    pairs.filter(|(op, dtype)| op.accepts(*dtype)).collect()
}

/// Numbers of elements of short buffers.
const SHORT: [u64; 6] = [1003, 3, 4000, 1, 131, 0];

/// Returns the number of elements of a buffer as large as an express tree takes, and a ragged rest.
fn long(dtype: Dtype, index: usize) -> u64 {
    EXPRESS_SEGMENTS * SEGMENT_BYTES / dtype.size() + 1 + 997 * (index as u64 % 5)
}

fn run(mesh: &Mesh, seed: u64, cases: &[Case]) {
    simulate(async {
        let lab = mesh.start(seed).await;
        let clients = lab.clients(arena(cases)).await;
        check(mesh, &clients, cases).await;
    });
}

/// Returns the bytes of an arena for all cases at once.
fn arena(cases: &[Case]) -> u64 {
    let room = |case: &Case| 2 * (case.elements * case.dtype.size()).next_multiple_of(4096) + 8192;
    cases.iter().map(room).sum()
}

fn small_segments(mesh: Mesh) -> Mesh {
    Mesh { segment: Some(ByteCount::new(SEGMENT_BYTES)), ..mesh }
}

/// 16 KiB, the segments of a plan with many of them.
const SEGMENT_BYTES: u64 = 16 << 10;

#[test]
#[ignore = "long: cargo xtask test --long"]
fn two_to_four_regions_give_every_rank_the_same_bits() {
    let shapes = [&[1, 1][..], &[3, 1], &[1, 1, 1], &[2, 3, 1], &[1, 8, 2, 5]];
    for (seed, ranks) in (1..).zip(shapes) {
        run(&small_segments(Mesh::of_ranks(ranks)), seed, &every_op());
    }
}

#[test]
fn far_and_lossy_links_change_no_bit() {
    let mesh = Mesh { loss: ppm(5000), ..Mesh::of_ranks(&[2, 1, 3]) };
    run(&mesh, 5, &[Case::new(ReduceOp::Sum, Dtype::F32, 1_000_003, 1)]);
}

#[test]
fn a_pair_without_a_link_goes_through_the_others() {
    for (seed, mesh) in [
        (1, Mesh::of_ranks(&[1, 2, 1]).without(0, 1)),
        (2, Mesh::of_ranks(&[1, 2, 1]).without(0, 2)),
        (3, Mesh::of_ranks(&[2, 1, 1, 3]).without(1, 2)),
        (4, Mesh::of_ranks(&[1, 1, 2, 1]).without(0, 2).without(0, 3).without(1, 3)),
    ] {
        run(&small_segments(mesh), seed, &every_op());
    }
}

/// Partials and results take trees of their own.
#[test]
fn ports_that_carry_more_one_way_change_no_bit() {
    let (out, inward) = ([1000, 400, 1000, 400], [400, 1000, 400, 1000]);
    let mesh = Mesh {
        inward: inward.into_iter().map(mbit).enumerate().collect(),
        ..Mesh::of_gateways(out.map(|rate| vec![MeshGateway::with_port(2, mbit(rate))]).to_vec())
    };
    let mesh = small_segments(mesh);
    assert!(mesh.plan().has_separate_trees(), "{}", mesh.plan().reason);
    run(&mesh, 7, &every_op());
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn gateways_share_by_port_and_a_sidecar_owns_nothing() {
    let port = |ranks, rate| MeshGateway::with_port(ranks, mbit(rate));
    let sidecar = MeshGateway::sidecar;
    for (seed, regions) in [
        (1, vec![vec![port(2, 300), port(1, 600)], vec![port(1, 500)]]),
        (2, vec![vec![sidecar(1), port(1, 600)], vec![port(2, 500), port(1, 200), sidecar(2)]]),
        (3, vec![vec![port(1, 300), port(1, 300), port(1, 300)], vec![port(1, 400), port(1, 500)]]),
        (
            4,
            vec![
                vec![sidecar(1), port(1, 600)],
                vec![port(1, 500)],
                vec![port(1, 300), port(2, 400)],
            ],
        ),
        (5, vec![vec![port(1, 100), port(2, 100), port(1, 100)]]),
    ] {
        run(&small_segments(Mesh::of_gateways(regions)), seed, &every_op());
    }
}

#[test]
fn a_sidecar_joins_regions_that_are_not_linked() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let regions = vec![
        vec![MeshGateway::sidecar(1), port(1)],
        vec![port(1)],
        vec![port(1), MeshGateway::sidecar(1)],
    ];
    run(&small_segments(Mesh::of_gateways(regions).without(0, 2)), 1, &every_op());
}

#[test]
fn reductions_broadcasts_and_barriers_over_every_kind_of_tree() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    for (seed, mesh) in [
        (1, Mesh::of_ranks(&[1, 1])),
        (2, Mesh::of_ranks(&[2, 3, 1])),
        (3, Mesh::of_ranks(&[1, 1, 2, 1]).without(0, 2).without(0, 3).without(1, 3)),
        (
            4,
            Mesh::of_gateways(vec![
                vec![port(2), MeshGateway::sidecar(1)],
                vec![port(1), port(1)],
                vec![port(1)],
            ]),
        ),
    ] {
        run_rooted(mesh, seed);
    }
}

#[test]
fn reductions_broadcasts_and_barriers_over_many_ranks() {
    run_rooted(Mesh::of_ranks(&[3, 1]), 5);
    run_rooted(Mesh::of_ranks(&[1, 8, 2, 5]), 6);
}

/// Runs reductions, broadcasts and barriers of every op and dtype, whose roots take turns.
fn run_rooted(mesh: Mesh, seed: u64) {
    let mesh = small_segments(mesh);
    simulate(async {
        let lab = mesh.start(seed).await;
        let clients = lab.clients(64 << 20).await;
        let ranks = lab.fabric.world_size() as usize;
        for (index, case) in every_op().iter().enumerate() {
            let root = RankId((index % ranks) as u32);
            rooted(&mesh, &clients, case, Pattern::Reduce { to: root }).await;
            rooted(&mesh, &clients, case, Pattern::Broadcast { from: root }).await;
            if index % 8 == 0 {
                pass_barrier(&clients).await;
            }
        }
    });
}

async fn rooted(mesh: &Mesh, clients: &[Client], case: &Case, pattern: Pattern) {
    let (fabric, plan) = (mesh.fabric(), mesh.plan());
    let contributions = case.contributions(fabric.world_size());
    let mut operations = Vec::new();
    for (client, contribution) in clients.iter().zip(&contributions) {
        let mut tensor = client.allocate(case.dtype, case.elements).expect("room");
        tensor.write(contribution);
        let weight = weight(client.rank().0);
        let spec = CollectiveSpec { weight, ..CollectiveSpec::new(pattern, case.op) };
        let posted = client.post(tensor, spec).await;
        operations.push(posted.expect("posted"));
    }
    let operation = pattern.over_gateways(&fabric).expect("a rank of the fabric");
    let plan = plan.rerooted_for(&fabric, operation);
    for (rank, outcome) in (0..).map(RankId).zip(outcomes(&mut operations).await) {
        let result = outcome.unwrap_or_else(|why| panic!("{mesh:?} {pattern} {case:?}: {why}"));
        let right = match pattern {
            Pattern::Broadcast { from } => result == *contributions[from.0 as usize],
            Pattern::Reduce { to } => to != rank || result == expected(&fabric, &plan, case),
            _ => false,
        };
        assert!(right, "{mesh:?} {pattern} {case:?}: rank {rank} has other bits");
    }
}

async fn come_to_barrier(client: &Client) -> Operation {
    let tensor = client.allocate(Dtype::U8, 0).expect("room");
    let spec = CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum);
    client.post(tensor, spec).await.expect("posted")
}

async fn pass_barrier(clients: &[Client]) {
    let mut operations = Vec::new();
    for client in clients {
        operations.push(come_to_barrier(client).await);
    }
    for outcome in outcomes(&mut operations).await {
        assert_eq!(outcome, Ok(vec![]));
    }
}

#[test]
fn nobody_passes_a_barrier_alone() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1, 1]).start(3).await;
        let clients = lab.clients(1 << 20).await;
        let (last, early) = clients.split_last().expect("four");
        let mut operations = Vec::new();
        for client in early {
            operations.push(come_to_barrier(client).await);
        }
        for operation in &mut operations {
            tokio::select! {
                biased;
                outcome = operation.ready() => panic!("passed without the last: {outcome:?}"),
                () = lab.sleep(Span::from_secs(20)) => {}
            }
        }
        assert_eq!(last.barrier().await, Ok(()));
        for outcome in outcomes(&mut operations).await {
            assert_eq!(outcome, Ok(vec![]));
        }
    });
}

/// All regions of up to four ranks and three gateways, as the ranks of each gateway.
const REGIONS: [&[u32]; 10] =
    [&[1], &[2], &[1, 1], &[3], &[2, 1], &[1, 1, 1], &[4], &[2, 2], &[1, 3], &[2, 1, 1]];

/// All choices of `regions` entries of [`REGIONS`], regardless of order.
fn choices(regions: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..regions {
        let longer = |shorter: &Vec<usize>| {
            let first = shorter.last().copied().unwrap_or(0);
            (first..REGIONS.len()).map(|next| [&shorter[..], &[next]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// Runs every shape of `regions` regions. The shape's number selects ports, the order of gateways,
/// the sidecar, a missing link, dtype, op and length.
fn every_shape(regions: usize) {
    let pairs = pairs();
    for (number, choice) in choices(regions).into_iter().enumerate() {
        let gateways = |(region, kind): (usize, &usize)| -> Vec<MeshGateway> {
            let mut ranks = REGIONS[*kind].to_vec();
            let count = ranks.len();
            ranks.rotate_left((number + region) / 4 % count);
            let port = |(ranks, index): (u32, usize)| {
                let sidecar = count > 1 && index == (number + region) % 4;
                let rate = || mbit(200 + 100 * ((number + index) as u64 % 4));
                MeshGateway { ranks, port: (!sidecar).then(rate) }
            };
            ranks.into_iter().zip(0..).map(port).collect()
        };
        let mesh = Mesh::of_gateways(choice.iter().enumerate().map(gateways).collect());
        let mesh = if regions > 2 && number % 3 == 0 {
            mesh.without(number % regions, (number + 1) % regions)
        } else {
            mesh
        };
        let [(op, dtype), (other_op, other_dtype)] =
            [number, number + 11].map(|index| pairs[index % pairs.len()]);
        // Not by the pair's number, so that a pair comes with every length.
        let lap = number / pairs.len();
        let two = [
            Case::new(op, dtype, long(dtype, lap), number as u64),
            Case::new(other_op, other_dtype, SHORT[lap % SHORT.len()], number as u64),
        ];
        run(&small_segments(mesh), number as u64, &two);
    }
}

#[test]
fn every_shape_of_two_regions() {
    every_shape(2);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn every_shape_of_three_regions() {
    every_shape(3);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn every_shape_of_four_regions() {
    every_shape(4);
}

/// The lanes of a chain's middle close while messages between its ends pass there.
#[test]
fn messages_of_a_lost_lane_are_repeated_through_others() {
    simulate(async {
        let chain = Mesh::of_ranks(&[1, 1, 1, 1]).without(0, 2).without(0, 3).without(1, 3);
        let mesh = Mesh { lanes: 4, ..small_segments(chain) };
        let lab = mesh.start(9).await;
        let clients = lab.clients(64 << 20).await;
        for round in 0..8 {
            let case = Case::new(ReduceOp::Sum, Dtype::F32, 100_003, round);
            lose_lanes(&lab, round).await;
            check(&mesh, &clients, &[case]).await;
        }
    });
}

async fn lose_lanes(lab: &Lab, round: u64) {
    lab.gateways[1].close_lane(GatewayId(2), 0).await;
    lab.gateways[2].close_lane(GatewayId(3), 0).await;
    lab.sleep(Span::from_ms(7 * round)).await;
}
