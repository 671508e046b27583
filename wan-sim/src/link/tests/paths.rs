//! Parallel paths, and what holds for every link: conservation, order and capacity.

use super::disciplines::events_of;
use super::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn parallel(paths: usize) -> Conditions {
    let path = spec("1 Gbit/s", "1 ms");
    Conditions { parallel: vec![path; paths - 1], ..Conditions::default() }
}

#[test]
fn flows_are_spread_over_paths_and_stay_there() {
    let link =
        |seed| EmulatedLink::under(spec("1 Gbit/s", "1 ms"), Script::default(), &parallel(4), seed);
    let flow = |port: u16| {
        let address = |ip: [u8; 4], port: u16| std::net::SocketAddr::from((ip, port));
        PacketFlow::between(address([10, 0, 0, 1], port), address([10, 0, 0, 2], 443))
    };
    let (one, other) = (link(1), link(2));
    let mut counts = [0u32; 4];
    let mut moved = 0;
    for port in 0..10_000 {
        counts[one.path_of(flow(port))] += 1;
        assert_eq!(one.path_of(flow(port)), link(1).path_of(flow(port)));
        moved += u32::from(one.path_of(flow(port)) != other.path_of(flow(port)));
    }
    // Four standard deviations of a binomial of 1/4 are 173.
    assert!(counts.iter().all(|count| count.abs_diff(2500) < 173), "{counts:?}");
    assert!(moved.abs_diff(7500) < 173, "{moved}");
    assert_eq!(link(1).path_count(), 4);
}

#[test]
fn each_path_has_its_own_queue_and_delay() {
    let conditions =
        Conditions { parallel: vec![spec("8 Mbit/s", "5 ms")], ..Conditions::default() };
    let first = spec("80 Mbit/s", "1 ms");
    let mut link = EmulatedLink::under(first, Script::default(), &conditions, 1);
    let flow_on = |link: &EmulatedLink, path| {
        (0..).map(PacketFlow::new).find(|flow| link.path_of(*flow) == path).unwrap()
    };
    let [fast, slow] = [0, 1].map(|path| flow_on(&link, path));
    let mut send = |flow| link.offer(ns(0), Packet::new(1000).with_flow(flow)).fate;
    assert_eq!([send(fast), send(slow)], [at(1_100_000), at(6_000_000)]);
    assert_eq!([send(fast), send(slow)], [at(1_200_000), at(7_000_000)]);
}

#[test]
fn labels_tell_bursts_from_single_losses() {
    let chain = GilbertElliott {
        to_bad: percent(1),
        to_good: percent(20),
        loss_in_bad: percent(90),
        loss_in_good: percent(1),
    };
    let lossy = spec("1 Gbit/s", "1 ms").with_loss_model(Loss::GilbertElliott(chain));
    let mut link = EmulatedLink::new(lossy, 1);
    let events = events_of(&mut link);
    for i in 0..100_000 {
        link.fate(i * 100_000, 1000);
    }
    link.set_blackhole(true);
    link.fate(20_000_000_000, 1000);
    let counters = link.counters();
    let events = events.lock().unwrap();
    let count = |reason| {
        let label = LinkEventLabel::Dropped(reason);
        events.iter().filter(|event| event.label == label).count() as u64
    };
    assert_eq!(count(DropReason::Burst), counters.drops_burst);
    assert_eq!(count(DropReason::Loss), counters.drops_loss - counters.drops_burst);
    assert_eq!(count(DropReason::Blackhole), 1);
    assert_eq!(events.len() as u64, counters.drops());
    // One in 21 packets is in the bad state.
    assert!(counters.drops_burst.abs_diff(4286) < 400, "{counters:?}");
    assert!((counters.drops_loss - counters.drops_burst).abs_diff(952) < 130, "{counters:?}");
}

prop_compose! {
    fn any_discipline()(kind in 0..3u8, scale in 1u64..20) -> Discipline {
        match kind {
            0 => Discipline::DropTail,
            1 => Discipline::Codel(Codel {
                target: Span::from_ns(scale * 200_000),
                interval: Span::from_ns(scale * 2_000_000),
            }),
            _ => Discipline::Red(Red {
                min: ByteCount::new(scale * 500),
                max: ByteCount::new(scale * 1500),
                probability: percent(20),
                weight: percent(5),
            }),
        }
    }
}

