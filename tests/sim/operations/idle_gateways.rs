//! Gateways without work: they hardly run, and still notice in time when a peer or a link is gone.

use gateway::observe::problem_cause::ProblemCause;
use gateway::observe::readiness::is_ready;
use hier_collectives::ids::GatewayId;
use scenarios::lab::mesh::Mesh;
use scenarios::{EAST, Lab, Shape, WEST, simulate};
use units::Span;

/// 20 min without work.
const IDLE: Span = Span::from_secs(1200);
/// 9 wake-ups of both gateways a second with one lane. Three are the lane's: a keep-alive arrives, is
/// acknowledged after the acknowledgement delay, and its acknowledgement arrives. Three are the tick
/// and the gauges of each; as many again are for timers that do not fall together.
const WAKEUPS_MAX: u64 = 9;
/// 16 s, within which ranks hear that a region is lost (`docs/failures.md`).
const LOST_WITHIN: Span = Span::from_secs(16);
/// 14 s: a silence of 15 s has begun at most a keep-alive before the fault.
const LOST_AFTER: Span = Span::from_secs(14);
/// 10 s, within which a link of a mesh is gone round (`docs/failures.md`).
const ROUND_WITHIN: Span = Span::from_secs(10);

#[test]
fn idle_gateways_wake_a_few_times_a_second() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 1).await;
        let _clients = lab.clients(1 << 20).await;
        lab.sleep(Span::from_secs(10)).await;
        let before = lab.wakeups();
        lab.sleep(Span::from_secs(60)).await;
        let a_second = (lab.wakeups() - before) / 60;
        println!("{a_second} wake-ups a second");
        assert!((1..=WAKEUPS_MAX).contains(&a_second), "{a_second} a second");
        let peer = lab.status(EAST).await.peers.remove(0);
        assert_eq!((peer.lanes_up, peer.lanes), (1, 1), "{peer:?}");
    });
}

#[test]
fn an_idle_peer_that_falls_silent_is_lost_in_time() {
    for silent in [&[EAST][..], &[WEST], &[EAST, WEST]] {
        simulate(async {
            let lab = Lab::start(&Shape::new(1, 1), 2).await;
            let _clients = lab.clients(1 << 20).await;
            lab.sleep(IDLE).await;
            let begun = lab.host.now();
            silent.iter().for_each(|from| lab.set_outage_from(*from, true));
            for gateway in [EAST, WEST] {
                while lab.status(gateway).await.peers[0].lanes_up > 0 {
                    lab.sleep(Span::from_ms(100)).await;
                    let took = lab.host.now().since(begun);
                    assert!(took <= LOST_WITHIN, "{silent:?}: {gateway} after {took}");
                }
                let took = lab.host.now().since(begun);
                assert!(took >= LOST_AFTER, "{silent:?}: {gateway} after {took}");
            }
            silent.iter().for_each(|from| lab.set_outage_from(*from, false));
            lab.sleep(Span::from_secs(35)).await;
            for gateway in [EAST, WEST] {
                let status = lab.status(gateway).await;
                assert!(is_ready(&status.problems), "{silent:?}: {status:?}");
            }
        });
    }
}

#[test]
fn a_link_cut_when_idle_is_gone_round_in_time() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(3).await;
        let _clients = lab.clients(1 << 20).await;
        lab.sleep(IDLE).await;
        let begun = lab.host.now();
        lab.set_outage_between(GatewayId(1), GatewayId(2), true);
        for gateway in lab.fabric.gateway_ids() {
            loop {
                let status = lab.status(gateway).await;
                if status.problems.iter().any(|problem| problem.cause == ProblemCause::Link) {
                    break;
                }
                lab.sleep(Span::from_ms(100)).await;
                let took = lab.host.now().since(begun);
                assert!(took <= ROUND_WITHIN, "{gateway} after {took}: {status:?}");
            }
        }
    });
}
