//! Disciplines, recorded capacity, parallel paths and cross traffic on the virtual network.

use quinn::AsyncUdpSocket;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use units::{ByteCount, Span, TimeNs};
use wan_sim::topology::Topology;
use wan_sim::{
    Codel, Conditions, CrossKind, CrossTraffic, Discipline, EmulatedLink, Fate, LinkEventLabel,
    LinkSpec, MarkReason, Packet, PacketFlow, Script, VirtualExecutor, VirtualNet,
    jain_fairness_of_cross_reports,
};

const CLIENT: &str = "10.0.0.1:4433";
const SERVER: &str = "10.0.0.2:4433";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn netem(words: &str) -> LinkSpec {
    words.parse::<wan_sim::netem::Netem>().unwrap().link
}

fn send(socket: &Arc<dyn AsyncUdpSocket>, ecn: Option<EcnCodepoint>, payload: usize) {
    let contents = vec![7; payload];
    let transmit = Transmit {
        destination: address(SERVER),
        ecn,
        contents: &contents,
        segment_size: None,
        src_ip: None,
    };
    socket.try_send(&transmit).unwrap();
}

async fn receive(socket: &Arc<dyn AsyncUdpSocket>) -> RecvMeta {
    let mut buffer = [0u8; 2000];
    let mut metas = [RecvMeta::default()];
    let received = std::future::poll_fn(|cx| {
        socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut metas)
    });
    received.await.unwrap();
    metas[0]
}

/// A network with this link from the client to the server, and its two sockets.
fn connected(
    time: &VirtualExecutor,
    link: EmulatedLink,
) -> (VirtualNet, Arc<dyn AsyncUdpSocket>, Arc<dyn AsyncUdpSocket>) {
    let net = VirtualNet::under(time);
    net.set_link(address(CLIENT).ip(), address(SERVER).ip(), link);
    let (client, server) = (net.bind(address(CLIENT)).unwrap(), net.bind(address(SERVER)).unwrap());
    (net, client, server)
}

/// Arrival and ECN bits of each packet of a load that CoDel acts on, on the network.
fn arrivals_under_codel(ecn: Option<EcnCodepoint>) -> (Vec<(u64, Option<EcnCodepoint>)>, u64) {
    let time = VirtualExecutor::new();
    let spec = netem("delay 5ms rate 8mbit queue 10MB codel 5ms 50ms");
    let (net, client, server) = connected(&time, EmulatedLink::new(spec, 1));
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let (seen, clock) = (Arc::clone(&arrivals), time.clone());
    time.spawn(async move {
        loop {
            let meta = receive(&server).await;
            seen.lock().unwrap().push((clock.now().ns(), meta.ecn));
        }
    });
    let clock = time.clone();
    time.run(async move {
        for i in 1..=1000u64 {
            send(&client, ecn, 972);
            clock.sleep_until(TimeNs::from_ns(i * 600_000)).await;
        }
        clock.sleep_until(TimeNs::from_ns(5_000_000_000)).await;
    })
    .unwrap();
    let drops = net.counters(address(CLIENT).ip(), address(SERVER).ip()).unwrap().drops_codel;
    let arrivals = arrivals.lock().unwrap().clone();
    (arrivals, drops)
}

/// Packets that wait for CoDel's decision arrive when the core alone has them arrive, though no
/// packet comes at the times of the decisions.
#[test]
fn packets_under_codel_arrive_as_in_the_core() {
    let (arrivals, drops) = arrivals_under_codel(None);
    let spec = netem("delay 5ms rate 8mbit queue 10MB codel 5ms 50ms");
    let mut link = EmulatedLink::new(spec, 1);
    let mut fates: Vec<_> = (0..1000)
        .map(|i| link.offer(TimeNs::from_ns(i * 600_000), Packet::new(1000)).fate)
        .collect();
    for decided in link.take_decided(TimeNs::from_ns(60_000_000_000)) {
        fates[decided.packet.number as usize] = decided.fate;
    }
    let alone: Vec<_> = fates.into_iter().filter_map(Fate::delivery).collect();
    let alone: Vec<_> = alone.iter().map(|delivery| (delivery.at.ns(), None)).collect();
    assert_eq!(arrivals, alone);
    assert!(drops > 5 && arrivals.len() as u64 + drops == 1000, "{drops}");
}

