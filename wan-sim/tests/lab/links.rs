//! Links of a running lab: delays, impairments, shared ports, and recordings.

use super::support::{A, B, B6, at, prefix, receive, seen, start, topology, udp};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use wan_sim::lab::list_namespaces;
use wan_sim::recording::{Recorder, replay};
use wan_sim::topology::Topology;

#[test]
fn datagrams_take_their_delay_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (_, topology) = topology(directory.path(), "delay 15ms");
    let prefix = prefix();
    let Some(lab) = start(&topology, &prefix, None) else {
        return;
    };
    for (a_ip, b_ip, headers) in [(A, B, 28), ("fd77::1", B6, 48)] {
        let (a, b) = (udp(&prefix, "a", a_ip), udp(&prefix, "b", b_ip));
        let before = seen(&lab, "a").counters;
        let mut buffer = [0; 2000];
        for round in 0..5u8 {
            let sent = Instant::now();
            a.send_to(&[round; 1000], b.local_addr().unwrap()).unwrap();
            assert_eq!(b.recv_from(&mut buffer).unwrap(), (1000, a.local_addr().unwrap()));
            assert_eq!(buffer[..1000], [round; 1000]);
            assert!(sent.elapsed() >= Duration::from_millis(15), "{:?}", sent.elapsed());
        }
        let now = seen(&lab, "a").counters;
        // Neighbours need not be discovered on such a device, so nothing else is sent.
        assert_eq!(now.packets - before.packets, 5);
        assert_eq!(now.ip_bytes - before.ip_bytes, 5 * (1000 + headers));
    }
    // Where no link leads, packets vanish and are counted.
    let before = lab.unreachable_packets();
    let c = udp(&prefix, "c", "10.77.0.3");
    c.send_to(b"lost", (A, 7000)).unwrap();
    while lab.unreachable_packets() == before {
        std::thread::yield_now();
    }
    lab.stop().unwrap();
    assert_eq!(list_namespaces(&prefix), Vec::<String>::new());
}

#[test]
fn a_stream_survives_all_impairments_and_its_recording_replays() {
    let directory = tempfile::tempdir().unwrap();
    let words = "delay 2ms 1ms order free loss 0.3% corrupt 0.3% duplicate 0.3% reorder 0.3% \
                 rate 1gbit queue 2MB mark-above 50kB";
    let (_, topology) = topology(directory.path(), words);
    let prefix = prefix();
    let recording = directory.path().join("recording");
    let file = BufWriter::new(File::create(&recording).unwrap());
    let Some(lab) = start(&topology, &prefix, Some(Recorder::new(Box::new(file)))) else {
        return;
    };
    for ip in [B, B6] {
        let listener = at(&prefix, "b", || TcpListener::bind((ip, 7001)).unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut data = Vec::new();
                stream.read_to_end(&mut data).unwrap();
                data
            });
            let mut sender = at(&prefix, "a", || TcpStream::connect(address).unwrap());
            let data: Vec<u8> = (0..20_000_000u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
            sender.write_all(&data).unwrap();
            drop(sender);
            assert!(receiver.join().unwrap() == data, "the stream differs");
        });
    }
    let counters = seen(&lab, "a").counters;
    // Two streams of 13,700 full segments; losses of 0.3 % of them within wide bounds.
    assert!(counters.packets > 27_000, "{counters:?}");
    for count in [counters.drops_loss, counters.corrupted, counters.duplicated] {
        assert!((30..400).contains(&count), "{counters:?}");
    }
    let status = lab.status();
    lab.stop().unwrap();
    let recording = fs::read_to_string(recording).unwrap();
    // Segments of one buffer enter at one time, and some of them are lost by themselves.
    let packets: Vec<(&str, bool)> = recording
        .lines()
        .filter_map(|line| line.strip_prefix("0 ")?.split_once(' '))
        .map(|(time, rest)| (time, rest.contains("drop:loss")))
        .collect();
    let apart = packets.windows(2).filter(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1);
    assert!(apart.count() > 20);
    let replayed = replay(recording.as_bytes()).unwrap();
    assert_eq!(replayed.links.len(), 2);
    for link in &status {
        let name = [link.from.as_deref().unwrap(), link.to.as_deref().unwrap()].join("_");
        let (_, counters) = replayed.links.iter().find(|(known, _)| *known == name).unwrap();
        // Acknowledgements may still have come after the status.
        assert!(counters.packets >= link.counters.packets, "{name}");
        assert!(counters.drops_loss >= link.counters.drops_loss, "{name}");
    }
}

