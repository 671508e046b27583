//! Packets as large as the fabric says, or as what gets through where it does not.

use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::batch::{Case, Values, outcomes, post_all, succeeds};
use scenarios::{Lab, Shape, address, ppm, series, simulate};
use units::{ByteCount, Fraction, Span};

/// QUIC could take a burst of losses for a path that lets no large packets through.
#[test]
fn pinned_packets_stay_large_through_bursts_of_loss() {
    let values = Values::Ordinary;
    let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 32 << 20, 13) };
    simulate(async {
        let lab = Lab::start(&Shape { mtu: 9000, ..Shape::new(1, 1) }, 1).await;
        let clients = lab.clients(600 << 20).await;
        let mut operations = post_all(&clients, &case).await;
        operations.extend(post_all(&clients, &case).await);
        for _ in 0..4 {
            lab.sleep(Span::from_ms(100)).await;
            lab.cut(true);
            lab.sleep(Span::from_ms(20)).await;
            lab.cut(false);
        }
        lab.sleep(Span::from_ms(400)).await;
        let packets = || {
            let (east, west) = (address(GatewayId(0)).ip(), address(GatewayId(1)).ip());
            let counters = lab.net.counters(east, west).expect("a link");
            (counters.ip_bytes, counters.packets)
        };
        let before = packets();
        lab.sleep(Span::from_ms(200)).await;
        let after = packets();
        let mean = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
        // Some are acknowledgements.
        assert!(mean > 4000.0, "packets of {mean} bytes");
        for outcome in outcomes(&mut operations).await {
            outcome.expect("completes");
        }
    });
}

/// From 1,228 bytes on, which every path of QUIC takes; its probes are 20 bytes apart at the end.
#[test]
fn lanes_find_the_longest_packets_that_get_through() {
    for (path_mtu, loss) in
        [(1280, Fraction::default()), (1400, Fraction::default()), (1500, ppm(1000))]
    {
        let shape = Shape { path_mtu: Some(path_mtu), loss, ..Shape::new(1, 1) };
        simulate(async {
            let lab = Lab::start(&shape, 1).await;
            let clients = lab.clients(70 << 20).await;
            // It asks once each round trip.
            lab.sleep(Span::from_secs(5)).await;
            let (east, west) = (address(GatewayId(0)).ip(), address(GatewayId(1)).ip());
            let counters = || lab.net.counters(east, west).expect("a link");
            let (before, begin) = (counters(), lab.host.now());
            let values = Values::Ordinary;
            let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 4 << 20, 7) };
            succeeds(&clients, 1, &case).await;
            let (after, took) = (counters(), lab.host.now().since(begin).as_secs_f64());
            let payload = (16 << 20) as f64 / (after.packets - before.packets) as f64;
            let mtu = f64::from(path_mtu);
            println!("{path_mtu}: {payload:.0} bytes of payload a packet, {took:.3} s");
            // Headers, acknowledgements, and the last step of the search.
            assert!((0.9 * mtu..mtu).contains(&payload), "{path_mtu}: {payload}");
            assert!(took < 0.25, "{path_mtu}: {took} s");
            assert_eq!(after.drops_mtu, before.drops_mtu, "{path_mtu}: still too long");
            assert!(path_mtu == 1500 || before.drops_mtu > 0, "nothing longer was tried");
        });
    }
}

/// A packet of 9,000 bytes takes fourteen shards with it. Without tail repair the last of a collective
/// wait for a round trip more: half of its time.
#[test]
fn the_tail_of_jumbo_packets_is_repaired() {
    for parts in [1000, 10_000] {
        let shape = Shape { mtu: 9000, loss: ppm(parts), ..Shape::new(1, 1) };
        let bound = bound::all_reduce(&shape.fabric(), ByteCount::new(64 << 20)).as_secs_f64();
        let times = series::alone(&shape, 64 << 20, 20, 1);
        let [median, slow] = [0.5, 0.9].map(|part| bound / series::quantile(&times, part));
        println!("{parts} ppm: eta {median:.3}, of the slowest tenth {slow:.3}");
        assert!(median >= 0.93 && slow >= 0.9, "{parts} ppm: {median} {slow}");
    }
}
