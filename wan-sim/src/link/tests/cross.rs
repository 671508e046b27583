//! Cross traffic: each kind does with a queue what it is known for.

use super::*;

/// 20 Mbit/s with 40 ms of round trip: 100,000 bytes are one BDP.
const RATE: &str = "20 Mbit/s";
const BDP_BYTES: u64 = 100_000;
const SECOND: u64 = 1_000_000_000;

fn link_with(cross: &[CrossKind], queue: u64) -> EmulatedLink {
    seeded_link_with(cross, queue, 1)
}

fn seeded_link_with(cross: &[CrossKind], queue: u64, seed: u64) -> EmulatedLink {
    let starts = (0..).map(|index| Span::from_ms(700 * index));
    let cross = cross.iter().zip(starts);
    let cross = cross.map(|(kind, start)| CrossTraffic::new(*kind).starting_at(start)).collect();
    let conditions = Conditions { cross, ..Conditions::default() };
    let link = spec(RATE, "20 ms").with_queue(ByteCount::new(queue));
    EmulatedLink::under(link, Script::default(), &conditions, seed)
}

/// Bytes that each flow delivered in these seconds.
fn delivered(link: &mut EmulatedLink, from_s: u64, until_s: u64) -> Vec<f64> {
    let reports = link.cross_reports(ns(until_s * SECOND));
    let between = |report: &CrossReport| {
        report.delivered_between(ns(from_s * SECOND), ns(until_s * SECOND)) as f64
    };
    reports.iter().map(between).collect()
}

/// Bytes that the link can deliver in so many seconds.
fn capacity(seconds: u64) -> f64 {
    2_500_000.0 * seconds as f64
}

#[test]
fn cubic_fills_a_drop_tail_queue() {
    let mut link = link_with(&[CrossKind::Cubic], BDP_BYTES);
    let share = delivered(&mut link, 5, 60)[0] / capacity(55);
    assert!((0.95..=1.0).contains(&share), "{share}");
    // It fills the queue to its end again and again.
    assert!(link.queue_bytes_peak().get() > BDP_BYTES - 1500);
}

#[test]
fn two_flows_of_a_kind_share_fairly() {
    let kinds = [CrossKind::Cubic, CrossKind::NewReno, CrossKind::Bbr];
    for (kind, seed) in kinds.into_iter().flat_map(|kind| (1..=3).map(move |seed| (kind, seed))) {
        let mut link = seeded_link_with(&[kind; 2], BDP_BYTES, seed);
        let shares = delivered(&mut link, 0, 60);
        let jain = jain_fairness_of_cross_reports(&shares);
        let total = shares.iter().sum::<f64>() / capacity(60);
        assert!(jain >= 0.9, "{kind:?}: {jain} {shares:?}");
        assert!(total >= 0.9, "{kind:?}: {total}");
    }
}

#[test]
fn bbr_holds_about_one_product_in_flight() {
    let mut link = link_with(&[CrossKind::Bbr], 4 * BDP_BYTES);
    let mut in_flight = Vec::new();
    for ms in (5_000..60_000).step_by(10) {
        in_flight.push(link.cross_reports(ns(ms * 1_000_000))[0].in_flight_packets);
    }
    let mean = in_flight.iter().sum::<u64>() as f64 / in_flight.len() as f64;
    let products = mean * 1500.0 / BDP_BYTES as f64;
    assert!((0.8..1.4).contains(&products), "{products}");
    // It lets the queue run empty to see the round trip, which needs at most four packets.
    assert!(in_flight.iter().any(|packets| *packets <= 4));
    let share = delivered(&mut link, 5, 60)[0] / capacity(55);
    assert!(share >= 0.9, "{share}");
}

#[test]
fn cubic_keeps_a_share_beside_bbr() {
    let mut link = link_with(&[CrossKind::Cubic, CrossKind::Bbr], BDP_BYTES);
    let shares = delivered(&mut link, 10, 60);
    let total: f64 = shares.iter().sum();
    assert!(shares.iter().all(|share| share / total > 0.05), "{shares:?}");
    assert!(total / capacity(50) > 0.9, "{shares:?}");
}

#[test]
fn codel_keeps_the_queue_of_cubic_short() {
    let mean_queue = |discipline| {
        let conditions = Conditions {
            cross: vec![CrossTraffic::new(CrossKind::Cubic)],
            ..Conditions::default()
        };
        let link = spec(RATE, "20 ms").with_queue(ByteCount::new(5 * BDP_BYTES));
        let link = link.with_discipline(discipline).unwrap();
        let mut link = EmulatedLink::under(link, Script::default(), &conditions, 1);
        let samples = (5_000..30_000).step_by(10);
        let queued = samples.map(|ms| link.queue_bytes(ns(ms * 1_000_000)).get());
        queued.sum::<u64>() / 2500
    };
    let drop_tail = mean_queue(Discipline::DropTail);
    let codel = mean_queue(Discipline::Codel(Codel::RECOMMENDED));
    assert!(codel < BDP_BYTES && codel * 4 < drop_tail, "{codel} {drop_tail}");
}

#[test]
fn on_off_traffic_has_its_mean_rate() {
    let kind: CrossTraffic = "onoff rate 10mbit on 100ms off 300ms".parse().unwrap();
    let mut link = link_with(&[kind.kind], BDP_BYTES);
    let rate = delivered(&mut link, 0, 600)[0] * 8.0 / 600.0;
    assert!((rate / 2.5e6 - 1.0).abs() < 0.15, "{rate}");
    // It pauses and bursts: nothing in some intervals, the whole rate in others.
    let report = link.cross_reports(ns(600 * SECOND)).remove(0);
    assert!(report.delivered_bytes.iter().filter(|bytes| **bytes == 0).count() > 1000);
    assert!(report.delivered_bytes.iter().max().unwrap().abs_diff(125_000) < 3000);
}

