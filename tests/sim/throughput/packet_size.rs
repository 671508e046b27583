//! Packets are as large as the fabric says, or as large as the path admits where it does not say.

use gateway::client::Client;
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, Values, outcomes, post_all, succeeds};
use scenarios::collectives::series;
use scenarios::{Lab, Shape, mbit, ppm, simulate, simulated_address};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use units::{ByteCount, Span};
use wan_sim::FateCounters;

/// QUIC could take a burst of losses for a path that lets no large packets through.
#[test]
fn pinned_packets_stay_large_through_bursts_of_loss() {
    let values = Values::Ordinary;
    let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 16 << 20, 13) };
    simulate(async {
        let lab = Lab::start(&Shape { mtu: 9000, rate: mbit(500), ..Shape::new(1, 1) }, 1).await;
        let clients = lab.clients(300 << 20).await;
        let mut operations = post_all(&clients, &case).await;
        operations.extend(post_all(&clients, &case).await);
        for _ in 0..4 {
            lab.sleep(Span::from_ms(100)).await;
            lab.set_outage(true);
            lab.sleep(Span::from_ms(20)).await;
            lab.set_outage(false);
        }
        lab.sleep(Span::from_ms(400)).await;
        let before = sent(&lab);
        lab.sleep(Span::from_ms(200)).await;
        let after = sent(&lab);
        let mean =
            (after.ip_bytes - before.ip_bytes) as f64 / (after.packets - before.packets) as f64;
        // Some are acknowledgements.
        assert!(mean > 4000.0, "packets of {mean} bytes");
        for outcome in outcomes(&mut operations).await {
            outcome.expect("completes");
        }
    });
}

/// A shape whose lanes probe for the path's MTU, between interfaces that send longer packets.
fn looking(path_mtu: u16, interface_mtu: u16) -> Shape {
    let [path_mtu, interface_mtu] = [path_mtu, interface_mtu].map(Some);
    Shape { path_mtu, interface_mtu, ..Shape::new(1, 1) }
}

/// Probing begins at 1,228 bytes, which every path of QUIC admits, and ends within 20 bytes of the
/// limit.
#[test]
fn lanes_find_the_longest_packets_that_get_through() {
    for (path_mtu, interface_mtu, loss) in [
        (1280, 1500, 0),
        (1400, 1500, 0),
        (1500, 1500, 1000),
        (1500, 9000, 0),
        (4352, 9000, 0),
        (9000, 9000, 0),
        (9000, 9000, 1000),
        (9000, u16::MAX, 0),
    ] {
        let shape = Shape { loss: ppm(loss), ..looking(path_mtu, interface_mtu) };
        simulate(async {
            let lab = Lab::start(&shape, 1).await;
            let clients = lab.clients(70 << 20).await;
            // It asks once each round trip.
            lab.sleep(Span::from_secs(5)).await;
            let (before, begin) = (sent(&lab), lab.host.now());
            let payload = payload_per_packet(&lab, &clients).await;
            let (after, took) = (sent(&lab), lab.host.now().since(begin).as_secs_f64());
            println!("{path_mtu} of {interface_mtu}: {payload:.0} bytes a packet, {took:.3} s");
            let mtu = f64::from(path_mtu);
            // Headers, acknowledgements, and the last step of the search; the last packet of a cell
            // is short.
            let least = if path_mtu < 9000 { 0.9 } else { 0.8 };
            assert!((least * mtu..mtu).contains(&payload), "{path_mtu}: {payload}");
            assert!(took < 0.25, "{path_mtu}: {took} s");
            assert_eq!(after.drops_mtu, before.drops_mtu, "{path_mtu}: still too long");
            assert_eq!(lab.net.undelivered().too_big, 0, "{path_mtu}: too many at once");
            assert!(path_mtu >= interface_mtu.min(9000) || before.drops_mtu > 0, "no longer tried");
        });
    }
}

/// A lost packet of 9,000 bytes loses fourteen shards. Without tail FEC the end of a collective
/// waits for one more round trip, half of its time.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn tail_fec_works_with_jumbo_packets() {
    for parts in [1000, 10_000] {
        let shape = Shape { mtu: 9000, loss: ppm(parts), ..Shape::new(1, 1) };
        let bound =
            bound::all_reduce_lower_bound(&shape.fabric(), ByteCount::new(64 << 20)).as_secs_f64();
        let times = series::alone(&shape, 64 << 20, 20, 1);
        let [median, slow] = [0.5, 0.9].map(|part| bound / series::quantile(&times, part));
        println!("{parts} ppm: eta {median:.3}, of the slowest tenth {slow:.3}");
        assert!(median >= 0.93 && slow >= 0.9, "{parts} ppm: {median} {slow}");
    }
}

