//! One UDP port serves all lanes of the gateway that is dialled; a gateway that nobody can dial dials.
//! A gateway with a host name is found at the addresses that the name has.

use gateway::observe::readiness::is_ready;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, succeeds};
use scenarios::lab::credentials::CredentialKind;
use scenarios::{
    EAST, Lab, Shape, WEST, carrier_address, simulate, simulated_address,
    simulated_dialling_address,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use units::{BitRate, Span};
use wan_sim::LinkSpec;

/// 5 s: all lanes of a link of 80 ms are up by then.
const MET: Span = Span::from_secs(5);

/// Returns a shape with four lanes, in which nobody can dial one of the gateways.
fn four_lanes(dials_only: Option<GatewayId>) -> Shape {
    Shape { lanes: 4, dials_only, ..Shape::new(1, 1) }
}

/// Checks that all lanes are up, and that collectives of both sizes have the right sum.
async fn assert_at_work(lab: &Lab) {
    lab.sleep(MET).await;
    for gateway in [EAST, WEST] {
        let status = lab.status(gateway).await;
        assert_eq!(status.peers[0].lanes_up, 4, "{status:?}");
        assert!(status.problems.is_empty(), "{status:?}");
    }
    let clients = lab.clients(32 << 20).await;
    for elements in [1003, 1 << 20] {
        succeeds(&clients, 1, &Case::new(ReduceOp::Sum, Dtype::F32, elements, 1)).await;
    }
}

/// Returns the addresses of all sockets that send or receive packets from now on.
fn watch_sockets(lab: &Lab) -> Arc<Mutex<BTreeSet<SocketAddr>>> {
    let seen = Arc::<Mutex<BTreeSet<SocketAddr>>>::default();
    let sockets = Arc::clone(&seen);
    lab.net.trace_to(move |record| {
        sockets.lock().expect("no panic").extend([record.source, record.destination]);
    });
    seen
}

#[test]
fn all_lanes_use_one_port_of_the_dialled_gateway() {
    simulate(async {
        for dials_only in [None, Some(EAST), Some(WEST)] {
            let lab = Lab::start(&four_lanes(dials_only), 1).await;
            let sockets = watch_sockets(&lab);
            // West is started last, and may have been dialled before.
            let before = lab.net.undelivered().no_socket;
            assert_at_work(&lab).await;
            let dialler = dials_only.unwrap_or(EAST);
            let dialled = GatewayId(1 - dialler.0);
            let dialling = (0..4).map(|lane| simulated_dialling_address(dialler, lane));
            let expected: BTreeSet<_> = dialling.chain([simulated_address(dialled)]).collect();
            assert_eq!(*sockets.lock().expect("no panic"), expected, "{dials_only:?}");
            // The other one is not dialled.
            assert_eq!(lab.net.undelivered().no_socket, before, "{dials_only:?}");
        }
    });
}

#[test]
fn either_gateway_is_back_when_one_cannot_be_dialled() {
    simulate(async {
        for restarted in [EAST, WEST] {
            let mut lab = Lab::start(&four_lanes(Some(WEST)), 1).await;
            assert_at_work(&lab).await;
            lab.restart(restarted, CredentialKind::Valid).await;
            assert_at_work(&lab).await;
        }
    });
}

/// A NAT may give a flow another address and port at any time.
#[test]
fn lanes_survive_another_address_of_their_nat() {
    simulate(async {
        let lab = Lab::start(&four_lanes(Some(WEST)), 1).await;
        assert_at_work(&lab).await;
        let nat = |lane: u16| SocketAddr::from(([10, 9, 0, 1], 6000 + lane));
        let rate = BitRate::from_bits_per_second(1_000_000_000);
        let link = LinkSpec::new(rate, Span::from_ms(40)).expect("a link");
        lab.net.connect(nat(0).ip(), simulated_address(EAST).ip(), link, link, 7);
        for lane in 0..4 {
            lab.net.move_socket(simulated_dialling_address(WEST, lane), nat(lane));
        }
        let before = lab.status(EAST).await.peers[0].lanes_up;
        assert_at_work(&lab).await;
        assert_eq!((before, lab.sent_and_resent_bytes().1), (4, 0), "no lane was lost");
    });
}

/// The host name of west, as east knows it.
const WEST_NAME: &str = "west-0.example.net";
/// 3 s: a peer that answers is met within this time after its name has its address.
const FOUND: Span = Span::from_secs(3);
/// 5 s: the longest pause between two questions for a name that has no address, beyond [`FOUND`].
const UNKNOWN_PAUSE: Span = Span::from_secs(5);

/// Returns a shape with four lanes in which east knows west by its name.
fn west_by_name() -> Shape {
    Shape { west_name: Some(WEST_NAME), ..four_lanes(None) }
}

/// Returns the time until east has all lanes to west, at most a minute.
async fn time_until_met(lab: &Lab) -> Span {
    let began = lab.host.now();
    let patience = Span::from_secs(60);
    while lab.host.now().since(began) < patience && lab.status(EAST).await.peers[0].lanes_up < 4 {
        lab.sleep(Span::from_ms(100)).await;
    }
    lab.host.now().since(began)
}

#[test]
fn a_gateway_is_found_once_its_name_is_known() {
    simulate(async {
        for silent in [false, true] {
            let lab = Lab::start(&west_by_name(), 1).await;
            lab.silence_resolver(silent);
            lab.sleep(Span::from_secs(60)).await;
            let status = lab.status(EAST).await;
            let problem = status.peers[0].problem.clone().unwrap_or_default();
            let expected = format!("host name `{WEST_NAME}` cannot be resolved: ");
            assert!(problem.starts_with(&expected), "{problem}");
            let remedy = status.peers[0].remedy.clone().unwrap_or_default();
            assert!(remedy.contains("/etc/resolv.conf"), "{remedy}");
            let told = status.problems.iter().any(|told| told.found.contains(&expected));
            assert!(told && !is_ready(&status.problems), "{status:?}");
            lab.set_host_name(WEST_NAME, vec![simulated_address(WEST).ip()]);
            lab.silence_resolver(false);
            let found = time_until_met(&lab).await;
            assert!(found <= FOUND + UNKNOWN_PAUSE + UNKNOWN_PAUSE, "{found}");
            assert_at_work(&lab).await;
        }
    });
}

#[test]
fn a_gateway_that_moves_is_found_again() {
    simulate(async {
        let mut lab = Lab::start(&west_by_name(), 1).await;
        let (first, second) = (simulated_address(WEST), carrier_address(WEST, 1));
        lab.set_host_name(WEST_NAME, vec![first.ip()]);
        assert_at_work(&lab).await;
        lab.move_gateway(WEST, second, EAST).await;
        lab.sleep(Span::from_secs(20)).await;
        assert_eq!(lab.status(EAST).await.peers[0].lanes_up, 0, "the DNS is not told yet");
        // The old address stays beside the new one for a while.
        lab.set_host_name(WEST_NAME, vec![first.ip(), second.ip()]);
        let found = time_until_met(&lab).await;
        assert!(found <= FOUND, "{found}");
        assert_at_work(&lab).await;
        // A resolver that fails later costs nothing.
        lab.set_host_name(WEST_NAME, vec![]);
        lab.restart(WEST, CredentialKind::Valid).await;
        let found = time_until_met(&lab).await;
        assert!(found <= FOUND, "{found}");
        assert_at_work(&lab).await;
    });
}
