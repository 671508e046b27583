//! Certificates are renewed while gateways run, and unfinished handshakes block no peer.

use gateway::host::PortShare;
use gateway::observe::status::PeerState;
use gateway::warnings::Warnings;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, succeeds};
use scenarios::lab::credentials::CredentialKind;
use scenarios::{EAST, Lab, Shape, WEST, simulate, simulated_address};
use tokio::task::JoinHandle;
use units::{BitRate, Span};
use wan_sim::LinkSpec;

/// East dials and west accepts. Each switches to credentials that no peer trusts, and back to valid
/// ones.
#[test]
fn credentials_count_from_the_next_handshake_on() {
    for renewed in [EAST, WEST] {
        let case = Case::new(ReduceOp::Sum, Dtype::F32, 1003, 1);
        simulate(async {
            let lab = Lab::start(&Shape::new(1, 1), 1).await;
            let clients = lab.clients(1 << 20).await;
            let epoch = clients[0].epoch();
            let gateway = &lab.gateways[usize::from(renewed.0)];
            let other = CredentialKind::OtherAuthority.credentials(&lab.fabric, renewed);
            gateway.renew_credentials(other).await;
            lab.sleep(Span::from_secs(60)).await;
            succeeds(&clients, 1, &case).await;
            assert_eq!(clients[0].epoch(), epoch, "connections go on");
            lab.set_outage(true);
            lab.sleep(Span::from_secs(30)).await;
            lab.set_outage(false);
            lab.sleep(Span::from_secs(60)).await;
            let peer = lab.status(EAST).await.peers.remove(0);
            assert_eq!((peer.state, peer.lanes_up), (PeerState::Connecting, 0), "{peer:?}");
            let problem = peer.problem.unwrap_or_default();
            assert!(problem.contains("UnknownIssuer"), "{renewed}: {problem}");
            let valid = CredentialKind::Valid.credentials(&lab.fabric, renewed);
            gateway.renew_credentials(valid).await;
            while clients.iter().any(|client| client.epoch() == epoch) {
                lab.sleep(Span::from_secs(1)).await;
            }
            succeeds(&clients, 1, &case).await;
            // The last of the lanes are dialled again.
            lab.sleep(Span::from_secs(10)).await;
            for id in [EAST, WEST] {
                let peer = lab.status(id).await.peers.remove(0);
                assert_eq!((peer.state, peer.problem), (PeerState::Up, None), "{renewed}");
            }
        });
    }
}

/// Has an unauthenticated host begin 2,000 handshakes with west each second, until the task is aborted.
/// Without a `way_back` it never hears of west. Their round trip is `rtt`.
fn flood_west_with_handshakes(lab: &Lab, rtt: Span, way_back: bool) -> JoinHandle<()> {
    let (outsider, west) = (simulated_address(GatewayId(8)), simulated_address(WEST));
    let one_way = Span::from_ns(rtt.ns() / 2);
    let link = LinkSpec::new(BitRate::from_bits_per_second(1_000_000_000), one_way);
    let link = link.expect("a link");
    lab.net.connect(outsider.ip(), west.ip(), link, link, 1);
    lab.net.set_blackhole(west.ip(), outsider.ip(), !way_back).expect("a link");
    let socket = lab.host.bind_udp(outsider, PortShare::ALONE, 1 << 20, &Warnings::default());
    let socket = socket.expect("a socket");
    let (config, runtime) = (quinn::EndpointConfig::default(), lab.host.quic_runtime());
    let endpoint = quinn::Endpoint::new_with_abstract_socket(config, None, socket, runtime);
    let endpoint = endpoint.expect("an endpoint");
    let kind = if way_back { CredentialKind::OtherAuthority } else { CredentialKind::Valid };
    let crypto = kind.credentials(&lab.fabric, EAST).client_config().expect("TLS");
    let credentials = quinn::ClientConfig::new(crypto);
    tokio::spawn(async move {
        let mut begun = std::collections::VecDeque::new();
        loop {
            for _ in 0..400 {
                let name = "west-0.sim.landbridge";
                begun.push_back(endpoint.connect_with(credentials.clone(), west, name));
            }
            begun.drain(..begun.len().saturating_sub(2000));
            tokio::time::sleep(Span::from_ms(200).duration()).await;
        }
    })
}

/// Checks that east, started again, meets west in spite of a flood, which it then ends.
async fn assert_east_gets_in(lab: &mut Lab, flood: JoinHandle<()>) {
    lab.sleep(Span::from_secs(5)).await;
    lab.restart(EAST, CredentialKind::Valid).await;
    let clients = lab.clients(1 << 20).await;
    let case = Case::new(ReduceOp::Sum, Dtype::F32, 1003, 1);
    succeeds(&clients, 1, &case).await;
    assert!(!flood.is_finished(), "the handshakes still come");
    assert_eq!(lab.status(EAST).await.peers[0].lanes_up, 4);
    flood.abort();
}

/// An unauthenticated host sends handshakes without end and receives nothing.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn half_open_handshakes_keep_no_peer_out() {
    simulate(async {
        let mut lab = Lab::start(&Shape { lanes: 4, ..Shape::new(1, 1) }, 1).await;
        let flood = flood_west_with_handshakes(&lab, Span::from_ms(10), false);
        assert_east_gets_in(&mut lab, flood).await;
    });
}

/// The address of a gateway that nobody can dial is not known before its hello. Here a host without a
/// certificate answers Retry, and has more handshakes under way than there are slots.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn strangers_keep_no_peer_behind_nat_out() {
    simulate(async {
        let shape = Shape { lanes: 4, dials_only: Some(EAST), ..Shape::new(1, 1) };
        let mut lab = Lab::start(&shape, 1).await;
        let flood = flood_west_with_handshakes(&lab, Span::from_ms(300), true);
        assert_east_gets_in(&mut lab, flood).await;
    });
}