/// Each length that fails is probed three times.
#[test]
fn the_longest_packets_are_found_within_five_seconds() {
    for path_mtu in [1500, 9000] {
        simulate(async {
            let lab = Lab::start(&Shape { lanes: 4, ..looking(path_mtu, 9000) }, 1).await;
            let longest = Arc::new(Mutex::new(BTreeMap::new()));
            let (seen, begin) = (Arc::clone(&longest), lab.net.now());
            lab.net.trace_to(move |record| {
                let mut seen = seen.lock().expect("no panic");
                let (bytes, at) =
                    seen.entry((record.source, record.destination)).or_insert((0, begin));
                let arrives =
                    record.offered.is_some_and(|offered| offered.fate.delivery().is_some());
                if arrives && record.ip_bytes > *bytes {
                    (*bytes, *at) = (record.ip_bytes, record.now);
                }
            });
            lab.sleep(Span::from_secs(20)).await;
            let longest = longest.lock().expect("no panic");
            assert_eq!(longest.len(), 8, "four lanes, both ways");
            for (bytes, at) in longest.values() {
                let took = at.since(begin);
                println!("{path_mtu}: {bytes} after {took}");
                assert!((path_mtu - 20..=path_mtu).contains(&u16::try_from(*bytes).expect("IP")));
                assert!(took < Span::from_secs(5), "{path_mtu}: {took}");
            }
        });
    }
}

#[test]
fn packets_that_were_found_stay_large_through_bursts_of_loss() {
    let values = Values::Ordinary;
    let case = Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 16 << 20, 13) };
    simulate(async {
        let lab = Lab::start(&Shape { rate: mbit(500), ..looking(9000, 9000) }, 1).await;
        let clients = lab.clients(300 << 20).await;
        lab.sleep(Span::from_secs(5)).await;
        let mut operations = post_all(&clients, &case).await;
        for _ in 0..8 {
            lab.sleep(Span::from_ms(100)).await;
            lab.set_outage(true);
            lab.sleep(Span::from_ms(20)).await;
            lab.set_outage(false);
        }
        for outcome in outcomes(&mut operations).await {
            outcome.expect("completes");
        }
        let payload = payload_per_packet(&lab, &clients).await;
        assert!(payload > 7200.0, "packets of {payload} bytes");
    });
}

/// Routes may change: QUIC then falls back to its least packet size, and probes again.
#[test]
fn packets_follow_a_path_that_becomes_narrow_and_wide_again() {
    simulate(async {
        let lab = Lab::start(&looking(9000, 9000), 1).await;
        let clients = lab.clients(70 << 20).await;
        lab.sleep(Span::from_secs(5)).await;
        for (path_mtu, after) in [(1500, Span::from_secs(20)), (9000, Span::from_secs(70))] {
            let (east, west) =
                (simulated_address(GatewayId(0)).ip(), simulated_address(GatewayId(1)).ip());
            for (from, to) in [(east, west), (west, east)] {
                lab.net.set_mtu(from, to, path_mtu).expect("a link");
            }
            let begin = lab.host.now();
            let at_once = payload_per_packet(&lab, &clients).await;
            let took = lab.host.now().since(begin);
            lab.sleep(after).await;
            let before = sent(&lab).drops_mtu;
            let later = payload_per_packet(&lab, &clients).await;
            println!(
                "{path_mtu}: {at_once:.0} bytes a packet at once, in {took}; {later:.0} later"
            );
            assert!(later > 0.8 * f64::from(path_mtu), "{path_mtu}: packets of {later} bytes");
            assert_eq!(sent(&lab).drops_mtu, before, "{path_mtu}: still too long");
        }
    });
}

/// The counters of the link from east to west.
fn sent(lab: &Lab) -> FateCounters {
    let (east, west) = (simulated_address(GatewayId(0)).ip(), simulated_address(GatewayId(1)).ip());
    lab.net.counters(east, west).expect("a link")
}

/// Bytes that east sends in a packet, when 16 MiB are reduced.
async fn payload_per_packet(lab: &Lab, clients: &[Client]) -> f64 {
    let before = sent(lab).packets;
    let values = Values::Ordinary;
    succeeds(clients, 1, &Case { values, ..Case::new(ReduceOp::Sum, Dtype::F32, 4 << 20, 7) })
        .await;
    (16 << 20) as f64 / (sent(lab).packets - before) as f64
}
