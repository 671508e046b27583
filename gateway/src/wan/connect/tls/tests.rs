use super::*;
use crate::certs::{CertificateAuthority, Issued, Validity};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use rustls::{CipherSuite, quic};
use std::net::SocketAddr;

const FABRIC: &str = "two-region";

fn authority() -> CertificateAuthority {
    CertificateAuthority::generate(FABRIC).expect("a CA")
}

fn issue(authority: &CertificateAuthority, gateway: &str) -> Issued {
    authority.issue(gateway, FABRIC, Validity::days(1)).expect("a certificate")
}

/// Loads from files, as a gateway does.
fn credentials(issued: &Issued, authority: &CertificateAuthority) -> Credentials {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a temporary file");
        path
    };
    let certificate = file("own.pem", &issued.certificate_pem);
    let key = file("own.key", &issued.key_pem);
    let ca = file("ca.pem", authority.certificate_pem());
    Credentials::load(&certificate, &key, &ca).expect("credentials")
}

/// What both ends of one handshake over loopback find: the dialler asks for `wanted`.
async fn meet(
    dialler: &Credentials,
    answerer: &Credentials,
    wanted: &str,
) -> (Result<Connection, String>, Result<Connection, String>) {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = ServerConfig::with_crypto(answerer.server().expect("TLS"));
    let server = Endpoint::server(server, loopback).expect("a socket");
    let client = Endpoint::client(loopback).expect("a socket");
    let config = ClientConfig::new(dialler.client().expect("TLS"));
    let address = server.local_addr().expect("bound");
    let dial = async {
        let connecting = client.connect_with(config, address, &dns_name(wanted, FABRIC));
        let connection = connecting.expect("a valid name").await.map_err(|e| e.to_string())?;
        // A client's handshake ends before the server has judged its certificate.
        match connection.accept_uni().await {
            Ok(_) => Ok(connection),
            Err(error) => Err(error.to_string()),
        }
    };
    let answer = async {
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
    tokio::join!(dial, answer)
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
    let (dialled, answered) = meet(&east, &west, "west-0").await;
    let (dialled, answered) = (dialled.expect("connected"), answered.expect("connected"));
    assert_eq!(proves(&chain(&dialled), "west-0", FABRIC), Ok(()));
    assert_eq!(proves(&chain(&answered), "east-0", FABRIC), Ok(()));
    let other = proves(&chain(&answered), "north-0", FABRIC).expect_err("another name");
    assert_eq!(
        other.to_string(),
        "the peer claims to be `north-0.two-region.landbridge`, but its certificate is for \
         `east-0.two-region.landbridge`"
    );
    assert!(proves(&chain(&answered), "east-0", "other-fabric").is_err());
    assert!(proves(&[], "east-0", FABRIC).is_err());
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let east = credentials(&issue(&ours, "east-0"), &ours);
    // Believes our CA, but is signed by another.
    let stranger = credentials(&issue(&theirs, "west-0"), &ours);
    let (dialled, answered) = meet(&stranger, &east, "east-0").await;
    let reasons = (dialled.expect_err("refused"), answered.expect_err("refused"));
    assert!(
        reasons.1.contains("UnknownIssuer") || reasons.1.contains("BadSignature"),
        "{reasons:?}"
    );
    assert!(reasons.0.contains("the cryptographic handshake failed"), "{reasons:?}");
    let (dialled, answered) = meet(&east, &stranger, "west-0").await;
    let reasons = (dialled.expect_err("refused"), answered.expect_err("refused"));
    assert!(
        reasons.0.contains("UnknownIssuer") || reasons.0.contains("BadSignature"),
        "{reasons:?}"
    );
}

#[tokio::test]
async fn an_expired_certificate_is_refused_on_either_side() {
    let authority = authority();
    let east = credentials(&issue(&authority, "east-0"), &authority);
    let expired = authority.issue("west-0", FABRIC, Validity::over()).expect("a certificate");
    let expired = credentials(&expired, &authority);
    let (dialled, answered) = meet(&expired, &east, "east-0").await;
    let reasons = (dialled.expect_err("refused"), answered.expect_err("refused"));
    assert!(reasons.1.to_lowercase().contains("expired"), "{reasons:?}");
    assert!(reasons.0.to_lowercase().contains("expired"), "{reasons:?}");
    let (dialled, answered) = meet(&east, &expired, "west-0").await;
    let reasons = (dialled.expect_err("refused"), answered.expect_err("refused"));
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
fn files_at_fault_are_named() {
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
    std::fs::remove_file(path("own.key")).expect("there");
    let missing = load().expect_err("no key").to_string();
    assert!(missing.contains("own.key"), "{missing}");
}

/// The cipher of two whose CPUs have instructions for AES, or not.
fn agreed(dialler_has_aes: bool, answerer_has_aes: bool) -> CipherSuite {
    let authority = authority();
    let [east, west] =
        ["east-0", "west-0"].map(|name| credentials(&issue(&authority, name), &authority));
    let (client, server) = (east.dialler(ALPN, dialler_has_aes), west.answerer(answerer_has_aes));
    let (client, server) = (Arc::new(client.expect("TLS")), Arc::new(server.expect("TLS")));
    let name = ServerName::try_from(dns_name("west-0", FABRIC)).expect("a name");
    let client = quic::ClientConnection::new(client, quic::Version::V1, name, vec![]);
    let server = quic::ServerConnection::new(server, quic::Version::V1, vec![]);
    let mut client = quic::Connection::Client(client.expect("TLS"));
    let mut server = quic::Connection::Server(server.expect("TLS"));
    while client.is_handshaking() || server.is_handshaking() {
        pass_on(&mut client, &mut server);
        pass_on(&mut server, &mut client);
    }
    let suites = [&client, &server].map(|end| end.negotiated_cipher_suite().expect("agreed"));
    assert_eq!(suites[0], suites[1]);
    suites[0].suite()
}

/// All that one has to say, key by key.
fn pass_on(from: &mut quic::Connection, to: &mut quic::Connection) {
    loop {
        let mut said = Vec::new();
        let next_key = from.write_hs(&mut said);
        if said.is_empty() && next_key.is_none() {
            return;
        }
        if !said.is_empty() {
            to.read_hs(&said).expect("TLS");
        }
    }
}

#[test]
fn chacha20_is_for_those_without_instructions_for_aes_only() {
    assert_eq!(agreed(true, true), CipherSuite::TLS13_AES_128_GCM_SHA256);
    for (dialler, answerer) in [(true, false), (false, true), (false, false)] {
        let chacha20 = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        assert_eq!(agreed(dialler, answerer), chacha20, "{dialler} {answerer}");
    }
    // Nothing else is offered: what is fastest is what is taken.
    assert_eq!([true, false].map(|has_aes| provider(has_aes).cipher_suites.len()), [2, 2]);
}
