//! Payload is copied as often as "Every copy that a byte sees" in ARCHITECTURE.md lists, and not
//! once more. An extra copy in our code or in a library's is a `memcpy`, wherever it is to.

#![cfg(target_env = "gnu")]

mod counted;

use hier_collectives::descriptor::{Dtype, ReduceOp};
use scenarios::{Lab, Shape, simulate};
use units::Span;

/// Packets far larger than the nodes of quinn's trees of packets in flight, which are moved about as
/// these are: so copies of payload can be told from others by their size.
const MTU: u16 = 9000;
/// Of a buffer.
const BYTES: u64 = 12 << 20;
/// Copies of a byte that goes from gateway to gateway: into a packet, by the kernel on each side,
/// out of quinn's buffer.
const CROSSING: f64 = 4.0;
/// Of all copies: headers of packets are copied too, and the shortest pieces are not counted.
const OFF_MAX: f64 = 0.01;

/// What all ranks write, exchange, add and read, in buffers.
async fn copied(lab: &Lab) -> f64 {
    let clients = lab.clients(2 * BYTES + 4096).await;
    // All lanes are up a round trip after the first.
    lab.sleep(Span::from_secs(1)).await;
    let times = |factor: i32| -> Vec<u8> {
        (0..BYTES as i32 / 4).flat_map(|i| i.wrapping_mul(factor).to_le_bytes()).collect()
    };
    let (given, sums) = (times(1), times(clients.len() as i32));
    let before = counted::bytes();
    let mut operations = Vec::new();
    for client in &clients {
        let mut tensor = client.allocate(Dtype::I32, BYTES / 4).expect("room");
        tensor.write(&given);
        operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
    }
    for operation in &mut operations {
        operation.ready().await.expect("completes");
        assert!(operation.result() == sums, "a wrong sum");
    }
    (counted::bytes() - before) as f64 / BYTES as f64
}

/// Each rank writes and reads, all but the first of a region get a copy of its result, and each
/// region's partial crosses once; it is added straight out of the packet.
#[test]
fn two_regions_copy_what_is_listed() {
    for (east, west) in [(1, 1), (3, 2)] {
        let shape = Shape { mtu: MTU, ..Shape::new(east, west) };
        let copied = simulate(async { copied(&Lab::start(&shape, 1).await).await });
        let ranks = f64::from(east + west);
        let listed = 2.0 * ranks + (ranks - 2.0) + 2.0 * CROSSING;
        println!("{east} ranks and {west}: {copied:.3} copies of a buffer, {listed:.3} listed");
        let off = (copied / listed - 1.0).abs();
        assert!(off < OFF_MAX, "{east} ranks and {west}: {copied:.3} copies, {listed:.3} listed");
    }
}