#[test]
fn marks_reach_the_receiver() {
    let (arrivals, drops) = arrivals_under_codel(Some(EcnCodepoint::Ect0));
    let marked = arrivals.iter().filter(|(_, ecn)| *ecn == Some(EcnCodepoint::Ce)).count();
    assert_eq!((arrivals.len(), drops), (1000, 0));
    assert!((5..500).contains(&marked), "{marked}");
    for words in ["red 2kB 4kB 50% 100%", "mark-above 5kB"] {
        let time = VirtualExecutor::new();
        let spec = netem(&format!("delay 1ms rate 8mbit queue 10kB {words}"));
        let (net, client, server) = connected(&time, EmulatedLink::new(spec, 1));
        let labels = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&labels);
        net.send_events_to(address(CLIENT).ip(), address(SERVER).ip(), move |event| {
            assert_eq!(event.flow, PacketFlow::between(address(CLIENT), address(SERVER)));
            sink.lock().unwrap().push(event.label);
        })
        .unwrap();
        time.run(async move {
            (0..7).for_each(|_| send(&client, Some(EcnCodepoint::Ect1), 972));
            let mut marked = 0;
            for _ in 0..7 {
                marked += usize::from(receive(&server).await.ecn == Some(EcnCodepoint::Ce));
            }
            let reason = if words.starts_with("red") { MarkReason::Red } else { MarkReason::Queue };
            assert!(marked > 0, "{words}");
            assert_eq!(
                *labels.lock().unwrap(),
                vec![LinkEventLabel::Marked(reason); marked],
                "{words}"
            );
        })
        .unwrap();
    }
}

#[test]
fn real_flows_share_a_link_with_cross_traffic() {
    let time = VirtualExecutor::new();
    let conditions = Conditions {
        cross: vec![CrossTraffic::new(CrossKind::Cubic), CrossTraffic::new(CrossKind::NewReno)],
        ..Conditions::default()
    };
    let spec = LinkSpec::new("20 Mbit/s".parse().unwrap(), Span::from_ms(20)).unwrap();
    let link = EmulatedLink::under(spec, Script::default(), &conditions, 1);
    let (net, client, server) = connected(&time, link);
    let clock = time.clone();
    time.spawn(async move {
        loop {
            receive(&server).await;
        }
    });
    let seen = net.clone();
    time.run(async move {
        // A third of the rate, without regard to losses.
        for i in 1..=17_000u64 {
            send(&client, None, 1472);
            clock.sleep_until(TimeNs::from_ns(i * 1_800_000)).await;
        }
        let (from, to) = (address(CLIENT).ip(), address(SERVER).ip());
        let reports = seen.cross_reports(from, to).unwrap();
        let (begin, end) = (TimeNs::from_ns(5_000_000_000), TimeNs::from_ns(30_000_000_000));
        let mut shares: Vec<_> =
            reports.iter().map(|flow| flow.delivered_between(begin, end) as f64).collect();
        let counters = seen.counters(from, to).unwrap();
        assert!(counters.drops_queue > 0, "{counters:?}");
        shares.push((25.0 / 30.6) * 1500.0 * (counters.packets - counters.drops()) as f64);
        let total = shares.iter().sum::<f64>();
        assert!((55e6..63e6).contains(&total), "{shares:?}");
        assert!(jain_fairness_of_cross_reports(&shares) > 0.7, "{shares:?}");
    })
    .unwrap();
}

