//! Gateways that start late or again: their peers notice soon, and count handshakes that nobody
//! answered as no loss. Trainers write nothing that a gateway may still send.

use gateway::client::{GroupError, StepError};
use hier_collectives::descriptor::Dtype;
use hier_collectives::post::FailureCode;
use scenarios::faults::{Fault, FaultKind, FaultPlace, GatewayPlace, Load, Scenario, run};
use scenarios::{EAST, Lab, Shape, WEST, mbit, simulate};
use units::{ByteCount, Span};

/// 5 seeds of each case.
const SEEDS: u64 = 5;
/// 6 s from the restart until a round of collectives is good again. The lane takes about a second,
/// a pause of a rank up to 2 s, and the round the rest. A peer that waits for silence takes 15 s.
const BACK_WITHIN: Span = Span::from_secs(6);

/// 10 min, in which a gateway is away, or a path.
const AWAY: Span = Span::from_secs(600);
/// 2 s from the return until gateways have met: the next dial is a second away at most, and a
/// handshake and an epoch take some round trips.
const MET_WITHIN: Span = Span::from_secs(2);

/// Returns a short load on a fast link, struck by one fault of a gateway.
fn struck(gateway: GatewayPlace, what: FaultKind, lasting: Span, seed: u64) -> Scenario {
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
    for gateway in [GatewayPlace::EAST, GatewayPlace::WEST] {
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

/// The peer has forgotten the other by then: its lanes are lost and its dials have grown old.
#[test]
fn gateways_are_back_soon_after_ten_minutes() {
    for gateway in [EAST, WEST] {
        for rtt in [Span::from_ms(2), Span::from_ms(80)] {
            simulate(async {
                let shape = Shape { rtt, lanes: 4, ..Shape::new(1, 1) };
                let mut lab = Lab::start(&shape, 1).await;
                lab.sleep(Span::from_secs(5)).await;
                lab.stop_gateway(gateway).await;
                lab.sleep(AWAY).await;
                lab.start_gateway(gateway).await;
                lab.sleep(MET_WITHIN).await;
                for gateway in [EAST, WEST] {
                    let status = lab.status(gateway).await;
                    assert!(status.peers[0].lanes_up > 0, "{rtt}: {status:?}");
                    assert!(status.jobs[0].epoch.is_some(), "{rtt}: {status:?}");
                }
            });
        }
    }
}

/// The path is away in place of a gateway: neither side hears anything of the other.
#[test]
fn a_path_is_used_soon_after_ten_minutes() {
    simulate(async {
        let lab = Lab::start(&Shape { lanes: 4, ..Shape::new(1, 1) }, 1).await;
        lab.sleep(Span::from_secs(5)).await;
        lab.set_outage(true);
        lab.sleep(AWAY).await;
        let status = lab.status(EAST).await;
        assert_eq!(status.peers[0].lanes_up, 0, "{status:?}");
        lab.set_outage(false);
        lab.sleep(MET_WITHIN).await;
        let status = lab.status(EAST).await;
        assert!(status.peers[0].lanes_up > 0, "{status:?}");
    });
}

/// A gateway that lost a trainer may still send from the slots that the trainer has freed.
#[test]
fn exchanges_of_numbers_write_no_slot_once_disconnected() {
    simulate(async {
        let mut lab = Lab::start(&Shape::new(1, 1), 1).await;
        let clients = lab.clients(4096).await;
        let mut freed = clients[0].allocate(Dtype::U8, 1024).expect("room");
        freed.write(&[7; 1024]);
        drop(freed);
        lab.stop_gateway(EAST).await;
        lab.sleep(Span::from_secs(1)).await;
        assert!(clients[0].disconnect_reason().is_some());
        let mut share = clients[0].batch_share(64, &[1.0; 2], &[64; 2]).expect("splits");
        let ended = share.end_step(Span::from_ms(5)).await.expect_err("disconnected");
        let StepError::Failed(ended) = ended else { panic!("{ended}") };
        let split = clients[0].split(Some(1), 0).await.expect_err("disconnected");
        let GroupError::Failed(split) = split else { panic!("{split}") };
        assert_eq!([ended.code, split.code], [FailureCode::GatewayLost; 2]);
        let same = clients[0].allocate(Dtype::U8, 1024).expect("room");
        assert!(same.read() == [7; 1024], "{:?}", same.read());
    });
}
