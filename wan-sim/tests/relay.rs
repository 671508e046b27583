//! The relay over loopback.
#![expect(clippy::disallowed_types, reason = "the ends of the relay are sockets")]
#![expect(clippy::disallowed_methods, reason = "a delay is measured by the clock")]

mod skipping;

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skipping::skip;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use wan_sim::LinkSpec;
use wan_sim::netem::Netem;
use wan_sim::recording::{Recorder, replay};
use wan_sim::relay::{Forward, OwnDrops, RelayError, RelaySpec, RunningRelay};

fn link(rate: &str, delay: &str) -> LinkSpec {
    LinkSpec::new(rate.parse().unwrap(), delay.parse().unwrap()).unwrap()
}

/// A socket that fails rather than hangs.
fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

fn start(targets: &[&UdpSocket], spec: LinkSpec) -> RunningRelay {
    let forwards = targets
        .iter()
        .map(|target| Forward {
            listen: "127.0.0.1:0".parse().unwrap(),
            target: target.local_addr().unwrap(),
        })
        .collect();
    RunningRelay::start(&RelaySpec {
        forwards,
        forward: spec,
        backward: spec,
        conditions: Default::default(),
        seed: 5,
    })
    .unwrap()
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 65_536];
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    (buffer[..len].to_vec(), from)
}

#[test]
fn bytes_go_there_and_back_and_clients_are_kept_apart() {
    let (first_target, second_target) = (socket(), socket());
    let relay = start(&[&first_target, &second_target], link("1 Gbit/s", "1 ms"));
    let [first_listener, second_listener] = [0, 1].map(|i| relay.listening()[i].address);
    let (a, b) = (socket(), socket());

    a.send_to(b"from a", first_listener).unwrap();
    let (data, a_upstream) = receive(&first_target);
    assert_eq!(data, b"from a");
    b.send_to(b"from b", first_listener).unwrap();
    let (data, b_upstream) = receive(&first_target);
    assert_eq!(data, b"from b");
    assert_ne!(a_upstream, b_upstream);
    a.send_to(b"", second_listener).unwrap();
    assert_eq!(receive(&second_target).0, b"");

    first_target.send_to(b"to b", b_upstream).unwrap();
    first_target.send_to(b"to a", a_upstream).unwrap();
    assert_eq!(receive(&b), (b"to b".to_vec(), first_listener));
    assert_eq!(receive(&a), (b"to a".to_vec(), first_listener));

    // An unknown sender cannot speak for the target.
    second_target.send_to(b"forged", a_upstream).unwrap();
    first_target.send_to(b"true", a_upstream).unwrap();
    assert_eq!(receive(&a).0, b"true");

    let counters = relay.stop().unwrap();
    assert_eq!((counters.forward.packets, counters.forward.ip_bytes), (3, 12 + 3 * 28));
    assert_eq!((counters.backward.packets, counters.backward.ip_bytes), (3, 12 + 3 * 28));
    assert_eq!(counters.own.foreign, 1);
}

#[test]
fn many_clients_are_kept_apart() {
    const CLIENTS: usize = 2000;
    // A socket for each client here, and one for each in the relay.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if most < 2 * CLIENTS as u64 + 100 {
        skip(format!("a process may open {most} files, the clients need {}", 2 * CLIENTS + 100));
        return;
    }
    let target = socket();
    let relay = start(&[&target], link("1 Gbit/s", "1 ms"));
    let clients: Vec<_> = (0..CLIENTS).map(|_| socket()).collect();
    for (number, client) in clients.iter().enumerate() {
        client.send_to(&number.to_le_bytes(), relay.listening()[0].address).unwrap();
        let (data, upstream) = receive(&target);
        target.send_to(&data, upstream).unwrap();
    }
    for (number, client) in clients.iter().enumerate() {
        assert_eq!(receive(client).0, number.to_le_bytes());
    }
    let counters = relay.stop().unwrap();
    assert_eq!(counters.forward.packets, CLIENTS as u64);
    assert_eq!(counters.own, OwnDrops::default());
}

