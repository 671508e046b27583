//! Tests of TLS streams over pipes in memory, beside rustls' own buffered connections.

use super::records::INCOMING_BYTES_MIN;
use super::*;
use crate::certs::{CertificateAuthority, CertificateValidity};
use crate::wan::connect::tls::{Credentials, gateway_verifier_client_config};
use proptest::prelude::*;
use rustls::{AlertDescription, ClientConnection};
use std::io::{Read, Write};
use std::sync::LazyLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// The settings of a trainer, and those of its gateway.
static SETTINGS: LazyLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let authority = CertificateAuthority::generate("site").expect("a CA");
    let ca = file("ca.pem", authority.certificate_pem());
    let issued = authority.issue_certificate("site-0", "site", CertificateValidity::days(1));
    let issued = issued.expect("signed");
    let (chain, key) = (file("own.pem", &issued.certificate_pem), file("own.key", &issued.key_pem));
    let credentials = Credentials::load(&chain, &key, &ca).expect("credentials");
    let server = credentials.attach_acceptor_config(None).expect("settings");
    (gateway_verifier_client_config(&ca, None, None).expect("settings"), Arc::new(server))
});

fn name() -> ServerName<'static> {
    ServerName::try_from("site-0.example").expect("a name")
}

/// Returns both ends of a connection over a pipe that holds so many bytes.
async fn meet(pipe_bytes: usize) -> (TlsClientStream<DuplexStream>, TlsServerStream<DuplexStream>) {
    let (ours, theirs) = tokio::io::duplex(pipe_bytes);
    let (client, server) = SETTINGS.clone();
    let dialled = TlsStream::connect(ours, client, name());
    let (dialled, accepted) = tokio::join!(dialled, TlsStream::accept(theirs, server));
    (dialled.expect("connected"), accepted.expect("connected"))
}

