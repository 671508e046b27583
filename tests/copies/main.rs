//! Payload is copied as often as "Every copy of a byte" in ARCHITECTURE.md lists, and not
//! once more. An extra copy in our code or in a library's is a `memcpy`, wherever it is to.

#![cfg(target_env = "gnu")]

mod counted;

use hier_collectives::buffer_part;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::plan::{Plan, Tree};
use hier_collectives::tail_fec::{SHARD_BYTES, tail_fec_parity_shards};
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, Shape, ppm, simulate};
use units::Span;

/// 9,000 bytes, far more than the nodes of the trees in which quinn keeps packets in flight: so
/// their size tells copies of payload from copies of nodes.
const MTU: u16 = 9000;
/// 12 MiB, the bytes of a buffer.
const BYTES: u64 = 12 << 20;
/// 4 copies of a byte that goes from gateway to gateway in jumbo packets: into a packet, by the kernel
/// on each side, and out of the buffer of quinn.
const CROSSING: f64 = 4.0;
/// 1 more copy of a byte in packets that do not fill a send call as quinn makes them.
const GATHERING: f64 = 1.0;
/// 4,500 bytes: of such packets 14 leave in one send call, in two parts that quinn makes.
const GATHERED_MTU: u16 = 4500;
/// 1 more copy of a byte that is kept before it is added, or that is a result.
const LANDING: f64 = 1.0;
/// 1 % of all copies, the error that passes: packet headers are copied too, and the shortest pieces
/// are not counted.
const OFF_MAX: f64 = 0.01;
/// 6 copies of a byte of parity: out of the code, from gateway to gateway, and into memory of the
/// receiver.
const PARITY: f64 = 1.0 + CROSSING + 1.0;

/// The collective that ranks run with a buffer each.
#[derive(Debug, Clone, Copy)]
enum Operation {
    AllReduce,
    /// From the first rank.
    Broadcast,
}

/// Returns the copies of each byte while all ranks write, exchange, add and read, as a number of
/// buffers.
async fn copied(lab: &Lab, what: Operation) -> f64 {
    let clients = lab.clients(2 * BYTES + 4096).await;
    // All lanes are up a round trip after the first.
    lab.sleep(Span::from_secs(1)).await;
    let times = |factor: i32| -> Vec<u8> {
        (0..BYTES as i32 / 4).flat_map(|i| i.wrapping_mul(factor).to_le_bytes()).collect()
    };
    let ranks = match what {
        Operation::AllReduce => clients.len() as i32,
        Operation::Broadcast => 1,
    };
    let (given, wanted) = (times(1), times(ranks));
    let before = counted::bytes();
    let mut operations = Vec::new();
    for client in &clients {
        let mut tensor = client.allocate(Dtype::I32, BYTES / 4).expect("room");
        let posted = match what {
            Operation::AllReduce => {
                tensor.write(&given);
                client.all_reduce(tensor, ReduceOp::Sum).await
            }
            Operation::Broadcast => {
                if client.rank() == RankId(0) {
                    tensor.write(&given);
                }
                client.broadcast(tensor, RankId(0)).await
            }
        };
        operations.push(posted.expect("posted"));
    }
    for operation in &mut operations {
        operation.ready().await.expect("completes");
        assert!(operation.result() == wanted, "a wrong result");
    }
    (counted::bytes() - before) as f64 / BYTES as f64
}

/// Asserts that the copies found are those that ARCHITECTURE.md lists, and at most `more_max`
/// above.
fn assert_listed(what: &str, copied: f64, listed: f64, more_max: f64) {
    println!("{what}: {copied:.3} copies of a buffer, {listed:.3} listed");
    let within = (1.0 - OFF_MAX)..(1.0 + more_max);
    assert!(within.contains(&(copied / listed)), "{what}: {copied:.3} copies, {listed:.3} listed");
}

/// Each rank writes and reads, all but the first of a region get a copy of its result, and each
/// region's partial crosses once; it is added straight out of the packet.
#[test]
fn two_regions_copy_what_is_listed() {
    for (east, west) in [(1, 1), (3, 2)] {
        let shape = Shape { mtu: MTU, ..Shape::new(east, west) };
        let all_reduce = Operation::AllReduce;
        let copied = simulate(async { copied(&Lab::start(&shape, 1).await, all_reduce).await });
        let ranks = f64::from(east + west);
        let listed = 2.0 * ranks + (ranks - 2.0) + 2.0 * CROSSING;
        assert_listed(&format!("{east} ranks and {west}"), copied, listed, OFF_MAX);
    }
}

