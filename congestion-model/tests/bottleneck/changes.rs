//! A link whose capacity changes.

use crate::network::Scene;
use units::{BitRate, Span};

/// The least part of the new rate that passes in each two round trips after `rounds` from the change,
/// and the median queueing delay then.
fn after_change(mbit: (u64, u64), rtt_ms: u64, rounds: u64) -> (f64, f64) {
    let (rtt, change) = (Span::from_ms(rtt_ms), 60);
    let rate = BitRate::from_bits_per_second(mbit.1 * 1_000_000);
    let rate_from = Some((Span::from_ns(change * rtt.ns()), rate));
    let scene = Scene { rate_from, queue_thousandths: 4000, ..Scene::new(mbit.0, rtt_ms) };
    let run = scene.run_rounds(change + rounds + 40);
    for (at, phase) in &run.lane(0).phases {
        println!("{:.1} {phase:?}", *at as f64 / rtt.ns() as f64);
    }
    let factor = mbit.0 as f64 / mbit.1 as f64;
    let begin = change + rounds;
    let shares = (begin..begin + 38).map(|at| run.share_of_rounds(0, at, at + 2) * factor);
    let least = shares.fold(f64::INFINITY, f64::min);
    (least, run.median_delay(Span::from_ns(begin * rtt.ns())))
}

#[test]
fn a_halved_capacity_is_answered_within_three_round_trips() {
    for (from, to, rtt_ms) in [(1000, 500, 80), (200, 100, 20), (250, 60, 200)] {
        let (least, delay) = after_change((from, to), rtt_ms, 3);
        println!("{from} to {to} Mbit/s, {rtt_ms} ms: least {least:.2}, delay {delay:.2} RTT");
        assert!(least >= 0.75 && delay <= 0.25, "{from} {to} {rtt_ms}: {least:.2}, {delay:.2}");
    }
}

#[test]
fn capacity_that_comes_is_found_within_thirty_round_trips() {
    for (from, to, rtt_ms) in [(100, 200, 80), (100, 1000, 20), (60, 250, 200)] {
        let (least, delay) = after_change((from, to), rtt_ms, 30);
        println!("{from} to {to} Mbit/s, {rtt_ms} ms: least {least:.2}, delay {delay:.2} RTT");
        assert!(least >= 0.75 && delay <= 0.25, "{from} {to} {rtt_ms}: {least:.2}, {delay:.2}");
    }
}
