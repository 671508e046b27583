use super::*;
use proptest::prelude::*;
use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span, TimeNs};

mod capacity;
mod cross;
mod disciplines;
mod paths;

fn spec(rate: &str, delay: &str) -> LinkSpec {
    LinkSpec::new(rate.parse().unwrap(), delay.parse().unwrap()).unwrap()
}

fn uniform(spread: Span) -> Jitter {
    Jitter { spread, ..Jitter::NONE }
}

fn percent(percent: u32) -> Fraction {
    Fraction::from_ppb(percent * 10_000_000).unwrap()
}

fn ns(ns: u64) -> TimeNs {
    TimeNs::from_ns(ns)
}

fn at(ns: u64) -> Fate {
    Fate::Deliver(Delivery { at: TimeNs::from_ns(ns), marked: None, corrupt_bit: None })
}

impl EmulatedLink {
    fn fate(&mut self, at_ns: u64, ip_bytes: u32) -> Fate {
        self.offer(ns(at_ns), Packet::new(ip_bytes)).fate
    }
}

#[test]
fn a_packet_takes_its_bits_and_the_delay() {
    let mut link = EmulatedLink::new(spec("1 Gbit/s", "40 ms"), 1);
    assert_eq!(link.fate(5, 1500), at(5 + 12_000 + 40_000_000));
    // The second waits for the first.
    assert_eq!(link.fate(6, 1500), at(5 + 24_000 + 40_000_000));
}

#[test]
fn remainders_are_carried() {
    // 3 Gbit/s: 8/3 ns a byte. 3,000 packets of one byte take 8,000 ns, not 6,000 or 9,000.
    let wide = spec("3 Gbit/s", "0 ns").with_queue(ByteCount::new(1 << 20));
    let mut link = EmulatedLink::new(wide, 1);
    let last = (0..3000).map(|_| link.fate(0, 1)).last();
    assert_eq!(last, Some(at(8000)));
}

#[test]
fn the_queue_holds_its_bytes_beside_the_packet_being_sent() {
    let mut link = EmulatedLink::new(spec("8 Mbit/s", "0 ns").with_queue(ByteCount::new(3000)), 1);
    assert_eq!(link.fate(0, 1000), at(1_000_000));
    assert_eq!(link.fate(0, 1000), at(2_000_000));
    assert_eq!(link.fate(0, 2000), at(4_000_000));
    assert_eq!(link.fate(0, 1), Fate::Drop(DropReason::Queue));
    assert_eq!(link.queue_bytes(ns(0)), ByteCount::new(3000));
    assert_eq!(link.queue_bytes(ns(1_000_000)), ByteCount::new(2000));
    // 1,000 bytes have left it, so as many fit again.
    assert_eq!(link.fate(1_000_000, 1001), Fate::Drop(DropReason::Queue));
    assert_eq!(link.fate(1_000_000, 1000), at(5_000_000));
    assert_eq!(link.queue_bytes_peak(), ByteCount::new(3000));
    let counters = link.counters();
    assert_eq!((counters.packets, counters.ip_bytes, counters.drops_queue), (6, 6002, 2));
}

#[test]
fn the_default_queue_is_one_round_trip_of_rate() {
    assert_eq!(spec("1 Gbit/s", "40 ms").queue(), ByteCount::new(10_000_000));
}

#[test]
fn loss_is_the_same_whatever_else_is_switched_on() {
    let loss = Fraction::from_ppb(100_000_000).unwrap();
    let plain = spec("1 Gbit/s", "40 ms").with_loss(loss);
    let jittered = plain.with_jitter(uniform(Span::from_ms(3))).unwrap();
    let lost = |spec| {
        let mut link = EmulatedLink::new(spec, 7);
        (0..5000)
            .map(|i| link.fate(i * 100_000, 1000) == Fate::Drop(DropReason::Loss))
            .collect::<Vec<_>>()
    };
    assert_eq!(lost(plain), lost(jittered));
    assert!(lost(plain).contains(&true));
}

