//! Hostile programs at the address for trainers of other hosts, beside an honest job.

mod cuts;
mod cutting_relay;

use super::raw::{ARENA, RawClient, VALID_POST, Way, request, tls_way};
use super::{Deployment, LAYOUT, Team, attack_beside};
use gateway::config::RegionFile;
use gateway::local::protocol::{
    PIECE_BYTES_MAX, ProtocolRequest, ProtocolResponse, frame_protocol_message,
    read_protocol_message,
};
use gateway::memory::arena::Arena;
use hier_collectives::post::{FailureCode, RankEvent};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// 1,000 connections that never attach: several times what the gateway keeps.
const SILENT: usize = 1000;

/// The first bytes of a TLS record with a ClientHello, without the rest.
const HALF_HELLO: [u8; 9] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];

/// Returns the address at which east serves other hosts.
fn attach_address(deployment: &Deployment) -> SocketAddr {
    let file = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    file.gateway(None).expect("one").attach.expect("it serves other hosts")
}

#[test]
fn silent_and_slow_handshakes_keep_no_trainer_out() {
    attack_beside("silent connections over TCP", async |deployment| {
        let address = attach_address(deployment);
        let mut open = Vec::new();
        for number in 0..SILENT {
            // The gateway may have closed it again already.
            let Ok(mut stream) = TcpStream::connect(address).await else { continue };
            let sent = if number.is_multiple_of(2) { &HALF_HELLO[..] } else { &[] };
            let _ = stream.write_all(sent).await;
            open.push(stream);
        }
        let pid = deployment.gateways[0].process.id();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count();
        assert!(files < 600, "the gateway has {files} files open");
        // A trainer attaches over TLS, and others by sockets.
        let raw = RawClient::attach_by(Way::Tls, deployment, 0).await;
        drop(raw);
        let team = Team::attach(deployment, &LAYOUT, "other").await;
        team.sum(&[1, 2, 3], 1000).await.expect("a sum");
        (open, team)
    });
}

#[test]
fn bytes_that_are_no_tls_end_their_connection_only() {
    attack_beside("garbage instead of TLS", async |deployment| {
        let address = attach_address(deployment);
        let http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let local = request(deployment, "other", "other", 0);
        let local = [b"L".to_vec(), frame_protocol_message(&local)].concat();
        let zeros = [0; 4096];
        for garbage in [&http[..], &local, &zeros, &[0xff; 70_000], &[0x16, 3, 1, 0xff, 0xff, 1]] {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            let _ = stream.write_all(garbage).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            // An alert at most, and no word of the protocol inside.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(answer.len() < 64, "{answer:?}");
        }
    });
}

#[test]
fn messages_before_and_instead_of_an_attach_are_refused() {
    attack_beside("other first messages over TLS", async |deployment| {
        let way = tls_way(deployment, "east");
        let piece = ProtocolRequest::ContributionPiece { offset: 0, bytes: 8 }.encode();
        let operator = br#"{"hold":{"link":"east-west","bits_per_second":1}}"#;
        for first in [piece, ProtocolRequest::Detach.encode(), operator.to_vec(), vec![]] {
            let mut stream = way.connect_unattached().await.expect("connects");
            stream.write_all(&frame_protocol_message(&first)).await.expect("sent");
            stream.flush().await.expect("sent");
            let answer = read_protocol_message(&mut stream).await.expect("an answer");
            let answer = ProtocolResponse::decode(&answer);
            assert!(matches!(answer, Ok(ProtocolResponse::Refused(_))), "{answer:?}");
        }
        // A message that is announced longer than any.
        let mut stream = way.connect_unattached().await.expect("connects");
        stream.write_all(&[0xff; 8]).await.expect("sent");
        stream.flush().await.expect("sent");
        assert!(read_protocol_message(&mut stream).await.is_err());
    });
}