#[test]
fn a_port_under_codel_passes_what_it_decides() {
    let time = VirtualExecutor::new();
    let net = VirtualNet::under(&time);
    let (a, b): (IpAddr, IpAddr) = (address(CLIENT).ip(), address(SERVER).ip());
    let plain = LinkSpec::unlimited(Span::from_ms(3)).unwrap();
    net.connect(a, b, plain, plain, 1);
    let port = LinkSpec::new("8 Mbit/s".parse().unwrap(), Span::ZERO).unwrap();
    let port = port.with_queue(ByteCount::new(1 << 20));
    let port = port.with_discipline(Discipline::Codel(Codel::RECOMMENDED)).unwrap();
    net.set_port(a, port, port, 1);
    net.set_port(b, port, port, 2);
    let (client, server) = (net.bind(address(CLIENT)).unwrap(), net.bind(address(SERVER)).unwrap());
    let clock = time.clone();
    time.run(async move {
        (0..5).for_each(|_| send(&client, None, 972));
        for i in 1..=5u64 {
            receive(&server).await;
            // A millisecond at either port, one behind another, and the delay.
            assert_eq!(clock.now(), TimeNs::from_ns((i + 1 + 3) * 1_000_000));
        }
    })
    .unwrap();
}

#[test]
fn a_lab_file_has_disciplines_and_conditions() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cell.trace"), "4\n8\n").unwrap();
    let path = folder.path().join("lab.toml");
    let text = "[site.a]\n[site.b]\n[link.a-b]\nrtt = '40 ms'\npolicer = { rate = '5 Mbit/s', \
                burst = '30 kB' }\n[link.a-b.forward]\ncapacity = 'cell.trace'\ncodel = {}\n\
                parallel = ['delay 5ms rate 9mbit queue 20kB']\ncross = ['cubic', 'bbr start 1s']\n\
                [link.a-b.backward]\nrate = '3 Mbit/s'\n\
                red = { min = '3 kB', max = '9 kB', probability = '10 %' }\n";
    let topology = Topology::parse(&path, text).unwrap();
    let link = &topology.links[0];
    assert_eq!(link.a_to_b, netem("delay 20ms rate 3mbit queue 1bdp codel policer 5mbit 30kB"));
    let red = "delay 20ms rate 3mbit queue 1bdp red 3kB 9kB 10% policer 5mbit 30kB";
    assert_eq!(link.b_to_a, netem(red));
    let conditions = &link.a_to_b_conditions;
    assert_eq!(conditions.capacity.as_ref().unwrap().times_ms(), [4, 8]);
    assert_eq!(conditions.parallel, [netem("delay 5ms rate 9mbit queue 20kB")]);
    let cross: Vec<_> = conditions.cross.iter().map(CrossTraffic::to_string).collect();
    assert_eq!(cross, ["cubic", "bbr start 1s"]);
    assert!(link.b_to_a_conditions.is_empty());
    assert_eq!(topology.shortest_round_trip(), Span::from_ms(25));
    for (keys, parts) in [
        ("rtt = '40 ms'\ncapacity = 'lte'", ["lte", "cellular"]),
        ("rtt = '40 ms'\ncross = ['cubic']", ["cross traffic", "`rate`"]),
        ("rtt = '40 ms'\nrate = '1 Gbit/s'\ncross = ['vegas']", ["`vegas`", "bbr"]),
        ("rtt = '40 ms'\nparallel = ['delay 1']", ["parallel", "40ms"]),
        ("rtt = '40 ms'\ncodel = {}", ["`codel`", "`rate`"]),
        ("netem = 'delay 1ms'\ncodel = {}", ["`codel`", "`netem`"]),
        ("netem = 'delay 1ms'\ncapacity = 'cloud'", ["capacity", "rate"]),
        (
            "rtt = '40 ms'\nrate = '1 Gbit/s'\ncodel = {}\nmark_above = '1 kB'",
            ["`codel`", "`mark_above`"],
        ),
        (
            "rtt = '40 ms'\ncapacity = 'cloud'\nchanges = [{ at = '1 s', rate = '1 Gbit/s' }]",
            ["`rate`", "`capacity`"],
        ),
        ("rtt = '1 ms'\npolicer = { rate = '1 Gbit/s', burst = '1 kB' }", ["1 kB", "1.5 kB"]),
    ] {
        let text = format!("[site.a]\n[site.b]\n[link.a-b]\n{keys}\n");
        let error = Topology::parse(&path, &text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{keys}: {error}");
    }
}