/// A link with any rate, queue, discipline and conditions.
fn any_link(
    (kbits, queue, seed): (u64, u64, u64),
    discipline: Discipline,
    policed: bool,
    conditions: &Conditions,
) -> EmulatedLink {
    let rate = BitRate::from_bits_per_second(kbits * 1000);
    let mut link = LinkSpec::new(rate, Span::from_ms(3))
        .unwrap()
        .with_queue(ByteCount::new(queue))
        .with_loss(percent(3))
        .with_discipline(discipline)
        .unwrap();
    if policed {
        let policer = Policer { rate, burst: ByteCount::new(6000) };
        link = link.with_policer(policer).unwrap();
    }
    EmulatedLink::under(link, Script::default(), conditions, seed)
}

proptest! {
    /// Every packet is delivered, dropped with one label, or queued; those of a path arrive in
    /// order; and no window carries more than the capacity and one packet.
    #[test]
    fn packets_are_conserved_and_ordered_within_capacity(
        numbers in (500u64..50_000, 0u64..60_000, any::<u64>()),
        discipline in any_discipline(),
        (policed, recorded, cross) in any::<(bool, bool, bool)>(),
        paths in 1usize..4,
        packets in prop::collection::vec(
            (0u64..2_000_000, 40u32..1500, any::<bool>(), 0u64..8),
            1..150,
        ),
    ) {
        let cross = if cross {
            vec![CrossTraffic::new(CrossKind::Cubic), CrossTraffic::new(CrossKind::Bbr)]
        } else {
            Vec::new()
        };
        let recording = CapacityRecording::new(vec![1, 2, 2, 5, 9]).unwrap();
        let capacity = recorded.then(|| Arc::new(recording.clone()));
        let parallel = vec![spec("20 Mbit/s", "1 ms"); paths - 1];
        let conditions = Conditions { capacity, parallel, cross };
        let mut link = any_link(numbers, discipline, policed, &conditions);
        let events = events_of(&mut link);
        let mut fates = BTreeMap::new();
        let mut now = 0;
        for (gap, bytes, capable, flow) in &packets {
            now += gap;
            let packet = if *capable { Packet::ecn_capable(*bytes) } else { Packet::new(*bytes) };
            let offered = link.offer(ns(now), packet.with_flow(PacketFlow::new(*flow)));
            fates.insert(offered.number, (offered.fate, *bytes, *flow));
            prop_assert!(link.queue_bytes(ns(now)).get() <= numbers.1.max(5000) * paths as u64);
        }
        // Half of the time that the rest takes: some still wait.
        for until in [now + 3_000_000, now + 2_000_000_000] {
            for decided in link.take_decided(ns(until)) {
                let known = fates.get_mut(&decided.packet.number).unwrap();
                prop_assert_eq!(known.0, Fate::Queued);
                prop_assert_ne!(decided.fate, Fate::Queued);
                known.0 = decided.fate;
            }
            let counters = link.counters();
            let queued = fates.values().filter(|(fate, ..)| *fate == Fate::Queued).count() as u64;
            let delivered =
                fates.values().filter(|(fate, ..)| fate.delivery().is_some()).count() as u64;
            prop_assert_eq!(delivered + counters.drops() + queued, packets.len() as u64);
            if until > now + 10_000_000 {
                prop_assert_eq!(queued, 0);
            }
        }
        let own = events.lock().unwrap().iter().filter(|event| event.packet.is_some()).count();
        let counters = link.counters();
        let marks = counters.marked_red + counters.marked_codel;
        prop_assert_eq!(own as u64, counters.drops() + marks);
        for path in 0..paths {
            let path_of = |flow: u64| link.path_of(PacketFlow::new(flow));
            let here = fates.values().filter(|(_, _, flow)| path_of(*flow) == path);
            let arrived: Vec<_> = here
                .filter_map(|(fate, bytes, _)| Some((fate.delivery()?.at.ns(), u64::from(*bytes))))
                .collect();
            prop_assert!(arrived.is_sorted_by_key(|(at, _)| *at));
            let bits_per_ns = if path == 0 { numbers.0 as f64 / 1e6 } else { 0.02 };
            for (start, (from, _)) in arrived.iter().enumerate() {
                let mut sum = 0;
                for (until, bytes) in &arrived[start..] {
                    sum += bytes;
                    let most = if path == 0 && recorded {
                        let delay = 3_000_000;
                        let opportunities = |at: u64| {
                            let ms = (at - delay) / 1_000_000;
                            let within = recording.times_ms().iter().filter(|t| **t <= ms % 9);
                            ms / 9 * 5 + within.count() as u64
                        };
                        // The window includes the opportunities at its beginning.
                        (opportunities(*until) - opportunities(from - 1_000_000)) * 1500
                    } else {
                        (bits_per_ns * (until - from) as f64 / 8.0) as u64 + 1
                    };
                    prop_assert!(sum <= most + 1500, "{sum} {most}");
                }
            }
        }
    }
}