#[test]
fn pieces_that_stop_or_stray_end_their_connection_only() {
    attack_beside("bad pieces", async |deployment| {
        let cases = [(ARENA, 1), (u64::MAX, 1), (0, 2), (0, PIECE_BYTES_MAX + 1), (ARENA / 2, 1)];
        for (posts, (offset, bytes)) in
            [false, true].into_iter().flat_map(|posts| cases.map(|case| (posts, case)))
        {
            let mut raw = RawClient::attach_by(Way::Tls, deployment, 0).await;
            if posts {
                raw.wait_for_epoch().await;
                raw.post(VALID_POST).await.expect("sent");
            }
            let frame = frame_protocol_message(
                &ProtocolRequest::ContributionPiece { offset, bytes }.encode(),
            );
            raw.stream.write_all(&frame).await.expect("sent");
            raw.stream.flush().await.expect("sent");
            let why = raw.refusal_at_end().await;
            let of_order = if posts { "bytes have come" } else { "nothing was posted" };
            let reasons = [of_order, "beyond the contribution", "malformed request"];
            assert!(reasons.iter().any(|reason| why.contains(reason)), "{offset} {bytes}: {why}");
        }
        // Shared memory is no place for pieces.
        let mut local = RawClient::attach(deployment, 0).await;
        let piece = ProtocolRequest::ContributionPiece { offset: 0, bytes: 8 }.encode();
        local.stream.write_all(&frame_protocol_message(&piece)).await.expect("sent");
        assert!(local.refusal_at_end().await.contains("the arena is shared"));
        // Pieces without end fill no more than their contribution.
        let mut raw = RawClient::attach_by(Way::Tls, deployment, 0).await;
        raw.wait_for_epoch().await;
        raw.post(VALID_POST).await.expect("sent");
        for number in 2..200 {
            let offset = number * u64::from(PIECE_BYTES_MAX);
            let piece = ProtocolRequest::ContributionPiece { offset, bytes: PIECE_BYTES_MAX };
            let whole = frame_protocol_message(&piece.encode());
            let bytes = [whole, vec![0xa5; PIECE_BYTES_MAX as usize]].concat();
            if raw.stream.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let why = raw.refusal_at_end().await;
        assert!(why.is_empty() || why.contains("beyond the contribution"), "{why}");
        // One that stops in its middle holds up nobody.
        let mut raw = RawClient::attach_by(Way::Tls, deployment, 0).await;
        raw.wait_for_epoch().await;
        let piece = ProtocolRequest::ContributionPiece { offset: 0, bytes: PIECE_BYTES_MAX };
        raw.announce(VALID_POST).await.expect("sent");
        raw.stream.write_all(&frame_protocol_message(&piece.encode())).await.expect("taken");
        raw.stream.write_all(&[0xa5; 1000]).await.expect("taken");
        raw.stream.flush().await.expect("sent");
        raw
    });
}

#[test]
fn posts_that_announce_other_bytes_are_refused() {
    attack_beside("announced bytes that do not fit", async |deployment| {
        let whole = 8 * VALID_POST.elements;
        for announced in [0, 8, whole - 1, whole + 1, u64::MAX] {
            let mut raw = RawClient::attach_by(Way::Tls, deployment, 0).await;
            raw.wait_for_epoch().await;
            raw.announce_bytes(VALID_POST, announced).await.expect("sent");
            let failure = loop {
                match raw.receive().await.expect("the connection stands") {
                    ProtocolResponse::Event(RankEvent::Failed { failure, .. }) => break failure,
                    ProtocolResponse::Event(_) => {}
                    other => panic!("{announced}: {other:?}"),
                }
            };
            assert_eq!(failure.code, FailureCode::BadPost, "{announced}: {failure}");
            let words = format!("{announced} bytes announced behind a post whose");
            assert!(failure.text.contains(&words), "{failure}");
        }
    });
}

#[test]
fn arenas_beyond_the_memory_of_a_job_are_refused() {
    attack_beside("arenas of any size over TLS", async |deployment| {
        let (_arena, memory) = Arena::create_memfd(ARENA).expect("memory");
        let attach = request(deployment, "other", "other", 0);
        for (bytes, words) in
            [(0u64, "not possible"), (u64::MAX, "of memory"), (1 << 40, "of memory")]
        {
            // The length of the arena stands behind type, version and rank.
            let mut request = attach.clone();
            request[7..15].copy_from_slice(&bytes.to_be_bytes());
            let why = super::raw::refusal_by(Way::Tls, deployment, &memory, &request).await;
            assert!(why.contains(words), "{bytes}: {why}");
        }
    });
}
