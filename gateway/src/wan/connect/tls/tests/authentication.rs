//! Both ends prove their names, or the handshake fails.

use super::super::{check_gateway_identity, gateway_identity_dns_name};
use super::*;
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;

/// The results of one handshake over loopback at both ends; the dialler asks for `wanted`.
async fn meet(
    dialler: &Credentials,
    acceptor: &Credentials,
    wanted: &str,
) -> (Result<Connection, String>, Result<Connection, String>) {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = ServerConfig::with_crypto(acceptor.server_config().expect("TLS"));
    let server = Endpoint::server(server, loopback).expect("a socket");
    let client = Endpoint::client(loopback).expect("a socket");
    let config = ClientConfig::new(dialler.client_config().expect("TLS"));
    let address = server.local_addr().expect("bound");
    let dial = async {
        let connecting =
            client.connect_with(config, address, &gateway_identity_dns_name(wanted, FABRIC));
        let connection = connecting.expect("a valid name").await.map_err(|e| e.to_string())?;
        // A client's handshake ends before the server has checked its certificate.
        match connection.accept_uni().await {
            Ok(_) => Ok(connection),
            Err(error) => Err(error.to_string()),
        }
    };
    let accept = async {
        let connection = server
            .accept()
            .await
            .expect("the endpoint is open")
            .await
            .map_err(|e| e.to_string())?;
        let mut stream = connection.open_uni().await.map_err(|e| e.to_string())?;
        stream.write_all(b"!").await.map_err(|e| e.to_string())?;
        Ok(connection)
    };
    tokio::join!(dial, accept)
}

fn chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity().expect("mutual TLS");
    *identity.downcast::<Vec<CertificateDer<'static>>>().expect("rustls's type")
}

#[tokio::test]
async fn both_ends_prove_their_names() {
    let authority = authority();
    let east = credentials(&issue(&authority, "east-0"), &authority);
    let west = credentials(&issue(&authority, "west-0"), &authority);
    let (dialled, accepted) = meet(&east, &west, "west-0").await;
    let (dialled, accepted) = (dialled.expect("connected"), accepted.expect("connected"));
    assert_eq!(check_gateway_identity(&chain(&dialled), "west-0", FABRIC), Ok(()));
    assert_eq!(check_gateway_identity(&chain(&accepted), "east-0", FABRIC), Ok(()));
    let other =
        check_gateway_identity(&chain(&accepted), "north-0", FABRIC).expect_err("another name");
    assert_eq!(
        other.to_string(),
        "the peer claims to be `north-0.two-region.landbridge`, but its certificate is for \
         `east-0.two-region.landbridge`"
    );
    assert!(check_gateway_identity(&chain(&accepted), "east-0", "other-fabric").is_err());
    assert!(check_gateway_identity(&[], "east-0", FABRIC).is_err());
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let east = credentials(&issue(&ours, "east-0"), &ours);
    // It trusts our CA, but another has signed it.
    let foreign = credentials(&issue(&theirs, "west-0"), &ours);
    let (dialled, accepted) = meet(&foreign, &east, "east-0").await;
    let reasons = (dialled.expect_err("refused"), accepted.expect_err("refused"));
    assert!(
        reasons.1.contains("UnknownIssuer") || reasons.1.contains("BadSignature"),
        "{reasons:?}"
    );
    assert!(reasons.0.contains("the cryptographic handshake failed"), "{reasons:?}");
    let (dialled, accepted) = meet(&east, &foreign, "west-0").await;
    let reasons = (dialled.expect_err("refused"), accepted.expect_err("refused"));
    assert!(
        reasons.0.contains("UnknownIssuer") || reasons.0.contains("BadSignature"),
        "{reasons:?}"
    );
}

#[tokio::test]
async fn certificates_of_either_ca_are_accepted_while_both_are_trusted() {
    let (old, new) = (authority(), authority());
    let east = credentials_trusting(&issue(&old, "east-0"), &[&old, &new]);
    for west in [issue(&old, "west-0"), issue(&new, "west-0")] {
        let west = credentials_trusting(&west, &[&new, &old]);
        let (dialled, accepted) = meet(&east, &west, "west-0").await;
        assert!(dialled.is_ok() && accepted.is_ok(), "{dialled:?} {accepted:?}");
        let (dialled, accepted) = meet(&west, &east, "east-0").await;
        assert!(dialled.is_ok() && accepted.is_ok(), "{dialled:?} {accepted:?}");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused_on_either_side() {
    let authority = authority();
    let east = credentials(&issue(&authority, "east-0"), &authority);
    let expired = authority
        .issue_certificate("west-0", FABRIC, CertificateValidity::expired())
        .expect("a certificate");
    let expired = credentials(&expired, &authority);
    let (dialled, accepted) = meet(&expired, &east, "east-0").await;
    let reasons = (dialled.expect_err("refused"), accepted.expect_err("refused"));
    assert!(reasons.1.to_lowercase().contains("expired"), "{reasons:?}");
    assert!(reasons.0.to_lowercase().contains("expired"), "{reasons:?}");
    let (dialled, accepted) = meet(&east, &expired, "west-0").await;
    let reasons = (dialled.expect_err("refused"), accepted.expect_err("refused"));
    assert!(reasons.0.to_lowercase().contains("expired"), "{reasons:?}");
    assert!(reasons.1.to_lowercase().contains("expired"), "{reasons:?}");
}

#[tokio::test]
async fn a_dialler_refuses_another_gateway_at_the_address() {
    let authority = authority();
    let east = credentials(&issue(&authority, "east-0"), &authority);
    let west = credentials(&issue(&authority, "west-0"), &authority);
    let (dialled, _) = meet(&east, &west, "north-0").await;
    let reason = dialled.expect_err("refused");
    assert!(reason.contains("north-0.two-region.landbridge"), "{reason}");
}

#[test]
fn invalid_files_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let authority = authority();
    let (east, west) = (issue(&authority, "east-0"), issue(&authority, "west-0"));
    std::fs::write(path("own.pem"), &east.certificate_pem).expect("a temporary file");
    std::fs::write(path("own.key"), &west.key_pem).expect("a temporary file");
    std::fs::write(path("ca.pem"), "no PEM").expect("a temporary file");
    let load = || Credentials::load(&path("own.pem"), &path("own.key"), &path("ca.pem"));
    assert!(load().expect_err("no CA").to_string().contains("ca.pem: holds no certificate"));
    std::fs::write(path("ca.pem"), authority.certificate_pem()).expect("a temporary file");
    let mismatch = load().expect_err("another key").to_string();
    assert!(mismatch.contains("own.pem"), "{mismatch}");
    std::fs::write(path("own.key"), &east.certificate_pem).expect("a temporary file");
    let no_key = load().expect_err("a certificate").to_string();
    assert!(no_key.contains("own.key: holds no private key in PEM; make it"), "{no_key}");
    std::fs::remove_file(path("own.key")).expect("there");
    let missing = load().expect_err("no key").to_string();
    assert!(missing.contains("own.key"), "{missing}");
}
