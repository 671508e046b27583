//! The capacity falls, is corrected, and recovers.

use super::{CONFIGURED, PACKET, Pair};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{PairShare, PayloadFlows, pair_shares};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use units::{BitRate, Fraction, Span};

#[test]
fn a_halved_rate_is_found_and_probed_in_vain() {
    let mut pair = Pair::new(0);
    pair.fill(20, 900.0);
    assert_eq!(pair.reduced(), None);
    pair.fill(14, 400.0);
    let near = |pair: &Pair| pair.reduced().is_some_and(|c| (390.0..=401.0).contains(&c));
    assert!(near(&pair), "{:?}", pair.reduced());
    let mut probes = 0;
    for _ in 0..1000 {
        let before = pair.capacity.probed.is_some();
        pair.fill(1, 400.0);
        probes += u32::from(!before && pair.capacity.probed.is_some());
        assert!(near(&pair), "{:?}", pair.reduced());
    }
    assert!((5..=8).contains(&probes), "each later than the one before: {probes}");
}

/// Operations that follow each other give a pair half of the link and then all of it.
#[test]
fn a_span_in_which_the_share_changes_shows_nothing() {
    let mut pair = Pair::new(0);
    pair.fill(20, 900.0);
    let whole = pair.share;
    for _ in 0..40 {
        for share in [half_of_a_link(), whole] {
            pair.share = share;
            pair.fill(1, 400.0);
        }
    }
    assert_eq!(pair.reduced(), None);
    // Two spans in a row under one share show it.
    pair.fill(20, 400.0);
    assert!(pair.reduced().is_some(), "{:?}", pair.reduced());
}

/// Returns the share of one of two pairs of gateways that send alike over a link.
fn half_of_a_link() -> PairShare {
    let wan = Some(WanPort { egress: CONFIGURED, ingress: CONFIGURED });
    let region = |name: &str| FabricRegionSpec {
        name: name.to_owned(),
        speeds: vec![1.0; 2],
        gateways: [0, 1].map(|at| FabricGatewaySpec::new(format!("{name}-{at}"), 1, wan)).into(),
    };
    let link = FabricLinkSpec {
        between: ("east".to_owned(), "west".to_owned()),
        rate: CONFIGURED,
        rtt: Span::from_ms(50),
        loss: Fraction::default(),
    };
    let fabric = Fabric::new("two", 1500, vec![region("east"), region("west")], vec![link]);
    let pairs = [(0, 2), (1, 3)].map(|(from, to)| (GatewayId(from), GatewayId(to)));
    let flows: PayloadFlows = pairs.into_iter().map(|pair| (pair, 1)).collect();
    pair_shares(std::iter::once(&flows), &fabric.expect("valid"))[&pairs[0]]
}

/// Heavy loss made the link seem to have a tenth of its rate.
#[test]
fn a_link_that_seemed_slow_recovers_within_half_a_minute() {
    let mut pair = Pair::new(0);
    pair.fill(10, 900.0);
    pair.fill(14, 80.0);
    assert!(pair.reduced().is_some_and(|capacity| capacity < 81.0));
    pair.fill(300, 900.0);
    assert_eq!(pair.reduced(), None);
}

/// A link that delivers in bursts delivers, span by span, a little more or less.
#[test]
fn a_capacity_that_is_a_little_too_high_is_corrected() {
    let mut pair = Pair::new(0);
    pair.fill(10, 900.0);
    for round in 0..20 {
        pair.fill(1, if round % 2 == 0 { 400.0 } else { 420.0 });
    }
    assert!(pair.reduced().is_some_and(|capacity| capacity > 409.0), "{:?}", pair.reduced());
    pair.fill(12, 395.0);
    let capacity = pair.reduced().expect("found");
    assert!((394.0..396.0).contains(&capacity), "{capacity}");
}

/// Other traffic fills the queue from time to time.
#[test]
fn a_capacity_is_not_corrected_again_and_again() {
    let mut pair = Pair::new(0);
    pair.fill(10, 900.0);
    pair.fill(14, 400.0);
    for _ in 0..200 {
        pair.fill(4, 0.98 * 0.98 * pair.reduced().expect("found"));
        pair.pass(2, 1.0, 400.0, 0.0);
    }
    let capacity = pair.reduced().expect("found");
    assert!((355.0..405.0).contains(&capacity), "{capacity}");
}