#[test]
fn a_change_holds_for_later_packets() {
    let mut link = EmulatedLink::new(spec("8 Mbit/s", "10 ms"), 1);
    assert_eq!(link.fate(0, 1000), at(11_000_000));
    // The first has its millisecond halved, too.
    let moved = link.set_spec(ns(0), spec("16 Mbit/s", "20 ms"));
    let packet = PacketName { number: 0, copy: false };
    assert_eq!(moved, [Moved { packet, at: ns(10_500_000) }]);
    assert_eq!(link.fate(0, 1000), at(21_000_000));
    link.set_blackhole(true);
    assert_eq!(link.fate(0, 1000), Fate::Drop(DropReason::Blackhole));
    link.set_blackhole(false);
    assert_eq!(link.fate(0, 1000), at(21_500_000));
    assert_eq!(link.counters().drops_blackhole, 1);
}

#[test]
fn impossible_links_are_refused() {
    let zero = LinkSpec::new(BitRate::from_bits_per_second(0), Span::ZERO);
    assert_eq!(zero, Err(SpecError::ZeroRate));
    assert!(spec("1 bit/s", "1 ms").with_jitter(uniform(Span::from_ms(2))).is_err());
}

#[test]
fn a_scripted_rate_change_reaches_packets_already_waiting() {
    // 1,250 bytes are 10 ms at 1 Mbit/s: half sent before the rate doubles.
    let slow = spec("1 Mbit/s", "0 ns").with_queue(ByteCount::new(10_000));
    let fast = spec("2 Mbit/s", "0 ns").with_queue(ByteCount::new(10_000));
    let script = Script::new([(ns(5_000_000), Change::Spec(fast))], []);
    let mut link = EmulatedLink::scripted(slow, script, 1);
    assert_eq!(link.fate(0, 1250), at(7_500_000));
    assert_eq!(link.fate(1, 1250), at(12_500_000));
    assert_eq!(link.fate(6_000_000, 1250), at(17_500_000));
    assert_eq!(link.fate(20_000_000, 1250), at(25_000_000));
}

#[test]
fn a_surprise_comes_after_what_was_foreseen_before_it() {
    let (slow, lossy) =
        (spec("8 Mbit/s", "0 ns"), spec("16 Mbit/s", "0 ns").with_loss(percent(100)));
    let script = Script::new([(ns(1_000_000), Change::Spec(slow))], []);
    let mut link = EmulatedLink::scripted(spec("80 Mbit/s", "0 ns"), script, 1);
    // One packet half sent when the rate falls to a tenth: another 5 ms, of which 4 are left.
    assert_eq!(link.fate(500_000, 10_000), at(1_000_000 + 5_000_000));
    let moved = link.set_spec(ns(2_000_000), lossy);
    assert_eq!(moved.iter().map(|moved| moved.at).collect::<Vec<_>>(), [ns(4_000_000)]);
    assert_eq!(link.fate(3_000_000, 1000), Fate::Drop(DropReason::Loss));
    assert_eq!(*link.spec(), lossy);
}

#[test]
fn a_script_cuts_joins_and_drops_what_it_names() {
    let script = Script::new([(ns(20), Change::Join), (ns(10), Change::Cut)], [3, 1, 3]);
    let mut link = EmulatedLink::scripted(LinkSpec::unlimited(Span::ZERO).unwrap(), script, 1);
    let fates: Vec<_> = (0..5).map(|i| link.fate(i * 6, 100)).collect();
    let dropped = Fate::Drop;
    assert_eq!(
        fates,
        [
            at(0),
            dropped(DropReason::Script),
            dropped(DropReason::Blackhole),
            dropped(DropReason::Blackhole),
            at(24)
        ]
    );
}

#[test]
fn overhead_takes_rate_but_no_queue() {
    let narrow = spec("8 Mbit/s", "0 ns").with_overhead(38).with_queue(ByteCount::new(1000));
    let mut link = EmulatedLink::new(narrow, 1);
    assert_eq!(link.fate(0, 962), at(1_000_000));
    assert_eq!(link.fate(0, 962), at(2_000_000));
    assert_eq!(link.queue_bytes(ns(0)), ByteCount::new(962));
}

