//! Gateways that start late or again: their peers notice soon, and count handshakes that nobody
//! answered as no loss.

use hier_collectives::ids::GatewayId;
use scenarios::faults::{Fault, FaultKind, FaultPlace, Load, Scenario, run};
use scenarios::{EAST, Lab, Shape, WEST, mbit, simulate};
use units::{ByteCount, Span};

/// 5 seeds of each case.
const SEEDS: u64 = 5;
/// 6 s from the restart until a round of collectives is good again. The lane takes about a second,
/// a pause of a rank up to 2 s, and the round the rest. A peer that waits for silence takes 15 s.
const BACK_WITHIN: Span = Span::from_secs(6);

/// Returns a short load on a fast link, struck by one fault of a gateway.
fn struck(gateway: GatewayId, what: FaultKind, lasting: Span, seed: u64) -> Scenario {
    let place = FaultPlace::Gateway(gateway);
    let fault = Fault { what, place, at: Span::from_ms(400), lasting };
    let named = Scenario::named("gateway-killed", seed).expect("it is named");
    let shape = Shape { rate: mbit(100), ..named.shape.clone() };
    let load = Load {
        rounds: 3,
        in_flight: 2,
        segment: ByteCount::new(4 << 10),
        segments_max: 4,
        ..named.load
    };
    Scenario { shape, load, faults: vec![fault], ..named }
}

#[test]
fn either_gateway_is_back_soon_after_its_restart() {
    for gateway in [EAST, WEST] {
        for lasting in [Span::from_ms(300), Span::from_secs(1), Span::from_secs(4)] {
            for seed in 0..SEEDS {
                let scenario = struck(gateway, FaultKind::Kill, lasting, seed);
                let told = run(&scenario);
                assert!(told.wrong.is_empty(), "{scenario}{:?}", told.wrong);
                let took = told.recovery;
                assert!(took <= BACK_WITHIN, "{scenario}good again {took} after the restart");
            }
        }
    }
}

#[test]
fn gateways_that_start_apart_raise_no_loss_alarm() {
    for gap in [Span::from_secs(2), Span::from_secs(9), Span::from_secs(61)] {
        simulate(async {
            let lab = Lab::start_apart(&Shape { lanes: 4, ..Shape::new(1, 1) }, 1, gap).await;
            lab.sleep(Span::from_secs(15)).await;
            for gateway in [EAST, WEST] {
                let status = lab.status(gateway).await;
                let peer = &status.peers[0];
                assert_eq!(peer.lanes_up, 4, "{gap}: {status:?}");
                assert_eq!((peer.lost_packets, peer.loss_alarm), (0, false), "{gap}: {status:?}");
            }
        });
    }
}

#[test]
fn late_gateways_are_found_within_seconds() {
    for gap in [Span::from_secs(1), Span::from_secs(4), Span::from_secs(8)] {
        simulate(async {
            let lab = Lab::start_apart(&Shape { lanes: 4, ..Shape::new(1, 1) }, 1, gap).await;
            lab.sleep(Span::from_secs(3)).await;
            let status = lab.status(EAST).await;
            assert_eq!(status.peers[0].lanes_up, 4, "{gap}: {status:?}");
        });
    }
}
