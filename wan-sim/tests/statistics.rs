//! Every random impairment against its distribution: a million packets a seed, seeds 1 to
//! 20, significance 1e-3, at most one failing seed. Wrong models must fail the same checks.

mod support;

use support::{PACKETS, at_most_one_fails, binomial, chi_squared, ks, runs};
use units::{BitRate, ByteCount, Fraction, Span, TimeNs};
use wan_sim::{
    Delivery, DropReason, EmulatedLink, Fate, GilbertElliott, Jitter, LinkSpec, Loss, Order,
    Packet, Reorder, Shape,
};

fn fraction(x: f64) -> Fraction {
    Fraction::from_ppb((x * 1e9) as u32).unwrap()
}

fn clean() -> LinkSpec {
    LinkSpec::unlimited(Span::from_ms(40)).unwrap()
}

fn fates(spec: LinkSpec, seed: u64) -> impl Iterator<Item = Fate> {
    let mut link = EmulatedLink::new(spec, seed);
    (0..PACKETS).map(move |i| link.offer(TimeNs::from_ns(i * 1000), Packet::new(1500)).fate)
}

fn losses(spec: LinkSpec, seed: u64) -> Vec<bool> {
    let lost = |fate| matches!(fate, Fate::Drop(DropReason::Loss | DropReason::Burst));
    fates(spec, seed).map(lost).collect()
}

fn count(events: &[bool]) -> u64 {
    events.iter().filter(|event| **event).count() as u64
}

/// Independent with probability `p`: the right number, and no clustering.
fn independent(events: &[bool], p: f64) -> bool {
    binomial(count(events), PACKETS, p) && runs(events)
}

#[test]
fn random_loss_is_binomial_and_independent() {
    for p in [1e-3, 0.01, 0.3] {
        at_most_one_fails(|seed| independent(&losses(clean().with_loss(fraction(p)), seed), p));
    }
}

#[test]
fn losing_whole_super_packets_is_found_out() {
    let failed = (1..=20).filter(|seed| {
        let link = losses(clean().with_loss(fraction(0.01)), *seed);
        // One draw for each buffer of 44 segments.
        let whole: Vec<_> = (0..link.len()).map(|i| link[i / 44]).collect();
        !independent(&whole, 0.01)
    });
    assert_eq!(failed.count(), 20);
}

#[test]
fn bursts_have_their_share_and_their_length() {
    let (p, r) = (0.005, 0.25);
    let chain = GilbertElliott {
        to_bad: fraction(p),
        to_good: fraction(r),
        loss_in_bad: fraction(1.0),
        loss_in_good: fraction(0.0),
    };
    at_most_one_fails(|seed| {
        let lost = losses(clean().with_loss_model(Loss::GilbertElliott(chain)), seed);
        let share = p / (p + r);
        // Of a sum over a chain that remembers 1 - p - r of its state.
        let memory = 1.0 - p - r;
        let variance = PACKETS as f64 * share * (1.0 - share) * (1.0 + memory) / (1.0 - memory);
        let off = count(&lost) as f64 - PACKETS as f64 * share;
        let mut lengths = [0u64; 20];
        let mut burst = 0;
        for lost in lost {
            if lost {
                burst += 1;
            } else if burst > 0 {
                lengths[burst.min(lengths.len()) - 1] += 1;
                burst = 0;
            }
        }
        let bursts = lengths.iter().sum::<u64>() as f64;
        let geometric = (0..lengths.len()).map(|k| {
            let tail = (1.0f64 - r).powi(k as i32);
            bursts * if k + 1 == lengths.len() { tail } else { tail * r }
        });
        off.abs() <= support::Z * variance.sqrt() && chi_squared(&lengths, geometric)
    });
}

#[test]
fn both_states_lose_with_their_own_probability() {
    let chain = GilbertElliott {
        to_bad: fraction(0.01),
        to_good: fraction(0.1),
        loss_in_bad: fraction(0.5),
        loss_in_good: fraction(0.001),
    };
    let share = 0.01 / 0.11;
    let p = share * 0.5 + (1.0 - share) * 0.001;
    at_most_one_fails(|seed| {
        let lost = losses(clean().with_loss_model(Loss::GilbertElliott(chain)), seed);
        let memory = 0.89;
        // Independent draws, plus what the chain's memory adds: difference of the states'
        // probabilities squared, times the chain's own covariance.
        let chain_variance = share * (1.0 - share) * 2.0 * memory / (1.0 - memory);
        let variance = p * (1.0 - p) + 0.499f64.powi(2) * chain_variance;
        let off = count(&lost) as f64 - PACKETS as f64 * p;
        off.abs() <= support::Z * (PACKETS as f64 * variance).sqrt()
    });
}