#[test]
fn queues_come_in_bytes_in_time_and_in_products() {
    let sized = |text: &str| {
        spec("1 Gbit/s", "40 ms").with_queue(text.parse::<QueueSize>().unwrap()).queue().get()
    };
    assert_eq!(sized("20 ms"), 2_500_000);
    assert_eq!(sized("0.5 BDP"), 5_000_000);
    assert_eq!(sized("7 kB"), 7000);
}

#[test]
fn a_limit_counts_packets_waiting_and_under_way() {
    let limited = spec("8 Mbit/s", "10 ms").with_limit(3.try_into().unwrap());
    let mut link = EmulatedLink::new(limited, 1);
    let fates: Vec<_> = (0..4).map(|_| link.fate(0, 1000)).collect();
    assert_eq!(
        fates,
        [at(11_000_000), at(12_000_000), at(13_000_000), Fate::Drop(DropReason::Limit)]
    );
    assert_eq!(link.fate(10_999_999, 1000), Fate::Drop(DropReason::Limit));
    assert_eq!(link.fate(11_000_000, 1000), at(22_000_000));
    assert_eq!(link.counters().drops_limit, 2);
}

#[test]
fn packets_longer_than_the_mtu_are_dropped_and_counted() {
    let mut link = EmulatedLink::new(spec("8 Mbit/s", "10 ms"), 1);
    link.set_mtu(1000);
    assert_eq!(link.fate(0, 1001), Fate::Drop(DropReason::Mtu));
    assert_eq!(link.fate(0, 1000), at(11_000_000));
    assert_eq!((link.counters().drops_mtu, link.counters().drops()), (1, 1));
}

#[test]
fn a_long_queue_marks_what_can_be_marked() {
    let marking = spec("8 Mbit/s", "1 ms").with_marking_above(ByteCount::new(1500));
    let mut link = EmulatedLink::new(marking.with_queue(ByteCount::new(9000)), 1);
    let mut marked = |packet| {
        let offered = link.offer(ns(0), packet);
        offered.fate.delivery().unwrap().marked
    };
    let capable = Packet::ecn_capable(1000);
    assert_eq!(
        [marked(capable), marked(capable), marked(capable)],
        [None, None, Some(MarkReason::Queue)]
    );
    assert_eq!(marked(Packet::new(1000)), None);
    assert_eq!((link.counters().marked_queue, link.counters().marked_loss), (1, 0));
}

#[test]
fn losses_become_marks_where_packets_allow() {
    let marking = spec("1 Gbit/s", "1 ms").with_loss(percent(100)).with_losses_marked();
    let mut link = EmulatedLink::new(marking, 1);
    let marked = link.offer(ns(0), Packet::ecn_capable(100)).fate.delivery().unwrap().marked;
    assert_eq!((marked, link.counters().marked_loss), (Some(MarkReason::Loss), 1));
    assert_eq!(link.fate(0, 100), Fate::Drop(DropReason::Loss));
}

#[test]
fn a_copy_follows_and_has_a_fate_of_its_own() {
    let copying = spec("8 Mbit/s", "1 ms").with_duplicate(percent(100));
    let mut link = EmulatedLink::new(copying.with_queue(ByteCount::new(0)), 1);
    let offered = link.offer(ns(0), Packet::new(1000));
    assert_eq!((offered.fate, offered.copy), (at(2_000_000), Some(Fate::Drop(DropReason::Queue))));
    link.set_spec(ns(0), copying);
    let offered = link.offer(ns(1_000_000), Packet::new(1000));
    assert_eq!((offered.fate, offered.copy), (at(3_000_000), Some(at(4_000_000))));
    assert_eq!((link.counters().packets, link.counters().duplicated), (2, 2));
}

#[test]
fn every_nth_packet_skips_the_delay() {
    let reorder = Reorder { probability: percent(100), gap: 3.try_into().unwrap() };
    let mut link = EmulatedLink::new(spec("8 Gbit/s", "1 ms").with_reorder(reorder), 1);
    let skipped: Vec<_> =
        (0..7).map(|i| link.fate(i * 10_000, 1000) == at(i * 10_000 + 1000)).collect();
    assert_eq!(skipped, [false, false, true, false, false, true, false]);
}

