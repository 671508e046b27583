//! Lanes beside others: of their own kind, CUBIC and BBR.

use crate::network::Scene;
use units::{Span, TimeNs};
use wan_sim::{CrossKind, CrossTraffic, jain_fairness_of_cross_reports};

/// Parts of the link that a lane and a rival get over a minute.
fn beside(kind: CrossKind, rtt_ms: u64, queue_thousandths: u32) -> [f64; 2] {
    let cross = vec![CrossTraffic::new(kind)];
    let scene = Scene { cross, queue_thousandths, ..Scene::new(50, rtt_ms) };
    let [from, until] = [5, 65].map(Span::from_secs);
    let run = scene.run(until);
    let [begin, end] = [from, until].map(|at| TimeNs::from_ns(at.ns()));
    let theirs = run.cross[0].delivered_between(begin, end) as f64;
    let theirs = theirs / 60.0 / scene.rate.bytes_per_second();
    println!("rivals seen at the end: {}", run.lane(0).has_rivals());
    [run.share(0, from, until), theirs]
}

#[test]
fn a_lane_holds_its_own_beside_cubic_and_bbr() {
    let mut jains = Vec::new();
    for kind in [CrossKind::Cubic, CrossKind::Bbr] {
        for rtt_ms in [20, 80] {
            for queue in [500, 1000, 4000] {
                let shares = beside(kind, rtt_ms, queue);
                let jain = jain_fairness_of_cross_reports(&shares);
                println!("{kind:?} {rtt_ms} ms queue {queue}: {shares:.2?} Jain {jain:.2}");
                jains.push(jain);
            }
        }
    }
    jains.sort_by(f64::total_cmp);
    println!("{jains:.2?}");
    assert!(jains[0] >= 0.75 && jains[jains.len() / 2] >= 0.9, "{jains:.2?}");
}

#[test]
fn two_lanes_share_a_link() {
    for (extra_ms, start) in [(0, 0), (0, 5), (80, 0)] {
        let lanes =
            vec![(Span::ZERO, Span::ZERO), (Span::from_secs(start), Span::from_ms(extra_ms))];
        let scene = Scene { lanes, ..Scene::new(100, 40) };
        let [from, until] = [10, 70].map(Span::from_secs);
        let run = scene.run(until);
        let shares = [0, 1].map(|lane| run.share(lane, from, until));
        let jain = jain_fairness_of_cross_reports(&shares);
        println!("extra {extra_ms} ms, start {start} s: {shares:.2?} Jain {jain:.2}");
        assert!(jain >= 0.95, "extra {extra_ms} ms, start {start} s: {shares:.2?}");
    }
}
