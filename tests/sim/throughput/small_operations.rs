//! Small operations take the one-way delays of their hops, and 3 ms at most beside them.

use gateway::client::{Client, CollectiveSpec, Operation, SendSpec};
use hier_collectives::descriptor::{Counts, Descriptor, Dtype, Pattern, ReduceOp, SlotElements};
use hier_collectives::ids::{GatewayId, RankId, Tag};
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use units::Span;

/// 4 KiB: the buffers of the operations. Each rank of an operation on blocks has as much.
const BYTES: u64 = 4 << 10;
/// Round-trip time of all links.
const RTT: Span = Span::from_ms(60);
/// 3 ms: the most that an operation takes beside the delays of its hops.
const SLACK: Span = Span::from_ms(3);

/// Returns a mesh whose links all have the same RTT.
fn even_mesh(mut mesh: Mesh) -> Mesh {
    mesh.links.iter_mut().for_each(|link| link.rtt = RTT);
    mesh
}

/// Returns every operation of all ranks. The last rank, or the first one, is the root.
fn every_pattern(ranks: u32) -> Vec<Pattern> {
    let mut patterns =
        vec![Pattern::AllReduce, Pattern::AllGather, Pattern::ReduceScatter, Pattern::AllToAll];
    for root in [RankId(0), RankId(ranks - 1)] {
        patterns.push(Pattern::Reduce { to: root });
        patterns.push(Pattern::Broadcast { from: root });
        patterns.push(Pattern::Gather { to: root });
        patterns.push(Pattern::Scatter { from: root });
    }
    patterns.push(Pattern::Barrier);
    patterns
}

/// Posts an operation on one rank.
async fn post(client: &Client, pattern: Pattern) -> Operation {
    let ranks = client.world_size();
    let bytes = match pattern {
        Pattern::Barrier => 0,
        Pattern::AllReduce | Pattern::Reduce { .. } | Pattern::Broadcast { .. } => BYTES,
        _ => BYTES * u64::from(ranks),
    };
    let descriptor = Descriptor { dtype: Dtype::U8, ..Descriptor::of_bytes(pattern, bytes) };
    let whole = SlotElements { contribution: bytes, result: bytes };
    let slots = descriptor.slot_elements(&Counts::Even, client.rank(), ranks).unwrap_or(whole);
    let tensor = client.allocate_slots(Dtype::U8, slots).expect("room");
    client.post(tensor, CollectiveSpec::new(pattern, ReduceOp::Max)).await.expect("posted")
}

/// Runs an operation; returns the time from its posts to the last result.
async fn time_of(lab: &Lab, clients: &[Client], pattern: Pattern) -> Span {
    let begin = lab.host.now();
    let mut operations = Vec::new();
    for client in clients {
        operations.push(post(client, pattern).await);
    }
    for operation in &mut operations {
        operation.ready().await.unwrap_or_else(|why| panic!("{pattern}: {why}"));
    }
    lab.host.now().since(begin)
}

/// Returns the gateways of two ranks.
fn gateways_of(lab: &Lab, ranks: [&Client; 2]) -> [GatewayId; 2] {
    ranks.map(|client| lab.fabric.gateway_of(client.rank()).expect("served"))
}

/// Sends from one rank to another. Returns the time to the result, from both posts; where gateways on
/// the way pass it on, from the sender's post, once the receiver's is known to them.
async fn time_of_send(lab: &Lab, from: &Client, to: &Client) -> Span {
    let spec = |peer: &Client| SendSpec::new(peer.rank(), Tag(0));
    let tensor = |client: &Client| client.allocate(Dtype::U8, BYTES).expect("room");
    let mut received = to.receive(tensor(to), spec(from)).await.expect("posted");
    let [one, other] = gateways_of(lab, [from, to]);
    if !lab.fabric.connects(one, other) {
        lab.sleep(RTT).await;
    }
    let begin = lab.host.now();
    from.send(tensor(from), spec(to)).await.expect("posted");
    received.ready().await.expect("a result");
    lab.host.now().since(begin)
}

/// Returns the links that a send crosses.
fn hops_of_send(lab: &Lab, from: &Client, to: &Client) -> u64 {
    let regions = gateways_of(lab, [from, to]).map(|id| lab.fabric.gateway(id).region);
    if lab.fabric.link(regions[0], regions[1]).is_some() { 1 } else { 2 }
}

/// Runs every operation twice, alone, and sends between the first rank and others. Operations that
/// `more` names take so many hops, all others `hops`.
fn check(mesh: Mesh, hops: u64, more: impl Fn(Pattern) -> Option<u64>) {
    let mesh = even_mesh(mesh);
    let mut late = Vec::new();
    let mut judge = |what: String, hops: u64, took: Span| {
        println!("{what}: {took} over {hops} hops");
        if took > Span::from_ns(hops * RTT.ns() / 2) + SLACK {
            late.push(format!("{what} took {took} over {hops} hops"));
        }
    };
    simulate(async {
        let lab = mesh.start(1).await;
        let clients = lab.clients(1 << 20).await;
        // Until all lanes are up.
        lab.sleep(Span::from_secs(1)).await;
        let ranks = lab.fabric.world_size();
        for pattern in every_pattern(ranks) {
            for _ in 0..2 {
                let took = time_of(&lab, &clients, pattern).await;
                judge(pattern.to_string(), more(pattern).unwrap_or(hops), took);
                lab.sleep(Span::from_ms(200)).await;
            }
        }
        let (first, others) = clients.split_first().expect("ranks");
        let region = |client| lab.fabric.gateway(gateways_of(&lab, [client; 2])[0]).region;
        for other in others.iter().filter(|other| region(other) != region(first)) {
            for (from, to) in [(first, other), (other, first)] {
                // The first one makes the group of the two.
                time_of_send(&lab, from, to).await;
                let took = time_of_send(&lab, from, to).await;
                let what = format!("a send from rank {} to rank {}", from.rank(), to.rank());
                judge(what, hops_of_send(&lab, from, to), took);
            }
        }
    });
    assert!(late.is_empty(), "{mesh:?}: {late:#?}");
}

#[test]
fn four_kibibytes_take_one_hop_between_two_regions() {
    check(Mesh::of_ranks(&[2, 1]), 1, |_| None);
}

#[test]
fn four_kibibytes_take_one_hop_between_four_regions() {
    check(Mesh::of_ranks(&[1, 2, 1, 2]), 1, |_| None);
}

/// Also where a gateway of each region has no port, or several have one.
#[test]
fn four_kibibytes_take_one_hop_between_many_gateways() {
    let port = MeshGateway::with_port(1, mbit(500));
    let sidecar = MeshGateway::sidecar(1);
    check(Mesh::of_gateways(vec![vec![port, port], vec![port, sidecar]]), 1, |_| None);
    check(Mesh::of_gateways(vec![vec![port, port]; 4]), 1, |_| None);
}

/// In a ring of four regions each is two hops from one other. Buffers go along the express tree: to one of
/// two roots, between both, and back. A reduce and a broadcast take that way too, of three hops.
#[test]
fn four_kibibytes_take_their_hops_round_a_ring() {
    let ring = Mesh::of_ranks(&[1, 2, 1, 2]).without(0, 2).without(1, 3);
    let is_of_buffer = |pattern| {
        matches!(
            pattern,
            Pattern::AllReduce
                | Pattern::Reduce { .. }
                | Pattern::Broadcast { .. }
                | Pattern::Barrier
        )
    };
    check(ring, 2, |pattern| is_of_buffer(pattern).then_some(3));
}