#[test]
fn no_packet_is_earlier_than_the_delay() {
    let target = socket();
    let relay = start(&[&target], link("1 Gbit/s", "30 ms"));
    let client = socket();
    for round in 0..5u8 {
        let sent = Instant::now();
        client.send_to(&[round], relay.listening()[0].address).unwrap();
        assert_eq!(receive(&target).0, [round]);
        assert!(sent.elapsed() >= Duration::from_millis(30), "{:?}", sent.elapsed());
    }
}

#[test]
fn offloaded_segments_keep_marks_and_are_lost_individually() {
    const BURSTS: usize = 400;
    const SEGMENTS: usize = 20;
    let target = socket();
    let loss = "5 %".parse().unwrap();
    let relay = start(&[&target], link("10 Gbit/s", "1 ms").with_loss(loss));
    let client = socket();
    let client_state = UdpSocketState::new((&client).into()).unwrap();
    client.set_nonblocking(false).unwrap();
    let target_state = UdpSocketState::new((&target).into()).unwrap();
    target.set_nonblocking(false).unwrap();

    let (mut arrived, mut partial_bursts) = (0u64, 0);
    for burst in 0..BURSTS {
        let contents: Vec<u8> = (0..SEGMENTS).flat_map(|i| [(burst ^ i) as u8; 1000]).collect();
        let before = relay.counters().forward.drops_loss;
        client_state
            .try_send(
                (&client).into(),
                &Transmit {
                    destination: relay.listening()[0].address,
                    ecn: Some(EcnCodepoint::Ect0),
                    contents: &contents,
                    segment_size: Some(1000),
                    src_ip: None,
                },
            )
            .unwrap();
        // The counters say how many of this burst will come.
        while relay.counters().forward.packets < ((burst + 1) * SEGMENTS) as u64 {
            std::thread::yield_now();
        }
        let lost = (relay.counters().forward.drops_loss - before) as usize;
        let mut seen = Vec::new();
        while seen.len() < SEGMENTS - lost {
            let mut buffer = vec![0; 65_536];
            let mut meta = [RecvMeta::default()];
            let mut buffers = [IoSliceMut::new(&mut buffer)];
            target_state.recv((&target).into(), &mut buffers, &mut meta).unwrap();
            assert_eq!(meta[0].ecn, Some(EcnCodepoint::Ect0));
            seen.extend(buffer[..meta[0].len].chunks(meta[0].stride).map(|segment| {
                assert!(segment.len() == 1000 && segment.iter().all(|byte| *byte == segment[0]));
                usize::from(segment[0]) ^ (burst & 0xff)
            }));
        }
        assert!(seen.is_sorted() && seen.iter().all(|i| *i < SEGMENTS), "{seen:?}");
        arrived += seen.len() as u64;
        partial_bursts += usize::from(lost > 0 && lost < SEGMENTS);
    }
    let counters = relay.stop().unwrap();
    let n = (BURSTS * SEGMENTS) as f64;
    assert_eq!(counters.forward.packets, n as u64);
    assert_eq!(arrived + counters.forward.drops_loss, counters.forward.packets);
    // 99.9 % of the binomial distribution lies within 3.29 standard deviations.
    let expected = n * 0.05;
    let interval = 3.29 * (expected * 0.95).sqrt();
    let lost = counters.forward.drops_loss as f64;
    assert!((lost - expected).abs() < interval, "{lost} of {n} lost");
    assert!(partial_bursts > BURSTS / 3, "{partial_bursts}");
    assert_eq!(counters.own, OwnDrops::default());
}

#[test]
fn a_cut_link_passes_nothing_until_it_is_joined() {
    let target = socket();
    let relay = start(&[&target], link("1 Gbit/s", "1 ms"));
    let client = socket();
    let listener = relay.listening()[0].address;
    relay.set_blackhole(true);
    client.send_to(b"lost", listener).unwrap();
    while relay.counters().forward.drops_blackhole == 0 {
        std::thread::yield_now();
    }
    relay.set_blackhole(false);
    client.send_to(b"found", listener).unwrap();
    assert_eq!(receive(&target).0, b"found");
}