fn bytes_of(length: usize, first: usize) -> Vec<u8> {
    (first..first + length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Writes `sent` in parts and ends, while the other direction is read to its end in parts.
async fn exchange(
    stream: TlsStream<DuplexStream, impl TlsConnection>,
    sent: &[u8],
    [written, read]: [usize; 2],
) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let writing = async {
        for part in sent.chunks(written) {
            writer.write_all(part).await.expect("open");
        }
        writer.flush().await.expect("open");
        writer.shutdown().await.expect("open");
    };
    let reading = async {
        let (mut came, mut part) = (Vec::new(), vec![0; read]);
        loop {
            match reader.read(&mut part).await.expect("open") {
                0 => return came,
                bytes => came.extend_from_slice(&part[..bytes]),
            }
        }
    };
    tokio::join!(reading, writing).0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn bytes_arrive_in_order_both_ways(
        lengths in [0usize..700_000, 0usize..700_000],
        parts in [1usize..300_000, 1usize..300_000, 1usize..300_000, 1usize..300_000],
        pipe_bytes in 64usize..200_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one");
        let (up, down) = (bytes_of(lengths[0], 1), bytes_of(lengths[1], 2));
        let (went_down, went_up) = runtime.block_on(async {
            let (client, server) = meet(pipe_bytes).await;
            let client = exchange(client, &up, [parts[0], parts[1]]);
            tokio::join!(client, exchange(server, &down, [parts[2], parts[3]]))
        });
        prop_assert!(went_up == up && went_down == down);
    }
}

/// Passes bytes on until either side ends, and changes one of them.
async fn pass_on(
    mut from: tokio::io::ReadHalf<DuplexStream>,
    mut to: tokio::io::WriteHalf<DuplexStream>,
    changed: Option<(usize, u8)>,
) {
    let (mut at, mut part) = (0, [0; 700]);
    while let Ok(bytes @ 1..) = from.read(&mut part).await {
        if let Some((place, bits)) = changed
            && (at..at + bytes).contains(&place)
        {
            part[place - at] ^= bits;
        }
        at += bytes;
        if to.write_all(&part[..bytes]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// Shakes hands, then sends and receives 40,000 bytes. Returns those that came if nothing went wrong.
async fn try_to_exchange<C: TlsConnection>(
    shaken: impl Future<Output = io::Result<TlsStream<DuplexStream, C>>>,
) -> io::Result<Vec<u8>> {
    let (mut reader, mut writer) = tokio::io::split(shaken.await?);
    let writing = async {
        writer.write_all(&bytes_of(40_000, 5)).await?;
        writer.flush().await
    };
    let mut came = vec![0; 40_000];
    let (read, written) = tokio::join!(reader.read_exact(&mut came), writing);
    if read.is_err() {
        // Both halves say so again.
        assert!(reader.read(&mut [0; 9]).await.is_err());
        let _ = writer.write_all(b"more").await;
        let _ = writer.shutdown().await;
    }
    read.and(written.map(|()| 0)).map(|_| came)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_changed_byte_never_arrives_and_never_panics(
        up in any::<bool>(),
        place in prop_oneof![0usize..3000, 3000usize..45_000],
        bits in 1u8..,
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("one");
        runtime.block_on(async {
            let [(client, left), (server, right)] = [(); 2].map(|()| tokio::io::duplex(5000));
            let (left_reader, left_writer) = tokio::io::split(left);
            let (right_reader, right_writer) = tokio::io::split(right);
            let change = |here: bool| here.then_some((place, bits));
            tokio::spawn(pass_on(left_reader, right_writer, change(up)));
            tokio::spawn(pass_on(right_reader, left_writer, change(!up)));
            let (to_server, to_client) = SETTINGS.clone();
            let dialled = try_to_exchange(TlsStream::connect(client, to_server, name()));
            let accepted = try_to_exchange(TlsStream::accept(server, to_client));
            // A longer length is waited for: the trainer's connection has a time limit then.
            let limit = std::time::Duration::from_secs(1);
            let (dialled, accepted) = tokio::join!(
                tokio::time::timeout(limit, dialled),
                tokio::time::timeout(limit, accepted)
            );
            for came in [dialled, accepted].into_iter().flatten().flatten() {
                assert!(came == bytes_of(40_000, 5), "other bytes came");
            }
        });
    }
}

/// A pipe that counts the reads and writes that moved bytes.
struct Counted<S> {
    pipe: S,
    reads: usize,
    writes: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.pipe).poll_read(cx, out))?;
        self.reads += 1;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.pipe).poll_write(cx, bytes))?;
        self.writes += 1;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn many_bytes_take_few_reads_and_writes() {
    let (ours, theirs) = tokio::io::duplex(16 << 20);
    let [ours, theirs] = [ours, theirs].map(|pipe| Counted { pipe, reads: 0, writes: 0 });
    let (client, server) = SETTINGS.clone();
    let dialled = TlsStream::connect(ours, client, name());
    let (dialled, accepted) = tokio::join!(dialled, TlsStream::accept(theirs, server));
    let (mut dialled, mut accepted) = (dialled.expect("connected"), accepted.expect("connected"));
    (dialled.socket.writes, accepted.socket.reads) = (0, 0);
    let sent = bytes_of(4 << 20, 3);
    for piece in sent.chunks(1 << 18) {
        dialled.write_all(piece).await.expect("room");
    }
    dialled.flush().await.expect("room");
    let mut came = vec![0; sent.len()];
    accepted.read_exact(&mut came).await.expect("open");
    assert!(came == sent, "other bytes");
    // Eight writes of 512 KiB and the rest; 17 reads of the longest buffer, and six while it grows.
    assert!(dialled.socket.writes <= 9, "{} writes", dialled.socket.writes);
    assert!(accepted.socket.reads <= 17 + 6, "{} reads", accepted.socket.reads);
}

#[tokio::test]
async fn a_slow_reader_bounds_the_bytes_that_wait() {
    let (mut writer, mut reader) = meet(1 << 16).await;
    let sent = bytes_of(8 << 20, 6);
    let writing = async {
        writer.write_all(&sent).await.expect("open");
        writer.flush().await.expect("open");
    };
    let mut came = vec![0; sent.len()];
    tokio::join!(writing, async { reader.read_exact(&mut came).await.expect("open") });
    assert!(came == sent, "other bytes");
    let held = writer.records.outgoing_capacity();
    assert!(held <= 2 * OUTGOING_BYTES_MAX, "{held} bytes held");
}

#[tokio::test]
async fn bytes_before_a_broken_record_arrive() {
    let (mut writer, mut reader) = meet(1 << 16).await;
    writer.write_all(b"whole").await.expect("room");
    writer.flush().await.expect("room");
    writer.socket.write_all(&[23, 3, 3, 0, 40]).await.expect("room");
    writer.socket.write_all(&[7; 40]).await.expect("room");
    let mut came = [0; 9];
    assert_eq!(reader.read(&mut came).await.expect("the bytes before"), 5);
    reader.read(&mut came).await.expect_err("a broken record");
    // The other end hears why.
    let error = writer.read(&mut came).await.expect_err("an alert");
    let told = error.into_inner().and_then(|error| error.downcast::<rustls::Error>().ok());
    let told = told.expect("an error of TLS");
    assert_eq!(*told, rustls::Error::AlertReceived(AlertDescription::BadRecordMac));
}

#[tokio::test]
async fn a_silent_connection_takes_little_memory() {
    let (mut client, server) = meet(1 << 16).await;
    assert!(client.records.room().len() <= 2 * INCOMING_BYTES_MIN);
    drop(server);
}

#[tokio::test]
async fn a_connection_that_is_cut_is_an_error() {
    let (mut client, mut server) = meet(1 << 16).await;
    server.write_all(b"half").await.expect("open");
    server.flush().await.expect("open");
    drop(server);
    let mut came = Vec::new();
    let error = client.read_to_end(&mut came).await.expect_err("no end was said");
    assert_eq!((error.kind(), came.as_slice()), (io::ErrorKind::UnexpectedEof, &b"half"[..]));
}

#[tokio::test]
async fn bytes_that_are_not_tls_are_answered_with_an_alert() {
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    ours.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("room");
    let error = TlsServerStream::accept(theirs, SETTINGS.1.clone()).await.err().expect("refused");
    assert!(error.get_ref().is_some_and(|error| error.is::<rustls::Error>()), "{error}");
    let mut answer = Vec::new();
    ours.read_to_end(&mut answer).await.expect("closed");
    // An alert (21) of TLS, fatal (2).
    assert_eq!((answer.first(), answer.get(5)), (Some(&21), Some(&2)), "{answer:?}");
}

#[tokio::test]
async fn a_refused_certificate_is_told_to_the_gateway() {
    let other = CertificateAuthority::generate("other").expect("a CA");
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, other.certificate_pem()).expect("a file");
    let client = gateway_verifier_client_config(&ca, None, None).expect("settings");
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let dialled = TlsStream::connect(ours, client, name());
    let (dialled, accepted) = tokio::join!(dialled, TlsStream::accept(theirs, SETTINGS.1.clone()));
    let rustls_error = |error: io::Error| {
        error.into_inner().and_then(|error| error.downcast::<rustls::Error>().ok())
    };
    let refused = dialled.err().and_then(rustls_error).expect("another CA");
    assert!(matches!(*refused, rustls::Error::InvalidCertificate(_)), "{refused}");
    let told = accepted.err().and_then(rustls_error).expect("an alert");
    assert_eq!(*told, rustls::Error::AlertReceived(AlertDescription::UnknownCA));
}

