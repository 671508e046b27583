//! Real quinn endpoints over the virtual network, under a paused clock.

#[path = "support/quic.rs"]
mod quic;

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::time::{Duration, Instant};
use units::{ByteCount, Span};
use wan_sim::{BindError, LinkSpec, VirtualNet};

const CLIENT: &str = "10.0.0.1:0";
const SERVER: &str = "10.0.0.2:4433";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    address(text).ip()
}

fn link(rate: &str, delay: &str, loss: &str) -> LinkSpec {
    LinkSpec::new(rate.parse().unwrap(), delay.parse().unwrap())
        .unwrap()
        .with_loss(loss.parse().unwrap())
}

fn net(spec: LinkSpec, seed: u64) -> VirtualNet {
    let net = VirtualNet::new();
    net.connect(ip(CLIENT), ip(SERVER), spec, spec, seed);
    net
}

async fn receive(socket: &Arc<dyn AsyncUdpSocket>) -> Vec<(Vec<u8>, RecvMeta)> {
    let (mut first, mut second) = ([0u8; 2000], [0u8; 2000]);
    let mut metas = [RecvMeta::default(); 2];
    let received = std::future::poll_fn(|cx| {
        let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        socket.poll_recv(cx, &mut buffers, &mut metas)
    });
    // Virtual seconds: what never comes fails at once.
    let taken = tokio::time::timeout(Duration::from_secs(60), received).await.unwrap().unwrap();
    [&first, &second]
        .iter()
        .zip(metas)
        .take(taken)
        .map(|(buffer, meta)| (buffer[..meta.len].to_vec(), meta))
        .collect()
}