/// The path becomes longer, and random loss is as configured: neither shows a queue.
#[test]
fn a_capacity_stays_while_loss_is_as_configured() {
    let mut pair = Pair::new(10_000_000);
    pair.fill(10, 900.0);
    pair.fill(14, 400.0);
    let found = pair.reduced().expect("found");
    for _ in 0..20 {
        pair.pass_rtts(4000, &[90; 5]);
        pair.pass(5, 0.97 * found, found, 0.01);
    }
    assert_eq!(pair.reduced(), Some(found));
}

#[test]
fn the_configured_rate_is_reached_again() {
    let mut pair = Pair::new(0);
    pair.fill(10, 900.0);
    pair.fill(14, 200.0);
    assert!(pair.reduced().is_some_and(|capacity| capacity < 201.0));
    pair.fill(1000, 900.0);
    assert_eq!(pair.reduced(), None);
}

/// A second path carries as much as the first, whose capacity was found.
#[test]
fn a_probe_that_is_made_due_finds_another_path() {
    let mut pair = Pair::new(0);
    pair.fill(10, 900.0);
    pair.fill(24, 300.0);
    pair.capacity.probe_soon();
    pair.fill(7, 600.0);
    let limit = pair.capacity.rate_limit().expect("found").bits_per_second() as f64 * 1e-6;
    assert!((380.0..400.0).contains(&limit), "{limit}");
}

#[test]
fn a_capacity_that_is_not_used_is_forgotten() {
    let mut pair = Pair::new(0);
    pair.fill(10, 900.0);
    pair.fill(14, 200.0);
    pair.pass(5_000, 1.0, 200.0, 0.0);
    assert!(pair.reduced().is_some());
    pair.pass(1_100, 1.0, 200.0, 0.0);
    assert_eq!(pair.reduced(), None);
}

#[test]
fn random_loss_idleness_and_a_longer_path_show_nothing() {
    let mut pair = Pair::new(10_000_000);
    for _ in 0..20 {
        pair.pass(5, 780.0, 900.0, 0.01);
        pair.pass(5, 100.0, 900.0, 0.2);
        pair.pass(5, 0.1, 0.05, 0.0);
        pair.pass(5, 780.0, 770.0, 0.0);
    }
    assert_eq!(pair.reduced(), None);
}

/// A route that changes loses some packets once, and stays longer.
#[test]
fn a_longer_path_with_a_burst_of_loss_shows_nothing() {
    for sent in [160.0, 780.0] {
        let mut pair = Pair::new(0);
        pair.pass(60, sent, 900.0, 0.0);
        pair.pass(1, sent, 0.9 * sent, 0.0);
        for _ in 0..60 {
            pair.pass_rtts((sent * 1e5 / (8.0 * PACKET as f64)) as u64, &[90]);
        }
        assert_eq!(pair.reduced(), None, "{sent} Mbit/s");
    }
}

/// The retransmissions after an outage leave at once, and so do their acknowledgements.
#[test]
fn bursts_among_little_traffic_show_nothing() {
    let mut pair = Pair::new(0);
    pair.fill(5, 900.0);
    for _ in 0..20 {
        pair.pass(9, 1.9, 2.0, 0.0);
        pair.pass(1, 10.0, 2.0, 0.0);
    }
    assert_eq!(pair.reduced(), None);
}

#[test]
fn a_link_too_slow_to_measure_keeps_its_configured_rate() {
    for (mbits, measured) in [(2, false), (7, false), (8, true)] {
        let rate = BitRate::from_bits_per_second(mbits * 1_000_000);
        let mut pair = Pair::of(rate, 0);
        pair.pass(5, mbits as f64, mbits as f64 + 1.0, 0.0);
        pair.pass(20, mbits as f64, mbits as f64 / 2.0, 0.0);
        assert_eq!(pair.reduced().is_some(), measured, "{mbits} Mbit/s");
    }
}
