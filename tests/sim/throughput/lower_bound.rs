//! Efficiency of single collectives against the lower bound.

use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::plan;
use scenarios::collectives::series;
use scenarios::{Lab, Shape, simulate};
use units::{ByteCount, Fraction, Span};

/// Efficiency (eta) of one all-reduce of `bytes` from its last post to its last result, and the
/// payload that east sent for the first time.
fn eta(shape: &Shape, bytes: u64, seed: u64) -> (f64, u64) {
    simulate(async {
        let lab = Lab::start(shape, seed).await;
        let clients = lab.clients(2 * bytes + 4096).await;
        // All lanes are up a round trip after the first.
        lab.host.sleep_until(lab.host.now() + Span::from_secs(1)).await;
        let begin = lab.host.now();
        let mut operations = Vec::new();
        for client in &clients {
            let tensor = client.allocate(Dtype::F32, bytes / 4).expect("room");
            operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
        }
        for operation in &mut operations {
            operation.ready().await.expect("a result");
        }
        let seconds = lab.host.now().since(begin).as_secs_f64();
        let bound = bound::all_reduce_lower_bound(&lab.fabric, ByteCount::new(bytes)).as_secs_f64();
        let sent = lab.gateways[0].peers.values().map(|peer| peer.metrics.sent_bytes.get()).sum();
        (bound / seconds, sent)
    })
}

#[test]
fn a_clean_link_is_filled() {
    let (eta, sent) = eta(&Shape::new(1, 1), 256 << 20, 1);
    assert!(eta >= 0.95, "eta {eta:.4}");
    assert!(sent <= (256 << 20) * 102 / 100, "{sent} bytes sent");
}

#[test]
fn each_byte_crosses_once_whatever_the_number_of_ranks() {
    for (east, west) in [(1, 1), (4, 1), (1, 4), (4, 4)] {
        let loss = Fraction::from_ppb(1_000_000).expect("0.1 %");
        let bytes = 1 << 20;
        let (_, sent) = eta(&Shape { loss, ..Shape::new(east, west) }, bytes, 1);
        assert!((bytes..=bytes * 102 / 100).contains(&sent), "{east}, {west}: {sent} bytes sent");
    }
}

#[test]
fn jumbo_frames_pass() {
    let (eta, _) = eta(&Shape { mtu: 9000, ..Shape::new(1, 1) }, 64 << 20, 1);
    assert!(eta >= 0.80, "eta {eta:.4}");
}

/// At 2 ms few packets in flight are lost, and parity for four segments takes about as long as a
/// loss costs on average. The fabric states four times that loss to enable parity for comparison.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn tail_fec_is_off_where_it_gains_nothing() {
    let [loss, more] = [100_000, 400_000].map(|ppb| Fraction::from_ppb(ppb).expect("below 1"));
    let near = Shape { loss, rtt: Span::from_ms(2), ..Shape::new(1, 1) };
    let [without, with] =
        [near.clone(), Shape { loss: more, true_loss: Some(loss), ..near }].map(|shape| {
            let fabric = shape.fabric();
            let plan = plan::make_plan(&fabric).expect("a plan");
            let pays = plan.tail_fec(&fabric.links()[0], fabric.mtu()).saves_time();
            let times = series::alone(&shape, 8 << 20, 100, 1);
            (pays, times.iter().sum::<f64>() / times.len() as f64)
        });
    println!("mean of 100: {:.5} s without tail repair, {:.5} s with it", without.1, with.1);
    assert_eq!([without.0, with.0], [false, true]);
    // The clock of these runs has steps of a millisecond.
    assert!(without.1 <= with.1 + 1e-4, "{} s without, {} s with", without.1, with.1);
}

/// The fabric states no loss on a lossy link to disable parity for comparison.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn tail_fec_saves_the_round_trip_of_retransmission() {
    for (parts_per_million, least, without) in [(1_000, 0.97, 0.95), (10_000, 0.93, 0.93)] {
        let loss = Fraction::from_ppb(parts_per_million * 1000).expect("below 1");
        let silent = Shape { true_loss: Some(loss), ..Shape::new(1, 1) };
        let twenty_bdp = 200_000_000;
        let etas = [Shape { loss, ..Shape::new(1, 1) }, silent].map(|shape| {
            let mut etas: Vec<f64> = (1..=3).map(|seed| eta(&shape, twenty_bdp, seed).0).collect();
            etas.sort_by(f64::total_cmp);
            etas[1]
        });
        let [repaired, alone] = etas;
        println!("{loss}: eta {repaired:.4} with tail repair, {alone:.4} by retransmission alone");
        assert!(repaired >= least, "{loss}: eta {repaired:.4}");
        assert!(alone < without && alone < repaired, "{loss}: {alone:.4} without repair");
    }
}
