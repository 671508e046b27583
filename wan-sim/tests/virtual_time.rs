//! Real quinn endpoints over the virtual network, in virtual time to the nanosecond.

#[path = "support/quic.rs"]
mod quic;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::Arc;
use units::{ByteCount, Span, TimeNs};
use wan_sim::topology::{Topology, topology_path_site_addresses};
use wan_sim::{LinkSpec, Packet, VirtualExecutor, VirtualNet};

const CLIENT: &str = "10.0.0.1:4433";
const SERVER: &str = "10.0.0.2:4433";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn link(rate: &str, delay: &str) -> LinkSpec {
    LinkSpec::new(rate.parse().unwrap(), delay.parse().unwrap()).unwrap()
}

fn net(time: &VirtualExecutor, spec: LinkSpec, seed: u64) -> VirtualNet {
    let net = VirtualNet::under(time);
    net.connect(address(CLIENT).ip(), address(SERVER).ip(), spec, spec, seed);
    net
}

async fn receive(socket: &Arc<dyn AsyncUdpSocket>) -> usize {
    let mut buffer = [0u8; 2000];
    let mut metas = [RecvMeta::default()];
    let received = std::future::poll_fn(|cx| {
        socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut metas)
    });
    received.await.unwrap();
    metas[0].len
}

fn send(socket: &Arc<dyn AsyncUdpSocket>, contents: &[u8], segment: usize) {
    let transmit = Transmit {
        destination: address(SERVER),
        ecn: None,
        contents,
        segment_size: Some(segment),
        src_ip: None,
    };
    socket.try_send(&transmit).unwrap();
}

/// Base, plus what waits over the rate, plus the packet's own bits over the rate: exactly.
#[test]
fn delay_is_base_plus_queue_plus_sending_time() {
    for (rate, bits_per_us, delay) in
        [("1 Gbit/s", 1000, "50 us"), ("10 Gbit/s", 10_000, "2500 us"), ("100 Mbit/s", 100, "1 s")]
    {
        let time = VirtualExecutor::new();
        let net = net(&time, link(rate, delay).with_queue(ByteCount::new(1 << 20)), 1);
        let (a, b) = (net.bind(address(CLIENT)).unwrap(), net.bind(address(SERVER)).unwrap());
        let base_ns = delay.parse::<Span>().unwrap().ns();
        let clock = time.clone();
        time.run(async move {
            let sent = clock.now();
            // Ten of 1,250 IP bytes, of which each waits for those before it.
            send(&a, &[7; 12_220], 1222);
            for before in 0..10 {
                assert_eq!(receive(&b).await, 1222);
                let queue_and_own = (before + 1) * 1250 * 8 * 1000 / bits_per_us;
                let took = clock.now().since(sent).ns();
                assert_eq!(took, base_ns + queue_and_own, "{rate} {delay} {before}");
            }
        })
        .unwrap();
    }
}

/// A lab file's links, schedule and ports, with the fates that the model alone gives.
#[test]
fn a_lab_file_works_in_virtual_time() {
    let text = "seed = 5\n[site.a]\n[site.b]\ningress = '8 Mbit/s'\n[site.c]\n[link.a-b]\n\
                delay = '5 ms'\nrate = '80 Mbit/s'\nloss = '20 %'\n\
                changes = [{ at = '100 ms', delay = '1 ms' }, { at = '150 ms', cut = true }]\n\
                [link.b-c]\ndelay = '1 ms'\n";
    let topology = Topology::parse("lab.toml".as_ref(), text).unwrap();
    let time = VirtualExecutor::new();
    let net = VirtualNet::under(&time);
    let sites = net.lay_out_sites(&topology);
    assert_eq!(sites[1], topology_path_site_addresses(1).0);
    let ends = [0, 1].map(|site| SocketAddr::new(sites[site], 4433));
    let at = move |site: usize| ends[site];
    let (a, b) = (net.bind(at(0)).unwrap(), net.bind(at(1)).unwrap());
    // What the model alone makes of a packet every millisecond.
    let mut links: Vec<_> = topology.paths().iter().map(|path| path.build_link()).collect();
    let (mut link, mut port) = (links.remove(0), links.pop().unwrap());
    let every_ms = || (0..200).map(|ms: u64| TimeNs::from_ns(ms * 1_000_000));
    let mut pass = |now| link.offer(now, Packet::new(1000)).fate.delivery().map(|d| d.at);
    let mut at_port: Vec<_> = every_ms().filter_map(&mut pass).collect();
    at_port.sort();
    let mut pass = |now| port.offer(now, Packet::new(1000)).fate.delivery().map(|d| d.at);
    let expected: Vec<_> = at_port.into_iter().filter_map(&mut pass).collect();
    assert!((100..140).contains(&expected.len()), "{}", expected.len());

    let clock = time.clone();
    let arrived = time
        .run(async {
            let sender = time.clone();
            time.spawn(async move {
                for now in every_ms() {
                    sender.sleep_until(now).await;
                    let transmit = Transmit {
                        destination: at(1),
                        ecn: None,
                        contents: &[7; 972],
                        segment_size: None,
                        src_ip: None,
                    };
                    a.try_send(&transmit).unwrap();
                }
            });
            let mut arrived = Vec::new();
            while arrived.len() < expected.len() {
                receive(&b).await;
                arrived.push(clock.now());
            }
            clock.sleep_until(TimeNs::from_ns(200_000_000)).await;
            arrived
        })
        .unwrap();
    assert_eq!(arrived, expected);
    let seen = net.counters(sites[0], sites[1]).unwrap();
    assert_eq!((seen.drops_loss, seen.drops_blackhole), {
        let model = link.counters();
        (model.drops_loss, model.drops_blackhole)
    });
    assert_eq!(net.port_counters(sites[1]).unwrap().1.packets, port.counters().packets);
}

