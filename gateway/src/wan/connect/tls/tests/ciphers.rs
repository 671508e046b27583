//! The cipher follows the CPUs of both ends.

use super::super::credentials::GATEWAY_ALPN;
use super::super::gateway_identity_dns_name;
use super::*;
use crate::wan::connect::tls::cipher_suites::tls_cipher_provider;
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, quic};
use std::sync::Arc;

/// The cipher that two ends agree on, by whether their CPUs have AES instructions.
fn agreed(dialler_has_aes: bool, acceptor_has_aes: bool) -> CipherSuite {
    let authority = authority();
    let [east, west] =
        ["east-0", "west-0"].map(|name| credentials(&issue(&authority, name), &authority));
    let (client, server) = (
        east.dialler_config(GATEWAY_ALPN, dialler_has_aes),
        west.acceptor_config(acceptor_has_aes),
    );
    let (client, server) = (Arc::new(client.expect("TLS")), Arc::new(server.expect("TLS")));
    let name = ServerName::try_from(gateway_identity_dns_name("west-0", FABRIC)).expect("a name");
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

/// Passes all handshake bytes of one end to the other, key by key.
fn pass_on(from: &mut quic::Connection, to: &mut quic::Connection) {
    loop {
        let mut bytes = Vec::new();
        let next_key = from.write_hs(&mut bytes);
        if bytes.is_empty() && next_key.is_none() {
            return;
        }
        if !bytes.is_empty() {
            to.read_hs(&bytes).expect("TLS");
        }
    }
}

#[test]
fn chacha20_is_used_only_without_aes_instructions() {
    assert_eq!(agreed(true, true), CipherSuite::TLS13_AES_128_GCM_SHA256);
    for (dialler, acceptor) in [(true, false), (false, true), (false, false)] {
        let chacha20 = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        assert_eq!(agreed(dialler, acceptor), chacha20, "{dialler} {acceptor}");
    }
    // No other suite is offered, so the fastest one is used.
    assert_eq!(
        [true, false].map(|has_aes| tls_cipher_provider(has_aes).cipher_suites.len()),
        [2, 2]
    );
}