#[test]
fn copies_flipped_bits_and_overtaking_are_binomial_and_independent() {
    let p = 0.01;
    at_most_one_fails(|seed| {
        let mut link = EmulatedLink::new(clean().with_duplicate(fraction(p)), seed);
        let copied: Vec<_> = (0..PACKETS)
            .map(|i| link.offer(TimeNs::from_ns(i), Packet::new(100)).copy.is_some())
            .collect();
        independent(&copied, p)
    });
    at_most_one_fails(|seed| {
        let mut bits = [0u64; 64];
        let flipped: Vec<_> = fates(clean().with_corrupt(fraction(p)), seed)
            .map(|fate| {
                let bit = fate.delivery().unwrap().corrupt_bit;
                bit.inspect(|bit| bits[*bit as usize % 64] += 1).is_some()
            })
            .collect();
        let each = count(&flipped) as f64 / 64.0;
        independent(&flipped, p) && chi_squared(&bits, (0..64).map(|_| each))
    });
    at_most_one_fails(|seed| {
        let reorder = Reorder { probability: fraction(p), gap: 1.try_into().unwrap() };
        let skipped: Vec<_> = fates(clean().with_reorder(reorder), seed)
            .enumerate()
            .map(|(i, fate)| fate.delivery().unwrap().at == TimeNs::from_ns(i as u64 * 1000))
            .collect();
        independent(&skipped, p)
    });
}

fn delays(jitter: Jitter, seed: u64) -> impl Iterator<Item = f64> {
    fates(clean().with_jitter(jitter).unwrap(), seed).enumerate().map(|(i, fate)| {
        let at = fate.delivery().unwrap().at.ns();
        (at - i as u64 * 1000) as f64 - 40e6
    })
}

#[test]
fn jitter_follows_its_distribution() {
    let spread_ns = 2_000_000.0;
    for (shape, cdf) in [
        (Shape::Uniform, support::uniform_cdf as fn(f64) -> f64),
        (Shape::Normal, support::normal_cut_at_4_cdf),
    ] {
        let jitter = Jitter { spread: Span::from_ms(2), shape, order: Order::Free };
        at_most_one_fails(|seed| ks(delays(jitter, seed).map(|d| d / spread_ns), cdf));
        // A spread one percent off is found out.
        let near = Jitter { spread: Span::from_ns(1_980_000), ..jitter };
        assert!(!ks(delays(near, 1).map(|d| d / spread_ns), cdf));
    }
}

/// Whether the losses of a model are the same with jitter as without.
fn losses_ignore_jitter(model: impl Fn(bool, u64) -> Vec<bool>) -> bool {
    (1..=20).all(|seed| model(false, seed) == model(true, seed))
}

#[test]
fn one_random_stream_for_all_is_found_out() {
    let lossy = clean().with_loss(fraction(0.01));
    let spread = Jitter { spread: Span::from_ms(2), ..Jitter::NONE };
    let jittered = lossy.with_jitter(spread).unwrap();
    assert!(losses_ignore_jitter(|jitters, seed| losses(
        if jitters { jittered } else { lossy },
        seed
    )));
    // The wrong model: once there is jitter, it takes every other draw of the one stream.
    assert!(!losses_ignore_jitter(|jitters, seed| {
        let draws = losses(lossy, seed);
        let packets = draws.len() / 2;
        draws.into_iter().step_by(if jitters { 2 } else { 1 }).take(packets).collect()
    }));
}

/// A model under test: whether a packet of this size, offered now, is dropped by the queue.
type QueueDrops<'a> = &'a mut dyn FnMut(u32) -> bool;

/// 100 kB take 66 packets of 1,500 bytes, or 1,000 of 100, beside the one being sent.
fn queue_is_in_bytes(model: impl Fn() -> Box<dyn FnMut(u32) -> bool>) -> bool {
    let taken = |model: QueueDrops<'_>, bytes| (0..2000).filter(|_| !model(bytes)).count();
    taken(&mut *model(), 1500) == 67 && taken(&mut *model(), 100) == 1001
}

#[test]
fn a_queue_that_counts_packets_is_found_out() {
    assert!(queue_is_in_bytes(|| {
        let spec = LinkSpec::new(BitRate::from_bits_per_second(1000), Span::ZERO).unwrap();
        let mut link = EmulatedLink::new(spec.with_queue(ByteCount::new(100_000)), 1);
        Box::new(move |bytes| {
            link.offer(TimeNs::default(), Packet::new(bytes)).fate == Fate::Drop(DropReason::Queue)
        })
    }));
    assert!(!queue_is_in_bytes(|| {
        let mut packets = 0;
        Box::new(move |_| {
            packets += 1;
            packets > 67
        })
    }));
}

#[test]
fn delay_is_base_plus_queue_plus_sending_time() {
    // A standing queue of 4 MB at 1 Gbit/s, 20 ms, packets of 1,500 bytes.
    let spec = LinkSpec::new(BitRate::from_bits_per_second(1_000_000_000), Span::from_ms(20))
        .unwrap()
        .with_queue(ByteCount::new(4_000_000));
    let mut link = EmulatedLink::new(spec, 1);
    let mut offer = |at: u64| link.offer(TimeNs::from_ns(at), Packet::new(1500)).fate;
    for _ in 0..3000 {
        offer(0);
    }
    for i in 1..100_000 {
        let now = i * 12_000;
        let Fate::Deliver(Delivery { at, .. }) = offer(now) else { panic!("{i}") };
        // 2,666 packets of the 4 MB wait, one of them this one, while one has just begun.
        assert_eq!(at.ns() - now, 20_000_000 + 2666 * 12_000 + 12_000);
    }
}
