//! Failures of sends that gateways on the way pass on: both ranks hear of them, and no others.

use super::members::failure_of;
use super::relayed_sends::line;
use super::sends::{ARENA_BYTES, OneSend, check_late_send, simulate_ranks};
use gateway::client::Client;
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use units::Span;

/// The gateway that passes on what ranks 0 and 4 send to each other.
const RELAY: GatewayId = GatewayId(1);

/// Returns three regions in a line, the second of which has two gateways of one rank. Gateways are
/// `a-0`, `b-0`, `b-1` and `c-0`, of ranks 0; 1; 2; 3 and 4.
fn mesh() -> Mesh {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    line(vec![vec![port(1)], vec![port(1), port(1)], vec![port(2)]])
}

/// A send of 16 MiB over the relay, which is under way for a while.
fn long_send() -> OneSend {
    OneSend::of_bytes(0, 4, 1, 16 << 20)
}

/// Returns a short send over the relay, and one that passes the other gateway of its region, and one
/// that ends there.
fn short_sends(seed: u64) -> [OneSend; 3] {
    let one = |from, to| OneSend { seed, ..OneSend::of_bytes(from, to, 5, 900) };
    [one(0, 4), one(0, 3), one(2, 4)]
}

/// Runs a test with a long send under way over the relay, and its ranks' other sends made before.
fn simulate_long_send<F: Future<Output = ()>>(test: impl FnOnce(Lab, Vec<Client>) -> F) {
    simulate(async {
        let lab = mesh().start(1).await;
        let clients = lab.clients(ARENA_BYTES).await;
        for one in short_sends(0) {
            one.run(&clients).await;
        }
        test(lab, clients).await;
    });
}

#[test]
fn a_gateway_lost_between_them_is_told_to_both_alone() {
    simulate_long_send(|mut lab, mut clients| async move {
        let [_, beside, near] = short_sends(1);
        let ends = [long_send().send(&clients).await, long_send().receive(&clients).await];
        let waiting = [beside.receive(&clients).await, near.receive(&clients).await];
        lab.sleep(Span::from_ms(100)).await;
        let begin = lab.host.now();
        lab.stop_gateway(RELAY).await;
        for end in ends {
            let failure = failure_of(end).await;
            let codes = [FailureCode::RegionLost, FailureCode::ShuttingDown];
            assert!(codes.contains(&failure.code), "{failure}");
            assert!(failure.text.contains("b-0"), "{failure}");
        }
        let waited = lab.host.now().since(begin);
        assert!(waited <= Span::from_secs(16), "{waited}");
        for (one, received) in [beside, near].into_iter().zip(waiting) {
            let sent = one.send(&clients).await;
            one.check(sent, received).await;
        }
        lab.sleep(Span::from_secs(20)).await;
        lab.start_gateway(RELAY).await;
        clients[1] = lab.client(1, ARENA_BYTES).await;
        lab.sleep(Span::from_secs(1)).await;
        for one in short_sends(2) {
            one.run(&clients).await;
        }
        long_send().run(&clients).await;
    });
}

#[test]
fn a_link_cut_on_the_way_is_told_to_both() {
    simulate_long_send(|lab, clients| async move {
        let ends = [long_send().send(&clients).await, long_send().receive(&clients).await];
        lab.sleep(Span::from_ms(100)).await;
        let begin = lab.host.now();
        // All links between the regions b and c.
        let cut = |is_cut| {
            for gateway in [RELAY, GatewayId(2)] {
                lab.set_outage_between(gateway, GatewayId(3), is_cut);
            }
        };
        cut(true);
        for end in ends {
            let failure = failure_of(end).await;
            let codes = [FailureCode::RegionLost, FailureCode::Stalled];
            assert!(codes.contains(&failure.code), "{failure}");
        }
        let waited = lab.host.now().since(begin);
        assert!(waited <= Span::from_secs(16), "{waited}");
        cut(false);
        lab.sleep(Span::from_secs(20)).await;
        for one in short_sends(1) {
            one.run(&clients).await;
        }
        long_send().run(&clients).await;
    });
}

#[test]
fn a_short_outage_on_the_way_is_waited_for() {
    simulate_long_send(|lab, clients| async move {
        let (sent, received) =
            (long_send().send(&clients).await, long_send().receive(&clients).await);
        lab.sleep(Span::from_ms(100)).await;
        lab.set_outage_between(RELAY, GatewayId(3), true);
        lab.sleep(Span::from_secs(3)).await;
        lab.set_outage_between(RELAY, GatewayId(3), false);
        long_send().check(sent, received).await;
    });
}

#[test]
fn a_gateway_on_the_way_finishes_sends_before_it_ends() {
    simulate_long_send(|mut lab, mut clients| async move {
        let (sent, received) =
            (long_send().send(&clients).await, long_send().receive(&clients).await);
        let alone = OneSend::of_bytes(4, 0, 9, 70).receive(&clients).await;
        lab.sleep(Span::from_ms(200)).await;
        lab.gateways[usize::from(RELAY.0)].drain(Span::from_secs(10)).await;
        let failure = failure_of(alone).await;
        assert_eq!(failure.code, FailureCode::ShuttingDown, "{failure}");
        assert!(failure.text.contains("b-0"), "{failure}");
        long_send().check(sent, received).await;
        lab.stop_gateway(RELAY).await;
        lab.sleep(Span::from_secs(1)).await;
        lab.start_gateway(RELAY).await;
        clients[1] = lab.client(1, ARENA_BYTES).await;
        lab.sleep(Span::from_secs(1)).await;
        for one in short_sends(3) {
            one.run(&clients).await;
        }
    });
}

#[test]
fn ends_apart_that_differ_are_both_told() {
    simulate_ranks(&mesh(), |_lab, clients| async move {
        for (from, to) in [(0, 4), (4, 0), (3, 0)] {
            let one = OneSend::of_bytes(from, to, 1, 4000);
            let other = OneSend { elements: 5000, ..one };
            let ends = [one.send(&clients).await, other.receive(&clients).await];
            let mut texts = Vec::new();
            for end in ends {
                let failure = failure_of(end).await;
                assert_eq!(failure.code, FailureCode::Disagreement, "{failure}");
                texts.push(failure.text);
            }
            assert_eq!(texts[0], texts[1]);
            assert!(texts[0].contains("length: "), "{}", texts[0]);
            // The next send of the tag is another one.
            one.run(&clients).await;
        }
    });
}

#[test]
fn a_relayed_send_without_an_end_fails_in_time() {
    simulate_ranks(&mesh(), |_lab, mut clients| async move {
        check_late_send(&clients, 4, 300_000).await;
        // A rank that is killed is told to the other one alone.
        let waits = OneSend::of_bytes(0, 4, 5, 300_000).receive(&clients).await;
        let near = OneSend::of_bytes(1, 4, 1, 9);
        let received = near.receive(&clients).await;
        drop(clients.remove(0));
        let failure = failure_of(waits).await;
        assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
        assert!(failure.text.contains("rank 0 (a)"), "{failure}");
        clients.insert(0, clients[0].clone());
        let sent = near.send(&clients).await;
        near.check(sent, received).await;
    });
}
