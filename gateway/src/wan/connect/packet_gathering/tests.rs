//! Tests of the socket: against one that records its calls, against the kernel, and under quinn.

use super::super::packet_size::PacketSize;
use super::super::quic_config::quic_transport_config;
use super::super::tls::{Credentials, gateway_identity_dns_name};
use super::make_gathering_socket;
use crate::certs::{CertificateAuthority, CertificateValidity};
use crate::host::{Host, PortShare, RealHost};
use crate::lock::lock_ignoring_poison;
use crate::observe::metrics::LaneMetrics;
use crate::wan::congestion::lane_path::LanePath;
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::warnings::Warnings;
use bytes::Bytes;
use hier_collectives::ids::RegionId;
use hier_collectives::topology::Link;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{
    AsyncUdpSocket, ClientConfig, ConnectionError, Endpoint, EndpointConfig, ServerConfig,
    TokioRuntime, UdpPoller, VarInt,
};
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use units::{BitRate, Fraction, Span};
use wan_sim::{LinkSpec, VirtualNet};

const PACKET: usize = 1200;
const FABRIC: &str = "two-region";

/// A socket that keeps what it sends, and has room for as many calls as a test says.
#[derive(Debug)]
struct RecordingSocket {
    segments_max: usize,
    state: Mutex<Recorded>,
}

#[derive(Debug)]
struct Recorded {
    /// The packets of each call.
    calls: Vec<Vec<Vec<u8>>>,
    /// Calls that may still be made.
    room: usize,
    wakers: Vec<Waker>,
}

#[derive(Debug)]
struct RoomPoller(Arc<RecordingSocket>);

impl RecordingSocket {
    fn new() -> Arc<Self> {
        let state = Recorded { calls: Vec::new(), room: usize::MAX, wakers: Vec::new() };
        Arc::new(Self { segments_max: 64, state: Mutex::new(state) })
    }

    fn set_room(&self, calls: usize) {
        let wakers = {
            let mut state = lock_ignoring_poison(&self.state);
            state.room = calls;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the first byte of each packet, by call, and forgets them.
    fn take_marks(&self) -> Vec<Vec<u8>> {
        let calls = std::mem::take(&mut lock_ignoring_poison(&self.state).calls);
        calls.iter().map(|packets| packets.iter().map(|packet| packet[0]).collect()).collect()
    }
}

impl AsyncUdpSocket for RecordingSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(RoomPoller(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut state = lock_ignoring_poison(&self.state);
        if state.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.room -= 1;
        let bytes = transmit.segment_size.unwrap_or(transmit.contents.len());
        let packets = transmit.contents.chunks(bytes).map(<[u8]>::to_vec).collect();
        state.calls.push(packets);
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        _: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(peer(0))
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments_max
    }
}

impl UdpPoller for RoomPoller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock_ignoring_poison(&self.0.state);
        if state.room > 0 {
            return Poll::Ready(Ok(()));
        }
        state.wakers.push(context.waker().clone());
        Poll::Pending
    }
}

fn peer(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 7400))
}

/// Wraps a recording socket as a lane with packets of `PACKET` bytes does.
fn gathering(inner: &Arc<RecordingSocket>) -> (Arc<dyn AsyncUdpSocket>, LaneMetrics) {
    let (metrics, inner) = (LaneMetrics::default(), Arc::clone(inner));
    (make_gathering_socket(inner, &TokioRuntime, PACKET as u16, false, metrics.clone()), metrics)
}

/// The contents of a transmit to `peer(2)`.
struct Sent {
    contents: Vec<u8>,
    packet_bytes: usize,
}

/// Makes `count` packets of `bytes` bytes, each filled with `mark`.
fn packets(mark: u8, count: usize, bytes: usize) -> Sent {
    Sent { contents: vec![mark; count * bytes], packet_bytes: bytes }
}

impl Sent {
    fn transmit(&self) -> Transmit<'_> {
        Transmit {
            destination: peer(2),
            ecn: Some(EcnCodepoint::Ect0),
            contents: &self.contents,
            segment_size: (self.contents.len() > self.packet_bytes).then_some(self.packet_bytes),
            src_ip: None,
        }
    }
}