/// A trainer with rustls' buffered connection, which may do what ours does not.
struct Buffered {
    tls: ClientConnection,
    pipe: DuplexStream,
}

impl Buffered {
    async fn send(&mut self) {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).expect("memory");
        }
        self.pipe.write_all(&out).await.expect("open");
    }

    async fn receive(&mut self) {
        let mut came = vec![0; 1 << 16];
        let bytes = self.pipe.read(&mut came).await.expect("open");
        let mut came = &came[..bytes];
        while !came.is_empty() {
            self.tls.read_tls(&mut came).expect("memory");
            self.tls.process_new_packets().expect("TLS");
        }
    }
}

#[tokio::test]
async fn keys_are_renewed_between_bytes_both_ways() {
    let (pipe, theirs) = tokio::io::duplex(1 << 16);
    let tls = ClientConnection::new(SETTINGS.0.clone(), name()).expect("settings");
    let mut trainer = Buffered { tls, pipe };
    let accepting = tokio::spawn(TlsServerStream::accept(theirs, SETTINGS.1.clone()));
    while trainer.tls.is_handshaking() {
        trainer.send().await;
        trainer.receive().await;
    }
    trainer.send().await;
    let mut gateway = accepting.await.expect("no panic").expect("connected");
    // Several updates in one read, with bytes before, between and after them.
    for at in 0..8u8 {
        trainer.tls.writer().write_all(&[at; 100]).expect("memory");
        trainer.tls.refresh_traffic_keys().expect("after the handshake");
    }
    trainer.tls.writer().write_all(b"end").expect("memory");
    trainer.send().await;
    // A write comes before the read, so that it meets the updates.
    gateway.write_all(b"before").await.expect("open");
    gateway.flush().await.expect("open");
    let mut came = vec![0; 803];
    gateway.read_exact(&mut came).await.expect("open");
    assert!(came.ends_with(b"end") && came[700..800] == [7; 100]);
    gateway.write_all(b"after").await.expect("open");
    gateway.flush().await.expect("open");
    let mut told = Vec::new();
    while told.len() < 11 {
        trainer.receive().await;
        let mut part = [0; 64];
        while let Ok(bytes @ 1..) = trainer.tls.reader().read(&mut part) {
            told.extend_from_slice(&part[..bytes]);
        }
    }
    assert_eq!(told, b"beforeafter");
}