#[test]
fn a_relays_recording_replays_in_the_core() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recording");
    let target = socket();
    let words: Netem =
        "delay 2ms 1ms loss 20% corrupt 10% duplicate 10% rate 1gbit queue 1bdp".parse().unwrap();
    let forward =
        Forward { listen: "127.0.0.1:0".parse().unwrap(), target: target.local_addr().unwrap() };
    let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let relay = RunningRelay::start_recording(
        &RelaySpec {
            forwards: vec![forward],
            forward: words.link,
            backward: words.link,
            conditions: Default::default(),
            seed: 3,
        },
        Recorder::new(Box::new(file)),
    )
    .unwrap();
    let client = socket();
    for i in 0..2000usize {
        client.send_to(&vec![1; i % 1400], relay.listening()[0].address).unwrap();
        if i == 1000 {
            relay.set_blackhole(true);
        }
        while relay.counters().forward.packets <= i as u64 {
            std::thread::yield_now();
        }
    }
    let counters = relay.stop().unwrap();
    let recording = std::fs::read(path).unwrap();
    let replayed = replay(recording.as_slice()).unwrap();
    assert_eq!(replayed.links[0].1, counters.forward);
    assert!(counters.forward.drops_loss > 100 && counters.forward.drops_blackhole > 900);
}

#[test]
fn a_taken_address_is_the_callers_fault() {
    let taken = socket();
    let forward =
        Forward { listen: taken.local_addr().unwrap(), target: taken.local_addr().unwrap() };
    let spec = link("1 Gbit/s", "1 ms");
    let error = RunningRelay::start(&RelaySpec {
        forwards: vec![forward],
        forward: spec,
        backward: spec,
        conditions: Default::default(),
        seed: 1,
    })
    .unwrap_err();
    assert!(matches!(error, RelayError::Listen { address, .. } if address == forward.listen));
    for text in ["", "127.0.0.1:1", "localhost:1=127.0.0.1:2", "127.0.0.1:1=127.0.0.1"] {
        assert!(text.parse::<Forward>().is_err(), "{text}");
    }
}

#[test]
fn a_relay_marks_and_delays_as_codel_decides() {
    let target = socket();
    let words: Netem = "delay 1ms rate 2mbit queue 1MB codel 1ms 5ms".parse().unwrap();
    let relay = start(&[&target], words.link);
    let client = socket();
    let client_state = UdpSocketState::new((&client).into()).unwrap();
    let target_state = UdpSocketState::new((&target).into()).unwrap();
    [&client, &target].into_iter().for_each(|socket| socket.set_nonblocking(false).unwrap());
    let packets = 200;
    for _ in 0..packets {
        let transmit = Transmit {
            destination: relay.listening()[0].address,
            ecn: Some(EcnCodepoint::Ect0),
            contents: &[1; 972],
            segment_size: None,
            src_ip: None,
        };
        client_state.try_send((&client).into(), &transmit).unwrap();
    }
    let (mut arrived, mut marked) = (0, 0);
    while arrived < packets {
        let mut buffer = vec![0; 65_536];
        let mut meta = [RecvMeta::default()];
        let mut buffers = [IoSliceMut::new(&mut buffer)];
        target_state.recv((&target).into(), &mut buffers, &mut meta).unwrap();
        let segments = meta[0].len.div_ceil(972) as u64;
        arrived += segments;
        marked += if meta[0].ecn == Some(EcnCodepoint::Ce) { segments } else { 0 };
    }
    let counters = relay.stop().unwrap().forward;
    assert_eq!((counters.packets, counters.drops()), (packets, 0));
    assert_eq!(counters.marked_codel, marked);
    assert!(marked > 5, "{marked}");
}
