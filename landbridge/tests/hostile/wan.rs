//! Connections to WAN ports without a certificate of the CA, or with one but without a hello.

use super::{Deployment, LAYOUT, TEST_TIMEOUT, Team, attack_beside};
use gateway::wan::connect::tls::Credentials;
use quinn::{ClientConfig, Connection, Endpoint};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

/// An address at which no gateway of the fabric is.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Lanes of the link of the deployment.
const LANES: u16 = 4;

/// Returns an endpoint that presents a certificate.
fn endpoint_with(certificate: PathBuf, key: PathBuf, ca: PathBuf) -> Endpoint {
    let credentials = Credentials::load(&certificate, &key, &ca).expect("keys");
    let mut endpoint = Endpoint::client((ELSEWHERE, 0).into()).expect("a socket");
    let crypto = credentials.client_config().expect("TLS");
    endpoint.set_default_client_config(ClientConfig::new(crypto));
    endpoint
}

/// Connects to a lane of west, which random bytes choose; `None` if it is refused.
async fn dial(endpoint: &Endpoint, west: SocketAddr) -> Option<Connection> {
    endpoint.connect(west, "west-0.two.landbridge").expect("valid").await.ok()
}

#[test]
fn unauthenticated_and_silent_peers_keep_no_peer_out() {
    attack_beside("unauthenticated WAN connections", async |deployment| {
        if !deployment.path("strange").exists() {
            deployment.certs("strange", &["train"]);
        }
        let keys = |folder: &str, file: &str| deployment.path(folder).join(file);
        let ca = keys("keys", "ca.pem");
        let outsider =
            endpoint_with(keys("strange", "east-0.pem"), keys("strange", "east-0.key"), ca.clone());
        let insider = endpoint_with(keys("keys", "east-0.pem"), keys("keys", "east-0.key"), ca);
        let noise = UdpSocket::bind((ELSEWHERE, 0)).expect("a socket");
        for number in 0..10_000u32 {
            let bytes = [[0xc0, 0, 0, 0, 1].as_slice(), &number.to_be_bytes().repeat(300)].concat();
            let _ = noise.send_to(&bytes, deployment.west);
        }
        for _ in 0..300 {
            if let Some(connection) = dial(&outsider, deployment.west).await {
                connection.closed().await;
            }
        }
        let mut silent = Vec::new();
        for _ in 0..100 * LANES {
            silent.extend(dial(&insider, deployment.west).await);
        }
        let kept = || silent.iter().filter(|silent| silent.close_reason().is_none()).count();
        // Connections that were evicted learn of it a moment later.
        for _ in 0..100 {
            if kept() <= 64 * usize::from(LANES) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let kept = kept();
        println!("{} certificates of the CA said no hello, {kept} of them are kept", silent.len());
        assert!(kept <= 64 * usize::from(LANES), "{kept}");
        let log = deployment.gateways[1].log.text();
        let lines = log.lines().filter(|line| line.contains("refused")).count();
        assert!(lines < 50, "{lines} lines about refused connections");
        (silent, insider, outsider)
    });
}

#[test]
fn a_restarted_peer_is_admitted_during_a_connection_flood() {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[1, 2, 3], 1000).await.expect("a sum");
        drop(team);
        let keys = |file: &str| deployment.path("keys").join(file);
        let insider = endpoint_with(keys("east-0.pem"), keys("east-0.key"), keys("ca.pem"));
        let mut east = deployment.gateways.remove(0);
        east.process.kill().expect("killed");
        east.process.wait().expect("ended");
        let mut silent = Vec::new();
        for _ in 0..100 * LANES {
            silent.extend(dial(&insider, deployment.west).await);
        }
        let west = deployment.west;
        let flood = tokio::spawn(async move {
            loop {
                silent.extend(dial(&insider, west).await);
                silent.retain(|connection| connection.close_reason().is_none());
            }
        });
        deployment.run_gateway("east");
        let met = async {
            let team = Team::attach(&deployment, &LAYOUT, "train").await;
            team.sum(&[1, 2, 3], 1000).await.expect("a sum");
        };
        tokio::time::timeout(TEST_TIMEOUT, met).await.expect("no hang");
        assert!(!flood.is_finished(), "the flood ended early");
        flood.abort();
    });
}