fn send(socket: &Arc<dyn AsyncUdpSocket>, destination: &str, contents: &[u8], segment: usize) {
    socket
        .try_send(&Transmit {
            destination: address(destination),
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: Some(segment),
            src_ip: None,
        })
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn segments_arrive_each_on_its_own_after_the_delay() {
    let net = net(link("1 Gbit/s", "40 ms", "0 %"), 1);
    let (a, b) = (net.bind(address(CLIENT)).unwrap(), net.bind(address(SERVER)).unwrap());
    let sent = Instant::now();
    send(&a, SERVER, &[7; 2500], 1200);
    let first = receive(&b).await;
    assert_eq!(first.iter().map(|(data, _)| data.len()).collect::<Vec<_>>(), [1200, 1200]);
    assert_eq!(first[0].1.addr, a.local_addr().unwrap());
    assert_eq!(first[0].1.ecn, Some(EcnCodepoint::Ect0));
    assert_eq!(receive(&b).await[0].0, [7; 100]);
    // 40 ms and 21 us of sending time, which tokio rounds up to its next millisecond.
    assert_eq!(sent.elapsed(), Duration::from_millis(41));
    let counters = net.counters(ip(CLIENT), ip(SERVER)).unwrap();
    assert_eq!((counters.packets, counters.ip_bytes), (3, 2500 + 3 * 28));
    assert_eq!(net.counters(ip(SERVER), ip(CLIENT)).unwrap().packets, 0);
}

#[tokio::test(start_paused = true)]
async fn a_moved_socket_is_reachable_at_its_new_address_only() {
    let net = net(link("1 Gbit/s", "40 ms", "0 %"), 1);
    let [home, elsewhere] = ["10.0.0.1:7", "10.0.0.9:70"];
    let spec = link("1 Gbit/s", "10 ms", "0 %");
    net.connect(ip(elsewhere), ip(SERVER), spec, spec, 1);
    let [a, b] = [home, SERVER].map(|at| net.bind(address(at)).unwrap());
    net.move_socket(address(home), address(elsewhere));
    send(&a, SERVER, &[1; 100], 100);
    let begin = Instant::now();
    let got = receive(&b).await;
    assert_eq!((got[0].1.addr, got.len()), (address(elsewhere), 1));
    send(&b, home, &[2; 100], 100);
    send(&b, elsewhere, &[3; 100], 100);
    assert_eq!(receive(&a).await[0].0, [3; 100]);
    assert!(begin.elapsed() < Duration::from_millis(25), "{:?}", begin.elapsed());
    assert_eq!(net.undelivered().no_socket, 1);
}

#[tokio::test(start_paused = true)]
async fn undeliverable_packets_are_counted() {
    let net = net(link("1 Gbit/s", "40 ms", "0 %"), 1);
    let a = net.bind(address(CLIENT)).unwrap();
    send(&a, SERVER, &[1; 100], 100);
    assert_eq!(net.undelivered().no_socket, 1);
    send(&a, "10.9.9.9:1", &[1; 100], 100);
    assert_eq!(net.undelivered().no_link, 1);
    send(&a, SERVER, &[1; 65_508], 10_000);
    assert_eq!(net.undelivered().too_big, 1);
    send(&a, SERVER, &[1; 64 * 100], 100);
    send(&a, SERVER, &[1; 64 * 100 + 1], 100);
    assert_eq!((net.undelivered().no_socket, net.undelivered().too_big), (1 + 64, 2));
    net.set_blackhole(ip(CLIENT), ip(SERVER), true).unwrap();
    send(&a, SERVER, &[1; 100], 100);
    assert_eq!(net.counters(ip(CLIENT), ip(SERVER)).unwrap().drops_blackhole, 1);
    assert!(net.counters(ip(CLIENT), ip("10.9.9.9:1")).is_err());
}

#[tokio::test(start_paused = true)]
async fn an_address_has_one_socket_until_it_is_dropped() {
    let net = VirtualNet::new();
    let first = net.bind(address(SERVER)).unwrap();
    assert_eq!(net.bind(address(SERVER)).unwrap_err(), BindError::InUse(address(SERVER)));
    drop(first);
    net.bind(address(SERVER)).unwrap();
    assert!(net.bind(address("0.0.0.0:1")).is_err());
}

#[tokio::test(start_paused = true)]
async fn datagrams_choose_among_the_sockets_of_an_address() {
    let net = net(link("1 Gbit/s", "40 ms", "0 %"), 1);
    let client = net.bind(address(CLIENT)).unwrap();
    let choose = |payload: &[u8]| u16::from(payload[0]);
    assert!(net.bind_shared(address(SERVER), (1, 2), choose).is_err(), "the first is not bound");
    let shared = [0, 1].map(|place| net.bind_shared(address(SERVER), (place, 2), choose).unwrap());
    assert_eq!(net.bind(address(SERVER)).unwrap_err(), BindError::InUse(address(SERVER)));
    // One send call with a datagram for each, and one for the second.
    send(&client, SERVER, &[[4; 100], [5; 100]].concat(), 100);
    send(&client, SERVER, &[7; 100], 100);
    assert_eq!(receive(&shared[0]).await[0].0, [4; 100]);
    let second: Vec<u8> = receive(&shared[1]).await.iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!((second, net.undelivered().no_socket), (vec![5, 7], 0));
    let [first, second] = shared;
    drop(second);
    send(&client, SERVER, &[7; 100], 100);
    assert_eq!(net.undelivered().no_socket, 1, "no other takes it");
    drop(first);
    net.bind(address(SERVER)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_port_is_shared_by_all_links_of_its_address() {
    // Two senders at 1 Gbit/s each into a port of 1 Gbit/s, and back out of it.
    let net = net(link("1 Gbit/s", "10 ms", "0 %"), 1);
    let third = "10.0.0.3:1";
    let fast = link("1 Gbit/s", "10 ms", "0 %");
    net.connect(ip(third), ip(SERVER), fast, fast, 2);
    let port = link("1 Gbit/s", "0 ms", "0 %").with_queue(ByteCount::new(4 << 20));
    net.set_port(ip(SERVER), port, port, 3);
    let (a, b) = (net.bind(address(CLIENT)).unwrap(), net.bind(address(third)).unwrap());
    let server = net.bind(address(SERVER)).unwrap();
    let other = net.bind(address("10.0.0.2:9")).unwrap();

    // 1,000 packets of 1,250 bytes are 10 ms at 1 Gbit/s; half of them come from each.
    let began = Instant::now();
    for _ in 0..250 {
        send(&a, SERVER, &[1; 2 * 1222], 1222);
        send(&b, SERVER, &[2; 2 * 1222], 1222);
    }
    send(&a, "10.0.0.2:9", &[3; 1222], 1222);
    let mut packets = 0;
    while packets < 1000 {
        packets += receive(&server).await.len();
    }
    // Delay, and the port's time for all; tokio's tick is a millisecond.
    let took = began.elapsed();
    assert!((Duration::from_millis(20)..=Duration::from_millis(22)).contains(&took), "{took:?}");
    assert_eq!(receive(&other).await.len(), 1);
    let (out, into) = net.port_counters(ip(SERVER)).unwrap();
    assert_eq!((out.packets, into.packets, into.drops_queue), (0, 1001, 0));

    for destination in [CLIENT, third] {
        let destination =
            if destination == CLIENT { a.local_addr().unwrap().to_string() } else { third.into() };
        (0..250).for_each(|_| send(&server, &destination, &[4; 2 * 1222], 1222));
    }
    let began = Instant::now();
    let mut packets = 0;
    while packets < 500 {
        packets += receive(&b).await.len();
    }
    // The other's packets left first, through the same port.
    let took = began.elapsed();
    assert!((Duration::from_millis(20)..=Duration::from_millis(22)).contains(&took), "{took:?}");
    assert_eq!(net.port_counters(ip(SERVER)).unwrap().0.packets, 1000);
    assert!(net.port_counters(ip(CLIENT)).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_replaced_link_moves_no_packet_of_its_predecessor() {
    for with_port in [false, true] {
        let net = net(link("8 Mbit/s", "50 ms", "0 %"), 1);
        let port = LinkSpec::unlimited(Span::ZERO).unwrap();
        if with_port {
            net.set_port(ip(SERVER), port, port, 3);
        }
        let (client, server) =
            (net.bind(address(CLIENT)).unwrap(), net.bind(address(SERVER)).unwrap());
        let began = Instant::now();
        send(&client, SERVER, &[1; 972], 972);
        let slow = link("80 kbit/s", "50 ms", "0 %");
        net.connect(ip(CLIENT), ip(SERVER), slow, slow, 2);
        // The first packet of both is packet 0 of its link; only the second is still being sent.
        send(&client, SERVER, &[2; 972], 972);
        net.set_spec(ip(CLIENT), ip(SERVER), link("8 kbit/s", "50 ms", "0 %")).unwrap();
        for (byte, ms) in [(1, 51), (2, 1050)] {
            let (data, _) = receive(&server).await.remove(0);
            let took = began.elapsed().as_millis();
            // tokio's tick is a millisecond.
            assert!(data[0] == byte && (ms..=ms + 2).contains(&took), "{byte}: {took} ms");
        }
    }
}

#[test]
fn quinn_runs_twice_the_same() {
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0);
    assert!(first.1 > 0, "no packet was lost");
}

#[test]
fn another_process_makes_the_same_trace() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "print_a_trace", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    let expected = format!("trace {:?}", run(3));
    assert!(said.contains(&expected), "{said} without {expected}");
}

#[test]
#[ignore = "run by another_process_makes_the_same_trace"]
fn print_a_trace() {
    println!("\ntrace {:?}", run(3));
}

fn run(seed: u64) -> (u64, u64, Duration) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(transfer(seed))
}

/// Sends 8 MB over 1 Gbit/s, 80 ms round trip, 0.1 % loss. Returns hash, losses, seconds.
async fn transfer(seed: u64) -> (u64, u64, Duration) {
    let net = net(link("1 Gbit/s", "40 ms", "0.1 %"), seed);
    let (client_config, server_config) = quic::tls();
    let endpoint = |at: &str, server: Option<ServerConfig>, rng: u8| {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([rng; 32]));
        let socket = net.bind(address(at)).unwrap();
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime)).unwrap()
    };
    let server = endpoint(SERVER, Some(server_config), 1);
    let client = endpoint(CLIENT, None, 2);

    let started = Instant::now();
    let receiver = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let data = stream.read_to_end(PAYLOAD.len()).await.unwrap();
        assert!(data == PAYLOAD);
        connection.close(0u8.into(), b"");
        server.wait_idle().await;
    });
    let connection =
        client.connect_with(client_config, address(SERVER), "wan").unwrap().await.unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(&PAYLOAD).await.unwrap();
    stream.finish().unwrap();
    receiver.await.unwrap();
    let losses = net.counters(ip(CLIENT), ip(SERVER)).unwrap().drops_loss;
    (net.trace_hash(), losses, started.elapsed())
}

static PAYLOAD: [u8; 8_000_000] = [0xa5; 8_000_000];