#[test]
fn links_share_their_sites_port_and_recordings_replay() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    let text = "[site.a]\n[site.b]\n\
                [site.c]\negress = '20 Mbit/s'\ningress = '20 Mbit/s'\nport_queue = '1 MB'\n\
                [link.a-c]\ndelay = '1 ms'\n[link.b-c]\ndelay = '2 ms'\n";
    fs::write(&file, text).unwrap();
    let topology = Topology::load(&file).unwrap();
    let prefix = prefix();
    let recording = directory.path().join("recording");
    let out = BufWriter::new(File::create(&recording).unwrap());
    let Some(lab) = start(&topology, &prefix, Some(Recorder::new(Box::new(out)))) else {
        return;
    };
    let c_ip = "10.77.0.3";
    let (a, b) = (udp(&prefix, "a", A), udp(&prefix, "b", B));
    let c = udp(&prefix, "c", c_ip);
    // 100 packets of 1,250 bytes, half of them from each: 50 ms of the port alone.
    let began = Instant::now();
    for _ in 0..50 {
        a.send_to(&[1; 1222], (c_ip, 7000)).unwrap();
        b.send_to(&[2; 1222], (c_ip, 7000)).unwrap();
    }
    receive(&c, 100);
    assert!(began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
    let began = Instant::now();
    for _ in 0..50 {
        c.send_to(&[1; 1222], (A, 7000)).unwrap();
        c.send_to(&[2; 1222], (B, 7000)).unwrap();
    }
    receive(&b, 50);
    receive(&a, 50);
    assert!(began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
    let ports: Vec<_> =
        lab.status().into_iter().filter(|s| s.from.is_none() || s.to.is_none()).collect();
    assert_eq!(ports.len(), 2);
    assert!(ports.iter().all(|port| port.counters.packets == 100), "{ports:?}");
    lab.stop().unwrap();
    let replayed = replay(fs::read(recording).unwrap().as_slice()).unwrap();
    let seen = |name: &str| replayed.links.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!((seen("c_egress").packets, seen("c_ingress").packets), (100, 100));
}

#[test]
fn streams_over_codel_and_parallel_paths_arrive_and_replay() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    let text = "[site.a]\n[site.b]\n[link.a-b]\ndelay = '2 ms'\nrate = '50 Mbit/s'\n\
                queue = '1 MB'\ncodel = { target = '1 ms', interval = '10 ms' }\n\
                parallel = ['delay 3ms rate 40mbit queue 1MB codel 1ms 10ms duplicate 1%']\n\
                cross = ['onoff rate 5mbit on 10ms off 20ms']\n";
    fs::write(&file, text).unwrap();
    let topology = Topology::load(&file).unwrap();
    let prefix = prefix();
    let recording = directory.path().join("recording");
    let out = BufWriter::new(File::create(&recording).unwrap());
    let Some(lab) = start(&topology, &prefix, Some(Recorder::new(Box::new(out)))) else {
        return;
    };
    let listener = at(&prefix, "b", || TcpListener::bind((B, 7001)).unwrap());
    let address = listener.local_addr().unwrap();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
    std::thread::scope(|scope| {
        // Ports, and with them paths, differ from stream to stream.
        for _ in 0..6 {
            let (mut sender, data) =
                (at(&prefix, "a", || TcpStream::connect(address).unwrap()), &data);
            let (mut stream, _) = listener.accept().unwrap();
            scope.spawn(move || sender.write_all(data).unwrap());
            scope.spawn(move || {
                let mut came = Vec::new();
                stream.read_to_end(&mut came).unwrap();
                assert!(came == *data, "the stream differs");
            });
        }
    });
    let counters = seen(&lab, "a").counters;
    assert!(counters.packets > 4_000, "{counters:?}");
    assert!(counters.drops_codel + counters.marked_codel > 0, "{counters:?}");
    lab.stop().unwrap();
    let recording = fs::read_to_string(recording).unwrap();
    for part in ["0 parallel ", "0 cross onoff", " queued", "0 decided ", "flow:"] {
        assert!(recording.contains(part), "{part} is not in the recording");
    }
    let replayed = replay(recording.as_bytes()).unwrap();
    assert!(replayed.links.iter().all(|(_, counters)| counters.packets > 100));
}