#[test]
fn a_flow_sends_only_from_its_start_to_its_stop() {
    for text in ["cubic start 2s stop 4s", "onoff rate 5mbit on 1s off 1ms start 2s stop 4s"] {
        let traffic: CrossTraffic = text.parse().unwrap();
        let conditions = Conditions { cross: vec![traffic], ..Conditions::default() };
        let link = spec(RATE, "20 ms");
        let mut link = EmulatedLink::under(link, Script::default(), &conditions, 1);
        let bytes = |link: &mut EmulatedLink, from, until| delivered(link, from, until)[0];
        assert_eq!(bytes(&mut link, 0, 2), 0.0, "{text}");
        assert!(bytes(&mut link, 2, 4) > 100_000.0, "{text}");
        assert_eq!(bytes(&mut link, 5, 100), 0.0, "{text}");
    }
}

#[test]
fn cross_traffic_takes_room_and_leaves_draws_alone() {
    let lossy = spec(RATE, "20 ms").with_loss(percent(10));
    let fates = |cross: Vec<CrossTraffic>| {
        let conditions = Conditions { cross, ..Conditions::default() };
        let mut link = EmulatedLink::under(lossy, Script::default(), &conditions, 5);
        (0..2000).map(|i| link.fate(i * 5_000_000, 1000)).collect::<Vec<_>>()
    };
    let alone = fates(Vec::new());
    let beside = fates(vec![CrossTraffic::new(CrossKind::Cubic)]);
    let again = fates(vec![CrossTraffic::new(CrossKind::Cubic)]);
    assert_eq!(beside, again);
    let lost = |fates: &[Fate]| {
        fates.iter().map(|fate| *fate == Fate::Drop(DropReason::Loss)).collect::<Vec<_>>()
    };
    assert_eq!(lost(&alone), lost(&beside));
    assert!(beside.iter().zip(&alone).any(|(one, other)| one != other));
}

#[test]
fn a_cut_stops_cross_traffic_until_it_is_joined() {
    let conditions =
        Conditions { cross: vec![CrossTraffic::new(CrossKind::Cubic)], ..Conditions::default() };
    let at = |seconds: u64| ns(seconds * SECOND);
    let script = Script::new([(at(10), Change::Cut), (at(15), Change::Join)], []);
    let mut link = EmulatedLink::under(spec(RATE, "20 ms"), script, &conditions, 1);
    assert!(delivered(&mut link, 5, 10)[0] > 0.9 * capacity(5));
    assert!(delivered(&mut link, 11, 15)[0] == 0.0);
    assert!(delivered(&mut link, 25, 30)[0] > 0.9 * capacity(5));
}

#[test]
fn a_change_of_the_rate_reaches_cross_traffic() {
    let mut link = link_with(&[CrossKind::Cubic], BDP_BYTES);
    assert!(delivered(&mut link, 5, 10)[0] > 0.9 * capacity(5));
    link.set_spec(ns(10 * SECOND), spec("5 Mbit/s", "20 ms"));
    let share = delivered(&mut link, 15, 25)[0] / (capacity(10) / 4.0);
    assert!((0.9..=1.0).contains(&share), "{share}");
}

#[test]
fn words_of_cross_traffic_parse_back_or_say_why() {
    for text in [
        "cubic",
        "newreno start 5s",
        "bbr stop 30s",
        "bbr start 1500ms stop 30s",
        "onoff rate 20mbit on 500ms off 2s start 1s",
    ] {
        let traffic: CrossTraffic = text.parse().unwrap();
        assert_eq!(traffic.to_string(), text);
    }
    for (text, part) in [
        ("", "cubic, newreno, bbr, onoff"),
        ("vegas", "`vegas`"),
        ("cubic rate 1mbit", "`rate`"),
        ("cubic start", "`start` wants a time"),
        ("cubic start 1s start 2s", "`start`"),
        ("cubic start 2s stop 1s", "not after"),
        ("onoff rate 1mbit on 1s", "`off`"),
        ("onoff rate 1mbit on 0s off 1s", "`on`"),
    ] {
        let error = text.parse::<CrossTraffic>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn conditions_that_cannot_be_are_refused() {
    let cross = vec![CrossTraffic::new(CrossKind::Cubic)];
    let unlimited = LinkSpec::unlimited(Span::from_ms(1)).unwrap();
    let conditions = Conditions { cross: cross.clone(), ..Conditions::default() };
    assert_eq!(conditions.check(&unlimited), Err(ConditionsError::CrossWithoutRate));
    assert_eq!(conditions.check(&spec(RATE, "1 ms")), Ok(()));
    let conditions = Conditions { cross, parallel: vec![unlimited], ..Conditions::default() };
    assert_eq!(conditions.check(&spec(RATE, "1 ms")), Err(ConditionsError::CrossWithoutRate));
}

#[test]
fn jains_index_is_one_for_equal_shares() {
    assert_eq!(jain_fairness_of_cross_reports(&[2.0, 2.0, 2.0]), 1.0);
    assert_eq!(jain_fairness_of_cross_reports(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    assert_eq!(jain_fairness_of_cross_reports(&[]), 1.0);
}