#[test]
fn jitter_reorders_only_when_told() {
    let jitter = |order| Jitter { spread: Span::from_ms(5), shape: Shape::Normal, order };
    let arrivals = |order| {
        let jittered = spec("1 Gbit/s", "40 ms").with_jitter(jitter(order)).unwrap();
        let mut link = EmulatedLink::new(jittered, 1);
        (0..1000).map(|i| link.fate(i * 10_000, 100).delivery().unwrap().at).collect::<Vec<_>>()
    };
    assert!(arrivals(Order::Kept).is_sorted());
    assert!(!arrivals(Order::Free).is_sorted());
    // Four standard deviations of 11 ms reach below nothing.
    let wide = Jitter { spread: Span::from_ms(11), ..jitter(Order::Free) };
    assert!(spec("1 Gbit/s", "40 ms").with_jitter(wide).is_err());
}

/// The effect of an impairment on each packet; `None` where another has hidden it.
type Effects = Vec<Option<u64>>;
type Impairment = (&'static str, fn(LinkSpec) -> LinkSpec, fn(u64, &PacketFates) -> Option<u64>);

fn delayed(now: u64, offered: &PacketFates) -> Option<u64> {
    offered.fate.delivery().map(|delivery| delivery.at.since(ns(now)).ns())
}

const IMPAIRMENTS: [Impairment; 5] = [
    (
        "loss",
        |link| link.with_loss(percent(10)),
        |_, offered| Some(u64::from(offered.fate == Fate::Drop(DropReason::Loss))),
    ),
    (
        "copies",
        |link| link.with_duplicate(percent(10)),
        |_, offered| Some(u64::from(offered.copy.is_some())),
    ),
    (
        "flipped bits",
        |link| link.with_corrupt(percent(10)),
        |_, offered| offered.fate.delivery().map(|d| d.corrupt_bit.map_or(0, |b| 1 + u64::from(b))),
    ),
    (
        "jitter",
        |link| {
            let jitter = Jitter { order: Order::Free, ..uniform(Span::from_ms(3)) };
            link.with_jitter(jitter).unwrap()
        },
        |now, offered| delayed(now, offered).filter(|delay| *delay > 0),
    ),
    (
        "overtaking",
        |link| link.with_reorder(Reorder { probability: percent(10), gap: NonZeroU32::MIN }),
        |now, offered| delayed(now, offered).map(|delay| u64::from(delay == 0)),
    ),
];

#[test]
fn switching_an_impairment_on_leaves_the_others_alone() {
    let plain = LinkSpec::unlimited(Span::from_ms(40)).unwrap();
    let seen = |spec, see: fn(u64, &PacketFates) -> Option<u64>| -> Effects {
        let mut link = EmulatedLink::new(spec, 3);
        let offered = (0..10_000).map(|i| (i * 100, link.offer(ns(i * 100), Packet::new(1000))));
        offered.map(|(now, offered)| see(now, &offered)).collect()
    };
    let everything = IMPAIRMENTS.iter().fold(plain, |link, (_, switch_on, _)| switch_on(link));
    for (name, switch_on, see) in IMPAIRMENTS {
        let alone = seen(switch_on(plain), see);
        assert_ne!(alone, seen(plain, see), "{name} does nothing");
        let others = IMPAIRMENTS.iter().filter(|(other, ..)| *other != name);
        let both = others.map(|(other, switch_other_on, _)| (*other, switch_other_on(plain)));
        for (other, link) in both.chain([("all others", everything)]) {
            let together = seen(switch_on(link), see);
            let pairs = alone.iter().zip(&together);
            let pairs: Vec<_> = pairs.filter(|(a, b)| a.is_some() && b.is_some()).collect();
            // Most packets show it still.
            assert!(pairs.len() > 5000, "{name} with {other}: {}", pairs.len());
            let changed = pairs.iter().position(|(alone, together)| alone != together);
            assert_eq!(changed, None, "{name} with {other}");
        }
    }
}

proptest! {
    /// A change of the rate without notice moves arrivals to where a script, which fates
    /// take into account from the start, has them.
    #[test]
    fn an_unscripted_change_moves_packets_as_a_scripted_one(
        packets in prop::collection::vec((0u64..30_000, 1u32..1500), 1..100),
        (before, after) in (1u64..100, 1u64..100),
        (change_at, jitter_us) in (0u64..1_000_000, 0u64..500),
        kept: bool,
    ) {
        // Whole nanoseconds a byte, so that none is lost to rounding at the change.
        let rates = [before, after].map(|ns| BitRate::from_bits_per_second(8_000_000_000 / ns));
        let order = if kept { Order::Kept } else { Order::Free };
        let jitter = Jitter { order, ..uniform(Span::from_ns(jitter_us * 1000)) };
        let [old, new] = rates.map(|rate| {
            let spec = LinkSpec::new(rate, Span::from_ms(1)).unwrap();
            spec.with_queue(ByteCount::new(20_000)).with_jitter(jitter).unwrap()
        });
        let script = Script::new([(ns(change_at), Change::Spec(new))], []);
        let mut scripted = EmulatedLink::scripted(old, script, 1);
        let mut unscripted = EmulatedLink::new(old, 1);
        let (mut now, mut changed) = (0, false);
        let mut arrivals = Vec::new();
        for (gap, bytes) in packets {
            now += gap;
            if now >= change_at && !changed {
                changed = true;
                for Moved { packet, at } in unscripted.set_spec(ns(change_at), new) {
                    let (_, arrival) = &mut arrivals[packet.number as usize];
                    *arrival = Some(at);
                }
            }
            let fates = (scripted.fate(now, bytes), unscripted.fate(now, bytes));
            arrivals.push((fates.0.delivery().map(|d| d.at), fates.1.delivery().map(|d| d.at)));
        }
        prop_assume!(changed);
        for (scripted, unscripted) in arrivals {
            prop_assert_eq!(scripted.is_some(), unscripted.is_some());
            // A bit in service at the change is rounded.
            let [scripted, unscripted] = [scripted, unscripted].map(Option::unwrap_or_default);
            let off = scripted.ns().abs_diff(unscripted.ns());
            prop_assert!(off <= 200, "{off} ns");
        }
    }

    /// Order holds, nothing is earlier than physics allows, the queue is never overfull and
    /// every packet is counted once.
    #[test]
    fn arrivals_keep_order_and_bounds(
        seed: u64,
        packets in prop::collection::vec((0u64..200_000, 1u32..9000), 1..300),
        (kbits, queue) in (1u64..10_000_000, 0u64..100_000),
        (delay_us, jitter_us) in (0u64..50_000).prop_flat_map(|d| (Just(d), 0..=d)),
        loss_ppb in 0u32..500_000_000,
    ) {
        let spec = LinkSpec::new(
            BitRate::from_bits_per_second(kbits * 1000),
            Span::from_ns(delay_us * 1000),
        )
        .unwrap()
        .with_jitter(uniform(Span::from_ns(jitter_us * 1000)))
        .unwrap()
        .with_loss(Fraction::from_ppb(loss_ppb).unwrap())
        .with_queue(ByteCount::new(queue));
        let mut link = EmulatedLink::new(spec, seed);
        let (mut now, mut last, mut delivered) = (0, TimeNs::default(), 0);
        for (gap, bytes) in &packets {
            now += gap;
            if let Fate::Deliver(Delivery { at, .. }) = link.fate(now, *bytes) {
                prop_assert!(at >= last);
                let least = u64::from(*bytes) * 8_000_000 / kbits + (delay_us - jitter_us) * 1000;
                prop_assert!(at.ns() >= now + least);
                last = at;
                delivered += 1;
            }
            prop_assert!(link.queue_bytes(ns(now)).get() <= queue);
        }
        let counters = link.counters();
        prop_assert_eq!(counters.packets, packets.len() as u64);
        prop_assert_eq!(
            counters.ip_bytes,
            packets.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>()
        );
        prop_assert_eq!(delivered + counters.drops_loss + counters.drops_queue, counters.packets);
    }
}
