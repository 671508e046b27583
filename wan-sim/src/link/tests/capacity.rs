//! Recorded capacity: the format, its use, and the generator.

use super::*;
use std::sync::Arc;

fn recorded(times_ms: &[u64], queue: u64) -> EmulatedLink {
    let recording = CapacityRecording::new(times_ms.to_vec()).unwrap();
    let link = LinkSpec::new(recording.mean_rate(), Span::from_ms(2)).unwrap();
    let conditions = Conditions { capacity: Some(Arc::new(recording)), ..Conditions::default() };
    let link = link.with_queue(ByteCount::new(queue));
    EmulatedLink::under(link, Script::default(), &conditions, 1)
}

#[test]
fn a_recording_is_one_time_a_line() {
    let text = "1\n1\n\n3\n10\n";
    let recording: CapacityRecording = text.parse().unwrap();
    assert_eq!(recording.times_ms(), [1, 1, 3, 10]);
    assert_eq!(recording.to_string().parse(), Ok(recording.clone()));
    // Four deliveries of 12,000 bits in 10 ms.
    assert_eq!(recording.mean_rate(), BitRate::from_bits_per_second(4_800_000));
    for (text, part) in [
        ("", "0 ms"),
        ("0\n0\n", "0 ms"),
        ("1\nx\n", "line 2: `x`"),
        ("5\n3\n", "line 2: 3 ms"),
        ("-1", "`-1`"),
        ("99999999999", "86400000"),
    ] {
        let error = text.parse::<CapacityRecording>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn packets_take_the_opportunities_of_a_recording() {
    let mut link = recorded(&[1, 1, 3, 10], 1 << 20);
    // Three of 500 bytes share one delivery; one of 3,000 takes two.
    let at_ms = |ms: u64| at((ms + 2) * 1_000_000);
    assert_eq!([500, 500, 500].map(|bytes| link.fate(0, bytes)), [at_ms(1); 3]);
    assert_eq!(link.fate(0, 3000), at_ms(3));
    assert_eq!(link.fate(0, 100), at_ms(10));
    // The rest of that delivery is still there for one that waits, and lost for a later one.
    assert_eq!(link.fate(9_000_000, 1400), at_ms(10));
    assert_eq!(link.fate(10_000_001, 1500), at_ms(11));
    // A pause of some repetitions.
    assert_eq!(link.fate(32_000_000, 1500), at_ms(33));
    assert_eq!(link.fate(41_000_000, 1500), at_ms(41));
    assert_eq!(link.fate(41_000_000, 1500), at_ms(41));
    assert_eq!(link.fate(41_000_000, 1500), at_ms(43));
}

#[test]
fn a_flood_uses_exactly_the_recorded_capacity() {
    for kind in SyntheticCapacity::ALL {
        let recording = kind.generate(3);
        let mut link = recorded(recording.times_ms(), 30_000);
        let length = recording.length_ms();
        // Enough at each millisecond for the most that one delivers, over two repetitions.
        let mut arrivals = Vec::new();
        for ms in 0..2 * length {
            while let Fate::Deliver(delivery) = link.fate(ms * 1_000_000, 1500) {
                arrivals.push(delivery.at.ns() / 1_000_000 - 2);
            }
        }
        let times = recording.times_ms();
        let again = times.iter().map(|time| time + length);
        let expected: Vec<_> = times.iter().copied().chain(again).collect();
        // Where more is delivered at once than the queue holds, the rest stays unused.
        assert!(arrivals.len() > expected.len() * 98 / 100, "{kind:?} {}", arrivals.len());
        assert!(arrivals.is_sorted());
        for ms in 0..2 * length {
            let count = |times: &[u64]| {
                times.partition_point(|time| *time <= ms) - times.partition_point(|time| *time < ms)
            };
            assert!(count(&arrivals) <= count(&expected), "{kind:?} at {ms} ms");
        }
    }
}

#[test]
fn a_large_queue_leaves_no_opportunity_unused() {
    let times: Vec<_> = SyntheticCapacity::Cellular.generate(1).times_ms().to_vec();
    let mut link = recorded(&times, u64::MAX);
    for time in &times {
        assert_eq!(link.fate(0, 1500), at((time + 2) * 1_000_000));
    }
}

#[test]
fn generated_recordings_differ_by_kind_and_seed() {
    let mut seen = Vec::new();
    for kind in SyntheticCapacity::ALL {
        assert_eq!(kind.generate(1), kind.generate(1));
        assert_eq!(kind.word().parse(), Ok(kind));
        for seed in [1, 2] {
            let recording = kind.generate(seed);
            assert_eq!(recording.length_ms(), 60_000);
            assert!(!seen.contains(&recording));
            seen.push(recording);
        }
    }
    let mean = |kind: SyntheticCapacity| kind.generate(1).mean_rate().bits_per_second() / 1_000_000;
    let means = SyntheticCapacity::ALL.map(mean);
    assert!((1..=40).contains(&means[0]), "{means:?}");
    assert!((40..=160).contains(&means[1]), "{means:?}");
    assert!((600..=1000).contains(&means[2]), "{means:?}");
}
