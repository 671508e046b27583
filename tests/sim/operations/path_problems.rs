//! Shut UDP ports and an MTU that does not fit are named at both ends, by status, log and metrics.

use gateway::observe::problem_cause::ProblemCause;
use gateway::observe::readiness::is_ready;
use gateway::observe::status::PeerState;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::FailureCode;
use scenarios::collectives::batch::{Case, outcomes, post_all, succeeds};
use scenarios::observe::log_capture::Log;
use scenarios::{EAST, Lab, Shape, WEST, carrier_address, simulate, simulated_address};
use units::Span;

/// 45 s: lanes have been missing for so long that the path was checked and the problem logged.
const LASTING: Span = Span::from_secs(45);
/// 30 s: dials are repeated at least so often, so that what was corrected works again.
const CORRECTED: Span = Span::from_secs(30);

/// Returns a shape whose gateways use four lanes at all times.
fn four_lanes() -> Shape {
    Shape { lanes: 4, ..Shape::new(1, 1) }
}

/// Lets packets of at most `bytes` bytes through, each way.
fn set_path_mtu(lab: &Lab, bytes: u32) {
    let (east, west) = (simulated_address(EAST).ip(), simulated_address(WEST).ip());
    for (from, to) in [(east, west), (west, east)] {
        lab.net.set_mtu(from, to, bytes).expect("a link");
    }
}

/// Checks that both gateways have all lanes, an epoch and no problem.
async fn assert_sound(lab: &Lab) {
    for gateway in [EAST, WEST] {
        let status = lab.status(gateway).await;
        assert!(status.problems.is_empty(), "{status:?}");
        let peer = &status.peers[0];
        assert_eq!((peer.lanes_up, peer.state), (4, PeerState::Up), "{status:?}");
        assert_eq!((peer.path_mtu, peer.mtu), (None, Some(1500)), "{status:?}");
    }
}

#[test]
fn a_pinned_mtu_that_does_not_fit_is_named() {
    let log = Log::default();
    let _logging = log.listen();
    simulate(async {
        let lab = Lab::start(&four_lanes(), 1).await;
        set_path_mtu(&lab, 1400);
        lab.sleep(LASTING).await;
        for gateway in [EAST, WEST] {
            let status = lab.status(gateway).await;
            let peer = &status.peers[0];
            assert_eq!((peer.lanes_up, peer.path_mtu), (0, Some(1400)), "{status:?}");
            let problem = peer.problem.clone().unwrap_or_default();
            assert!(problem.contains("more than 1400 bytes"), "{problem}");
            assert!(problem.contains("`mtu` 1500"), "{problem}");
            let remedy = peer.remedy.clone().unwrap_or_default();
            assert!(remedy.contains("set `mtu` to 1400"), "{remedy}");
            assert!(!is_ready(&status.problems), "{status:?}");
        }
        let text = log.text();
        let warned = |line: &&str| line.contains("WARN") && line.contains("more than 1400 bytes");
        assert_eq!(text.lines().filter(warned).count(), 2, "once at each gateway: {text}");
        set_path_mtu(&lab, 1500);
        lab.sleep(CORRECTED).await;
        assert_sound(&lab).await;
        assert!(log.text().contains("no longer"), "{}", log.text());
    });
}

/// The acceptor of a lane knows only that it is missing; the dialler knows why.
#[test]
fn shut_ports_are_named_while_lanes_are_missing() {
    let log = Log::default();
    let _logging = log.listen();
    simulate(async {
        let lab = Lab::start(&Shape { carriers: 4, ..Shape::new(1, 1) }, 1).await;
        (1..4).for_each(|lane| lab.net.set_muted(carrier_address(WEST, lane), true));
        lab.sleep(LASTING).await;
        for gateway in [EAST, WEST] {
            let status = lab.status(gateway).await;
            let peer = &status.peers[0];
            assert_eq!((peer.lanes_up, peer.state), (1, PeerState::Degraded), "{status:?}");
            assert!(status.jobs[0].epoch.is_some() && is_ready(&status.problems), "{status:?}");
            assert_eq!(status.problems.len(), 1, "{status:?}");
            assert_eq!(status.problems[0].cause, ProblemCause::Lanes, "{status:?}");
            let metrics = lab.metrics(gateway).render();
            let missing = format!("landbridge_lanes_missing{{peer=\"{}\"}} 3", peer.gateway);
            assert!(metrics.contains(&missing), "{metrics}");
            assert!(metrics.contains("landbridge_ready 1"), "{metrics}");
        }
        let status = lab.status(EAST).await;
        assert_eq!(status.peers[0].silent_ports, [7400], "of three addresses");
        let problem = status.peers[0].problem.clone().unwrap_or_default();
        assert!(problem.starts_with("3 of 4 UDP ports do not answer: 7400 of "), "{problem}");
        let last = carrier_address(WEST, 3).ip().to_string();
        assert!(problem.ends_with(&format!("7400 of {last}")), "{problem}");
        let text = log.text();
        let warned = |line: &&str| line.contains("WARN") && line.contains("1 of 4 lanes");
        assert_eq!(text.lines().filter(warned).count(), 2, "once at each gateway: {text}");
        (1..4).for_each(|lane| lab.net.set_muted(carrier_address(WEST, lane), false));
        lab.sleep(CORRECTED).await;
        assert_sound(&lab).await;
    });
}

#[test]
fn start_orders_within_20_s_need_no_warning() {
    for gap in [0, 1, 5, 12, 20] {
        let log = Log::default();
        let _logging = log.listen();
        simulate(async {
            let lab = Lab::start_apart(&four_lanes(), 1, Span::from_secs(gap)).await;
            lab.sleep(CORRECTED).await;
            assert_sound(&lab).await;
        });
        // The memory of the gateways of all simulations is small.
        let warned = |line: &&str| line.contains("WARN") && !line.contains("`memory`");
        let text = log.text();
        assert_eq!(text.lines().find(warned), None, "{gap} s");
    }
}

/// A tunnel may come to carry less than QUIC needs, while probes and acknowledgements still pass.
#[test]
fn a_path_that_carries_short_packets_alone_is_lost() {
    for rtt in [Span::from_ms(2), Span::from_ms(80)] {
        simulate(async {
            let shape = Shape { rtt, ..four_lanes() };
            let lab = Lab::start(&shape, 1).await;
            let clients = lab.clients(64 << 20).await;
            let case = Case::new(ReduceOp::Sum, Dtype::F32, 4 << 20, 7);
            succeeds(&clients, 1, &case).await;
            set_path_mtu(&lab, 576);
            let begin = lab.host.now();
            let mut operations = post_all(&clients, &case).await;
            for outcome in outcomes(&mut operations).await {
                let failure = outcome.expect_err("no data gets through");
                let told = [FailureCode::Stalled, FailureCode::RegionLost];
                assert!(told.contains(&failure.code), "{rtt}: {failure}");
            }
            let took = lab.host.now().since(begin);
            assert!(took < Span::from_secs(30), "{rtt}: heard after {took}");
            lab.sleep(LASTING).await;
            for gateway in [EAST, WEST] {
                let status = lab.status(gateway).await;
                assert!(!is_ready(&status.problems), "{rtt}: {status:?}");
                let remedy = status.peers[0].remedy.clone().unwrap_or_default();
                assert!(remedy.contains("an MTU below 1228"), "{rtt}: {status:?}");
            }
            set_path_mtu(&lab, 1500);
            lab.sleep(CORRECTED).await;
            succeeds(&clients, 1, &case).await;
        });
    }
}