/// The lanes gather them from parts that quinn makes. What ends a call alone is not copied.
#[test]
fn packets_that_leave_together_are_copied_once_more() {
    let shape = Shape { mtu: GATHERED_MTU, ..Shape::new(1, 1) };
    let all_reduce = Operation::AllReduce;
    let copied = simulate(async { copied(&Lab::start(&shape, 1).await, all_reduce).await });
    let listed = 2.0 * 2.0 + 2.0 * (CROSSING + GATHERING);
    println!("{copied:.3} copies of a buffer, {listed:.3} listed");
    let least = 2.0 * 2.0 + 2.0 * (CROSSING + GATHERING / 2.0);
    assert!((least..listed * (1.0 + OFF_MAX)).contains(&copied), "{copied:.3}, {listed:.3} listed");
}

/// Where several partials arrive, they wait for each other; results land where they are read.
#[test]
fn three_regions_copy_what_is_listed() {
    let mesh = Mesh { mtu: MTU, ..Mesh::of_ranks(&[1, 1, 1]) };
    let all_reduce = Operation::AllReduce;
    let copied = simulate(async { copied(&mesh.start(1).await, all_reduce).await });
    let plan = mesh.plan();
    let parts = plan.trees.iter().zip(buffer_part::divide_into_buffer_parts(&plan, BYTES));
    let part = |(tree, part): (&Tree, buffer_part::BufferPart)| {
        (part.range.end - part.range.start) as f64 / BYTES as f64 * of_tree(tree)
    };
    let listed = 2.0 * 3.0 + parts.map(part).sum::<f64>();
    assert_listed(&format!("three regions, {}", plan.algorithm.name()), copied, listed, OFF_MAX);
}

/// Returns the copies of one byte of the part of a tree, between gateways of one rank each.
fn of_tree(tree: &Tree) -> f64 {
    let children = |of: GatewayId| tree.parents.values().filter(|parent| **parent == of).count();
    let inputs = |of: GatewayId| {
        let others = if tree.roots.contains(&of) { tree.roots.len() - 1 } else { 0 };
        children(of) + others
    };
    // One input of the last reduction is added straight out of the packet.
    let lands =
        |at: GatewayId| if tree.roots.contains(&at) && inputs(at) == 1 { 0.0 } else { LANDING };
    let gateways = tree.roots.iter().chain(tree.parents.keys()).copied();
    let up: f64 = gateways.map(|at| inputs(at) as f64 * (CROSSING + lands(at))).sum();
    let down = tree.parents.len() as f64 * (CROSSING + LANDING);
    let carries = |which: bool| if which { 1.0 } else { 0.0 };
    carries(tree.direction.has_partials()) * up + carries(tree.direction.has_results()) * down
}

/// Segments with parity land before they are added.
#[test]
fn parity_makes_its_segments_land() {
    let (loss, none) = (ppm(1000), ppm(0));
    let shape = Shape { mtu: MTU, loss, true_loss: Some(none), ..Shape::new(1, 1) };
    let all_reduce = Operation::AllReduce;
    let copied = simulate(async { copied(&Lab::start(&shape, 1).await, all_reduce).await });
    let fabric = shape.fabric();
    let plan: Plan = hier_collectives::plan::make_plan(&fabric).expect("a plan");
    let tail = plan.tail_fec(&fabric.links()[0], MTU).tail_bytes().min(BYTES);
    let landed = tail as f64 / BYTES as f64;
    println!("{tail} of {BYTES} bytes have parity");
    let listed = 2.0 * 2.0 + 2.0 * (CROSSING + landed * LANDING);
    let segment = plan.segment.get();
    let parity = u64::from(tail_fec_parity_shards(segment, loss, MTU)) * SHARD_BYTES;
    let more = 2.0 * landed * PARITY * parity as f64 / segment as f64;
    println!("{parity} bytes of parity for each {segment}: {more:.3} copies more at most");
    assert_listed("with parity", copied, listed, OFF_MAX + more / listed);
}

/// The root's buffer is copied into its result slot, which is sent; the others' land in theirs.
#[test]
fn a_broadcast_copies_what_is_listed() {
    let shape = Shape { mtu: MTU, ..Shape::new(1, 1) };
    let broadcast = Operation::Broadcast;
    let copied = simulate(async { copied(&Lab::start(&shape, 1).await, broadcast).await });
    // One writes, both read.
    assert_listed("a broadcast", copied, 1.0 + 2.0 + 1.0 + CROSSING + LANDING, OFF_MAX);
}
