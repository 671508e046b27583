use super::*;
use proptest::prelude::*;
use units::{BitRate, Fraction, Span};

fn spec(rate: &str, delay: &str) -> LinkSpec {
    LinkSpec::new(rate.parse().unwrap(), delay.parse().unwrap()).unwrap()
}

fn ns(ns: u64) -> TimeNs {
    TimeNs::from_ns(ns)
}

fn at(ns: u64) -> Fate {
    Fate::Deliver { at: TimeNs::from_ns(ns) }
}

#[test]
fn a_packet_takes_its_bits_and_the_delay() {
    let mut link = Link::new(spec("1 Gbit/s", "40 ms"), 1);
    assert_eq!(link.offer(ns(5), 1500), at(5 + 12_000 + 40_000_000));
    // The second waits for the first.
    assert_eq!(link.offer(ns(6), 1500), at(5 + 24_000 + 40_000_000));
}

#[test]
fn remainders_are_carried() {
    // 3 Gbit/s: 8/3 ns a byte. 3,000 packets of one byte take 8,000 ns, not 6,000 or 9,000.
    let wide = spec("3 Gbit/s", "0 ns").with_queue(ByteCount::new(1 << 20));
    let mut link = Link::new(wide, 1);
    let last = (0..3000).map(|_| link.offer(ns(0), 1)).last();
    assert_eq!(last, Some(at(8000)));
}

#[test]
fn the_queue_holds_its_bytes_beside_the_packet_being_sent() {
    let mut link = Link::new(spec("8 Mbit/s", "0 ns").with_queue(ByteCount::new(3000)), 1);
    assert_eq!(link.offer(ns(0), 1000), at(1_000_000));
    assert_eq!(link.offer(ns(0), 1000), at(2_000_000));
    assert_eq!(link.offer(ns(0), 2000), at(4_000_000));
    assert_eq!(link.offer(ns(0), 1), Fate::Drop(Reason::Queue));
    assert_eq!(link.queue_bytes(ns(0)), ByteCount::new(3000));
    assert_eq!(link.queue_bytes(ns(1_000_000)), ByteCount::new(2000));
    // 1,000 bytes have left it, so as many fit again.
    assert_eq!(link.offer(ns(1_000_000), 1001), Fate::Drop(Reason::Queue));
    assert_eq!(link.offer(ns(1_000_000), 1000), at(5_000_000));
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
    let jittered = plain.with_jitter(Span::from_ms(3)).unwrap();
    let lost = |spec| {
        let mut link = Link::new(spec, 7);
        (0..5000)
            .map(|i| link.offer(ns(i * 100_000), 1000) == Fate::Drop(Reason::Loss))
            .collect::<Vec<_>>()
    };
    assert_eq!(lost(plain), lost(jittered));
    assert!(lost(plain).contains(&true));
}

#[test]
fn a_change_holds_for_later_packets() {
    let mut link = Link::new(spec("8 Mbit/s", "10 ms"), 1);
    assert_eq!(link.offer(ns(0), 1000), at(11_000_000));
    link.set_spec(spec("16 Mbit/s", "20 ms"));
    assert_eq!(link.offer(ns(0), 1000), at(21_500_000));
    link.set_blackhole(true);
    assert_eq!(link.offer(ns(0), 1000), Fate::Drop(Reason::Blackhole));
    link.set_blackhole(false);
    assert_eq!(link.offer(ns(0), 1000), at(22_000_000));
    assert_eq!(link.counters().drops_blackhole, 1);
}

#[test]
fn what_cannot_be_is_refused() {
    let zero = LinkSpec::new(BitRate::from_bits_per_second(0), Span::ZERO);
    assert_eq!(zero, Err(SpecError::ZeroRate));
    assert!(spec("1 bit/s", "1 ms").with_jitter(Span::from_ms(2)).is_err());
}

proptest! {
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
        .with_jitter(Span::from_ns(jitter_us * 1000))
        .unwrap()
        .with_loss(Fraction::from_ppb(loss_ppb).unwrap())
        .with_queue(ByteCount::new(queue));
        let mut link = Link::new(spec, seed);
        let (mut now, mut last, mut delivered) = (0, TimeNs::default(), 0);
        for (gap, bytes) in &packets {
            now += gap;
            if let Fate::Deliver { at } = link.offer(ns(now), *bytes) {
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