#[test]
fn a_trace_has_a_line_for_every_packet() {
    let time = VirtualExecutor::new();
    let everything = link("8 Mbit/s", "1 ms")
        .with_queue(ByteCount::new(1250))
        .with_marking_above(ByteCount::new(0))
        .with_duplicate("100 %".parse().unwrap());
    let net = net(&time, everything, 1);
    let (lines, more) = std::sync::mpsc::channel();
    net.trace_to(move |record| lines.send(record.to_string()).unwrap());
    let a = net.bind(address(CLIENT)).unwrap();
    time.run(async move {
        send(&a, &[7; 1222], 1222);
        let nowhere = Transmit {
            destination: address("10.9.9.9:1"),
            ecn: None,
            contents: &[7; 2],
            segment_size: None,
            src_ip: None,
        };
        a.try_send(&nowhere).unwrap();
        send(&a, &[7; 1222], 1222);
    })
    .unwrap();
    let path = format!("{CLIENT} {SERVER}");
    assert_eq!(
        more.try_iter().collect::<Vec<_>>(),
        [
            format!("0 {path} 1250 2250000 copy 3500000"),
            format!("0 {CLIENT} 10.9.9.9:1 30 unreachable"),
            format!("0 {path} 1250 drop:queue copy drop:queue"),
        ]
    );
}

/// Client and server under one clock; `act` has both ends of a connection.
fn connected<F: Future<Output = ()> + Send>(
    spec: LinkSpec,
    seed: u64,
    act: impl FnOnce(VirtualExecutor, quinn::Connection, quinn::Connection) -> F,
) -> (u64, u64, TimeNs) {
    let time = VirtualExecutor::new();
    let net = net(&time, spec, seed);
    let (client_config, server_config) = quic::tls();
    let endpoint = |at: &str, server: Option<ServerConfig>, rng: u8| {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([rng; 32]));
        let socket = net.bind(address(at)).unwrap();
        let runtime = Arc::new(time.clone());
        Endpoint::new_with_abstract_socket(config, server, socket, runtime).unwrap()
    };
    let server = endpoint(SERVER, Some(server_config), 1);
    let client = endpoint(CLIENT, None, 2);
    let clock = time.clone();
    time.run(async {
        let connecting = client.connect_with(client_config, address(SERVER), "wan").unwrap();
        let accepted = async { server.accept().await.unwrap().await.unwrap() };
        let (here, there) = tokio::join!(connecting, accepted);
        act(clock, here.unwrap(), there).await;
    })
    .unwrap();
    let counters = net.counters(address(CLIENT).ip(), address(SERVER).ip()).unwrap();
    (net.trace_hash(), counters.drops_loss, time.now())
}

#[test]
fn a_round_trip_far_below_a_millisecond_is_not_distorted() {
    // 100 us round trip; a datagram of a few bytes takes less than 1 us at 10 Gbit/s.
    connected(link("10 Gbit/s", "50 us"), 1, |time, here, there| async move {
        time.spawn(async move {
            while let Ok(datagram) = there.read_datagram().await {
                there.send_datagram(datagram).unwrap();
            }
        });
        for _ in 0..20 {
            let sent = time.now();
            here.send_datagram(vec![1; 16].into()).unwrap();
            here.read_datagram().await.unwrap();
            let took = time.now().since(sent).ns();
            assert!((100_000..100_300).contains(&took), "{took} ns");
        }
        let rtt = here.rtt().as_micros();
        assert!((100..=125).contains(&rtt), "quinn measures {rtt} us");
    });
}

/// Sends 4 MB over 1 Gbit/s, 10 ms round trip, 0.1 % loss.
fn transfer(seed: u64) -> (u64, u64, TimeNs) {
    let lossy = link("1 Gbit/s", "5 ms").with_loss("0.1 %".parse().unwrap());
    connected(lossy, seed, |time, here, there| async move {
        let data = vec![0xa5; 4_000_000];
        time.spawn(async move {
            let mut stream = here.open_uni().await.unwrap();
            stream.write_all(&data).await.unwrap();
            stream.finish().unwrap();
            here.closed().await;
        });
        let mut stream = there.accept_uni().await.unwrap();
        let received = stream.read_to_end(4_000_000).await.unwrap();
        assert!(received.len() == 4_000_000 && received.iter().all(|byte| *byte == 0xa5));
    })
}

#[test]
fn quinn_runs_twice_the_same() {
    let first = transfer(1);
    assert_eq!(first, transfer(1));
    assert_ne!(first.0, transfer(2).0);
    assert!(first.1 > 0, "no packet was lost");
}

#[test]
fn other_processes_make_the_same_trace() {
    let expected = format!("trace {:?}", transfer(3));
    for _ in 0..2 {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "print_a_trace", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let said = String::from_utf8(child.stdout).unwrap();
        assert!(said.contains(&expected), "{said} without {expected}");
    }
}

#[test]
#[ignore = "run by other_processes_make_the_same_trace"]
fn print_a_trace() {
    println!("\ntrace {:?}", transfer(3));
}