#[tokio::test]
async fn packets_of_one_turn_leave_in_one_call() {
    let inner = RecordingSocket::new();
    let (socket, metrics) = gathering(&inner);
    for mark in 1..=3 {
        socket.try_send(&packets(mark, 9, PACKET).transmit()).expect("room");
    }
    assert!(inner.take_marks().is_empty(), "the turn has not ended");
    yield_now().await;
    assert_eq!(inner.take_marks(), [[[1u8; 9], [2u8; 9], [3u8; 9]].concat()]);
    assert_eq!((metrics.send_calls.get(), metrics.sent_packets.get()), (1, 27));
    yield_now().await;
    assert!(inner.take_marks().is_empty(), "it left once");
}

#[tokio::test]
async fn another_kind_of_packet_begins_another_call() {
    let inner = RecordingSocket::new();
    let (socket, _) = gathering(&inner);
    let (first, longer) = (packets(1, 9, PACKET), packets(2, 9, PACKET + 8));
    let (elsewhere, unmarked) = (packets(3, 9, PACKET), packets(4, 9, PACKET));
    let (from, last) = (packets(5, 9, PACKET), packets(6, 9, PACKET));
    let source = Some(peer(9).ip());
    for transmit in [
        first.transmit(),
        longer.transmit(),
        Transmit { destination: peer(3), ..elsewhere.transmit() },
        Transmit { ecn: None, ..unmarked.transmit() },
        Transmit { src_ip: source, ..from.transmit() },
        last.transmit(),
    ] {
        socket.try_send(&transmit).expect("room");
    }
    yield_now().await;
    assert_eq!(inner.take_marks(), [[1u8; 9], [2u8; 9], [3u8; 9], [4u8; 9], [5u8; 9], [6u8; 9]]);
}

#[tokio::test]
async fn a_batch_leaves_once_nothing_can_join_it() {
    let inner = RecordingSocket::new();
    let (socket, _) = gathering(&inner);
    for mark in 1..=6 {
        socket.try_send(&packets(mark, 9, PACKET).transmit()).expect("room");
    }
    assert_eq!(inner.take_marks().concat().len(), 54, "full");
    socket.try_send(&packets(1, 9, PACKET).transmit()).expect("room");
    socket.try_send(&packets(2, 1, PACKET).transmit()).expect("room");
    socket.try_send(&packets(3, 1, PACKET - 1).transmit()).expect("room");
    assert_eq!(
        inner.take_marks(),
        [[[1u8; 9].as_slice(), &[2u8, 3]].concat()],
        "a short one ends it"
    );
    let mut ends_short = packets(4, 9, PACKET);
    ends_short.contents.pop();
    socket.try_send(&ends_short.transmit()).expect("room");
    socket.try_send(&packets(5, 1, PACKET).transmit()).expect("room");
    assert_eq!(inner.take_marks(), [vec![4u8; 9], vec![5u8]], "they gain nothing by waiting");
}

/// A path's MTU is probed by a long packet, which the kernel may refuse.
#[tokio::test]
async fn a_longer_packet_leaves_alone() {
    let inner = RecordingSocket::new();
    let (socket, _) = gathering(&inner);
    socket.try_send(&packets(1, 9, PACKET).transmit()).expect("room");
    socket.try_send(&packets(2, 1, PACKET + 100).transmit()).expect("room");
    socket.try_send(&packets(3, 1, PACKET).transmit()).expect("room");
    assert_eq!(inner.take_marks(), [vec![1u8; 9], vec![2], vec![3]]);
}

