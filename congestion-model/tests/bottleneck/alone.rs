//! A lane alone on a link whose rate it does not know.

use crate::network::Scene;
use congestion_model::{LaneModel, LaneTerms, LossKind, Phase};
use units::{BitRate, Fraction, Span, TimeNs};

fn ppm(parts: u32) -> Fraction {
    Fraction::from_ppb(parts * 1000).expect("below one")
}

/// All cells of rate, RTT, loss and queue.
fn cells() -> impl Iterator<Item = Scene> {
    let rates = [50, 1000, 10_000];
    let rtts = [2, 20, 200];
    rates.into_iter().flat_map(move |rate| rtts.map(|rtt| (rate, rtt))).flat_map(|(rate, rtt)| {
        let losses = [0, 1000, 10_000];
        losses.into_iter().flat_map(move |loss| {
            [250, 1000, 4000].map(|queue_thousandths| Scene {
                loss: ppm(loss),
                queue_thousandths,
                ..Scene::new(rate, rtt)
            })
        })
    })
}

fn named(scene: &Scene) -> String {
    let queue = f64::from(scene.queue_thousandths) / 1000.0;
    format!("{} {} loss {} queue {queue} seed {}", scene.rate, scene.rtt, scene.loss, scene.seed)
}

#[test]
fn nine_tenths_pass_from_the_fifteenth_round_trip_on() {
    let mut bad = Vec::new();
    for mut scene in cells() {
        for seed in [1, 2] {
            scene.seed = seed;
            let run = scene.run_rounds(75);
            let share = run.share_of_rounds(0, 15, 75);
            let delay = run.median_delay(Span::from_ns(15 * scene.rtt.ns()));
            let text = format!("{}: {share:.3}, delay {delay:.3} RTT", named(&scene));
            println!("{text}, peak {:.2} BDP", run.queue_peak());
            if share < 0.9 || delay > 0.25 {
                bad.push(text);
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn the_start_fills_a_queue_of_a_bdp() {
    for (rate, rtt) in [(50, 20), (200, 80), (1000, 80), (10_000, 200)] {
        let scene = Scene { queue_thousandths: 8000, ..Scene::new(rate, rtt) };
        let run = scene.run_rounds(30);
        println!("{}: peak {:.2} BDP", named(&scene), run.queue_peak());
        assert!(run.queue_peak() <= 1.0, "{}: {:.2} BDP", named(&scene), run.queue_peak());
    }
}

/// Timers of 1 ms bring packets and acknowledgements in bursts.
#[test]
fn coarse_timers_cost_little() {
    for (rate, rtt) in [(50, 20), (1000, 20), (1000, 80), (10_000, 80)] {
        let scene = Scene { timer_step: Span::from_ms(1), ..Scene::new(rate, rtt) };
        let run = scene.run_rounds(75);
        let share = run.share_of_rounds(0, 15, 75);
        let delay = run.median_delay(Span::from_ns(15 * scene.rtt.ns()));
        println!("{}: {share:.3}, delay {delay:.3} RTT", named(&scene));
        assert!(share >= 0.9 && delay <= 0.25, "{}: {share:.3}, {delay:.3}", named(&scene));
    }
}

/// Each side's acknowledgements wait in the queue that the other's probes leave.
#[test]
fn data_both_ways_costs_little() {
    let mut all = Vec::new();
    for (rate, rtt, loss) in [
        (50, 80, 0),
        (200, 20, 0),
        (200, 80, 10_000),
        (100, 40, 0),
        (300, 50, 1000),
        (150, 100, 0),
        (500, 30, 0),
        (60, 200, 1000),
    ] {
        let lanes = vec![(Span::ZERO, Span::ZERO), (Span::from_ms(3), Span::ZERO)];
        let (timer_step, loss) = (Span::from_ms(1), ppm(loss));
        let scene = Scene { lanes, two_way: true, timer_step, loss, ..Scene::new(rate, rtt) };
        let run = scene.run_rounds(135);
        let shares = [0, 1].map(|lane| run.share_of_rounds(lane, 15, 135));
        let delay = run.median_delay(Span::from_ns(15 * scene.rtt.ns()));
        let text = format!("{}: {shares:.3?}, delay {delay:.3} RTT", named(&scene));
        println!("{text}");
        assert!(shares.iter().all(|share| *share >= 0.75) && delay <= 0.25, "{text}");
        all.extend(shares);
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    assert!(mean >= 0.9, "{mean:.3} in the mean");
}

#[test]
fn a_lane_never_sends_more_than_the_fabric_says() {
    for said in [25, 50, 80] {
        let rate_max = Some(BitRate::from_bits_per_second(said * 1_000_000));
        let run = Scene { rate_max, ..Scene::new(100, 40) }.run_rounds(75);
        let share = run.share_of_rounds(0, 15, 75) / (said as f64 / 100.0);
        assert!((0.93..=1.001).contains(&share), "{said}: {share}");
    }
}

#[test]
fn losses_are_judged_by_their_cause() {
    let (mut right, mut judged) = (0, 0);
    for mut scene in cells().filter(|scene| scene.rtt >= Span::from_ms(20)) {
        scene.seed = 3;
        let run = scene.run_rounds(75);
        let lane = run.lane(0);
        judged += lane.judged.len();
        let agrees = |(kind, queue): &&(LossKind, bool)| match kind {
            LossKind::Random => !queue,
            LossKind::Queue | LossKind::Outage => *queue,
        };
        right += lane.judged.iter().filter(agrees).count();
        let counts = lane.losses();
        let bytes = counts.random_bytes + counts.queue_bytes + counts.outage_bytes;
        assert_eq!(bytes > 0, !lane.judged.is_empty());
    }
    println!("{right} of {judged}");
    // Random loss while a probe leaves a queue looks like the queue's.
    assert!(right as f64 >= 0.9 * judged as f64, "{right} of {judged}");
}

#[test]
fn a_path_that_is_known_is_full_at_once() {
    let scene = Scene::new(1000, 80);
    let found = scene.run_rounds(40).lane(0).model.found();
    assert!(found.is_some());
    let run = Scene { found, ..scene }.run_rounds(50);
    let share = run.share_of_rounds(0, 1, 50);
    assert!(share >= 0.93, "{share}");
}

#[test]
fn ten_idle_minutes_forget_nothing() {
    let idle = Some((Span::from_secs(4), Span::from_secs(604)));
    let run = Scene { idle, ..Scene::new(200, 80) }.run(Span::from_secs(608));
    let share = run.share(0, Span::from_ms(604_100), Span::from_ms(608_000));
    assert!(share >= 0.93, "{share}");
}

/// A lane whose trains are under way: ten packets came back within a millisecond.
fn lane_in_trains() -> LaneModel {
    let terms = LaneTerms { rtt: Span::from_ms(40), rate_max: 125e6, packet_bytes: 1472, seed: 1 };
    let begin = TimeNs::from_ns(1_000_000_000);
    let mut model = LaneModel::new(terms, None, begin);
    model.begin_packet_trains();
    for round in 0..3_u64 {
        let sent = begin + Span::from_ms(50 * round);
        model.note_sent(sent, 14_720);
        for packet in 1..=10 {
            let now = sent + Span::from_ms(40) + Span::from_ns(100_000 * packet);
            model.note_acked(now, sent, 1472);
            model.end_acks(now, 14_720 - 1472 * packet, false);
        }
    }
    model
}

#[test]
fn acknowledged_trains_measure_no_rate() {
    let mut model = lane_in_trains();
    assert_eq!((model.phase(), model.found()), (Phase::PacketTrains, None));
    let window = model.window();
    model.end_packet_trains(None);
    assert_eq!((model.phase(), model.window()), (Phase::Startup, window));
}

#[test]
fn a_lane_cruises_at_the_capacity_of_its_trains() {
    for (capacity, rate) in [(10e6, 10e6), (500e6, 125e6)] {
        let mut model = lane_in_trains();
        model.end_packet_trains(Some(capacity));
        assert_eq!((model.phase(), model.rate()), (Phase::Cruise, rate));
        assert_eq!(model.min_rtt(), Span::from_ns(40_100_000));
        model.end_packet_trains(Some(1e6));
        assert_eq!(model.rate(), rate, "the trains have ended");
    }
}