#[tokio::test]
async fn packets_without_room_wait_and_keep_their_order() {
    let inner = RecordingSocket::new();
    let (socket, metrics) = gathering(&inner);
    let (first, other) = (packets(1, 9, PACKET), packets(2, 9, PACKET + 8));
    inner.set_room(0);
    socket.try_send(&first.transmit()).expect("kept");
    yield_now().await;
    let refused = socket.try_send(&other.transmit()).expect_err("no room");
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut poller = Arc::clone(&socket).create_io_poller();
    assert!(poller.as_mut().poll_writable(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(metrics.send_calls.get(), 0);
    inner.set_room(1);
    assert!(woken.0.load(Ordering::Relaxed), "quinn waits for room");
    yield_now().await;
    assert_eq!(inner.take_marks(), [[1u8; 9]], "it needed nobody else");
    socket.try_send(&other.transmit()).expect("kept");
    yield_now().await;
    assert!(inner.take_marks().is_empty(), "no room");
    inner.set_room(usize::MAX);
    socket.try_send(&first.transmit()).expect("room");
    yield_now().await;
    assert_eq!(inner.take_marks(), [[2u8; 9], [1u8; 9]]);
}

/// A full batch that has no room is refused what quinn makes next, and grows no more.
#[tokio::test]
async fn a_full_batch_without_room_takes_no_more() {
    let inner = RecordingSocket::new();
    let (socket, _) = gathering(&inner);
    inner.set_room(0);
    let sent = packets(1, 9, PACKET);
    let taken = (0..100).take_while(|_| socket.try_send(&sent.transmit()).is_ok()).count();
    assert_eq!(taken, 6);
    inner.set_room(usize::MAX);
    yield_now().await;
    assert_eq!(inner.take_marks(), [[1u8; 54]]);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_socket_that_is_dropped_sends_what_waits() {
    let inner = RecordingSocket::new();
    let (socket, _) = gathering(&inner);
    socket.try_send(&packets(1, 9, PACKET).transmit()).expect("room");
    drop(socket);
    assert_eq!(inner.take_marks(), [[1u8; 9]]);
    assert_eq!(Arc::strong_count(&inner), 1, "its address is free");
    yield_now().await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "its task has ended");
}

#[tokio::test]
async fn packets_leave_one_by_one_on_request() {
    let net = VirtualNet::new();
    let bind = |port| net.bind(SocketAddr::from(([10, 0, 0, 1], port))).expect("free");
    let wrap = |port, one_by_one| {
        make_gathering_socket(bind(port), &TokioRuntime, 1472, one_by_one, LaneMetrics::default())
    };
    assert_eq!(wrap(1, false).max_transmit_segments(), 8);
    assert_eq!(wrap(2, true).max_transmit_segments(), 1);
}

/// The kernel takes full calls of every packet size, and splits them into the same packets.
#[tokio::test]
async fn the_kernel_takes_full_calls_of_any_packet_size() {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    for packet_bytes in [1200, 1310, 1472, 8972, 16_376, 32_753, 65_507] {
        let alone = PortShare::ALONE;
        let bind =
            || RealHost.bind_udp(loopback, alone, 1 << 20, &Warnings::default()).expect("a socket");
        let (to, inner) = (bind(), bind());
        let wrapped = make_gathering_socket(
            inner,
            &TokioRuntime,
            packet_bytes,
            false,
            LaneMetrics::default(),
        );
        let packet_bytes = usize::from(packet_bytes);
        let each = wrapped.max_transmit_segments();
        let contents = vec![1; each * packet_bytes];
        let transmit = Transmit {
            destination: to.local_addr().expect("bound"),
            ecn: None,
            contents: &contents,
            segment_size: (each > 1).then_some(packet_bytes),
            src_ip: None,
        };
        // Never more in the receive buffer than the least that systems grant.
        let wanted = (65_507 / packet_bytes).min(64) / each * each;
        let mut poller = Arc::clone(&wrapped).create_io_poller();
        for _ in 0..wanted / each {
            poll_fn(|context| poller.as_mut().poll_writable(context)).await.expect("writable");
            wrapped.try_send(&transmit).expect("room");
        }
        let mut buffer = vec![0; 1 << 16];
        let mut arrived = 0;
        while arrived < wanted {
            let mut metas = [RecvMeta::default()];
            let received = poll_fn(|context| {
                to.poll_recv(context, &mut [IoSliceMut::new(&mut buffer)], &mut metas)
            });
            let received = tokio::time::timeout(Duration::from_secs(60), received).await;
            received.expect("the kernel has taken them").expect("readable");
            assert_eq!(metas[0].stride, packet_bytes, "{packet_bytes}");
            arrived += metas[0].len / packet_bytes;
        }
        assert_eq!(arrived, wanted, "{packet_bytes}");
    }
}

/// Two endpoints of lanes over a network that loses nothing, and the counters of the first.
fn endpoints() -> (Endpoint, Endpoint, LaneMetrics, ClientConfig) {
    let authority = CertificateAuthority::generate(FABRIC).expect("a CA");
    let [east, west] = ["east-0", "west-0"].map(|name| credentials(&authority, name));
    let net = VirtualNet::new();
    let link = LinkSpec::unlimited(Span::from_ms(40)).expect("a delay");
    net.connect(peer(1).ip(), peer(2).ip(), link, link, 1);
    let endpoint = |at: SocketAddr, server: Option<ServerConfig>, metrics: LaneMetrics| {
        let socket = net.bind(at).expect("free");
        let socket = make_gathering_socket(socket, &TokioRuntime, 1472, false, metrics);
        let config = EndpointConfig::default();
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
            .expect("an endpoint")
    };
    let rate = BitRate::from_bits_per_second(1_000_000_000);
    let (rtt, loss) = (Span::from_ms(80), Fraction::default());
    let path = LanePath {
        link: Link { a: RegionId(0), b: RegionId(1), rate, rtt, loss },
        inbound: rate,
        lanes: 1,
        segment_bytes: 1 << 20,
        receive_window_max: 1 << 30,
        memory: Arc::default(),
        probe_seed: 0,
    };
    let pinned = PacketSize::Pinned { bytes: 1472 };
    let transport = Arc::new(quic_transport_config(
        &path,
        ControllerPolicy::Dedicated,
        pinned,
        Duration::from_secs(15),
    ));
    let mut server = ServerConfig::with_crypto(west.server_config().expect("TLS"));
    server.transport_config(Arc::clone(&transport));
    let mut client = ClientConfig::new(east.client_config().expect("TLS"));
    client.transport_config(transport);
    let metrics = LaneMetrics::default();
    let here = endpoint(peer(1), None, metrics.clone());
    let there = endpoint(peer(2), Some(server), LaneMetrics::default());
    (here, there, metrics, client)
}

fn credentials(authority: &CertificateAuthority, name: &str) -> Credentials {
    let issued =
        authority.issue_certificate(name, FABRIC, CertificateValidity::days(1)).expect("signed");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let certificate = file("own.pem", &issued.certificate_pem);
    let key = file("own.key", &issued.key_pem);
    let ca = file("ca.pem", authority.certificate_pem());
    Credentials::load(&certificate, &key, &ca).expect("credentials")
}

/// A driver of quinn makes ten packets at a time, and twenty before it lets other tasks run. The
/// close leaves behind them.
#[tokio::test(start_paused = true)]
async fn a_lane_with_more_to_send_fills_its_calls() {
    const BYTES: usize = 4 << 20;
    let (here, there, metrics, config) = endpoints();
    let name = gateway_identity_dns_name("west-0", FABRIC);
    let dialled = here.connect_with(config, peer(2), &name).expect("a name");
    let accepted = async { there.accept().await.expect("open").await.expect("TLS") };
    let (dialled, accepted) = tokio::join!(dialled, accepted);
    let dialled = dialled.expect("TLS");
    let received = tokio::spawn(async move {
        let mut stream = accepted.accept_uni().await.expect("a stream");
        let bytes = stream.read_to_end(BYTES).await.expect("whole").len();
        (bytes, accepted.closed().await)
    });
    let mut stream = dialled.open_uni().await.expect("a stream");
    stream.write_chunk(Bytes::from(vec![7; BYTES])).await.expect("room");
    stream.finish().expect("open");
    stream.stopped().await.expect("acknowledged");
    let (calls, sent) = (metrics.send_calls.get(), metrics.sent_packets.get());
    println!("{sent} packets in {calls} calls");
    assert!(sent >= BYTES as u64 / 1472 && sent >= 30 * calls, "{sent} packets in {calls} calls");
    here.close(VarInt::from_u32(7), b"done");
    here.wait_idle().await;
    let (bytes, why) = received.await.expect("no panic");
    assert_eq!(bytes, BYTES);
    let ConnectionError::ApplicationClosed(close) = why else { panic!("{why}") };
    assert_eq!(close.error_code, VarInt::from_u32(7), "the close has arrived");
}
