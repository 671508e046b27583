//! Link outages in the middle of an exchange: collectives continue soon, with correct results.

use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, Values, outcomes, post_all};
use scenarios::observe::flow::Flow;
use scenarios::{EAST, Lab, Shape, WEST, simulate};
use units::{BitRate, Span};

const CASE: Case =
    Case { op: ReduceOp::Sum, dtype: Dtype::F32, elements: 4 << 20, seed: 5, values: Values::Any };

const RATE: BitRate = BitRate::from_bits_per_second(200_000_000);

/// The directions that are cut.
const CUTS: [&[GatewayId]; 3] = [&[EAST], &[WEST], &[EAST, WEST]];

/// Bytes that have arrived at east, and at west.
fn arrived(lab: &Lab) -> [u64; 2] {
    let at = |me: GatewayId, from| {
        lab.gateways[usize::from(me.0)].peers[&from].metrics.received_bytes.get()
    };
    [at(EAST, WEST), at(WEST, EAST)]
}

/// Cuts an exchange of 16 MiB over 80 ms, `after` its posts, for `cut`.
fn cut_and_heal(ways: &[GatewayId], after: Span, cut: Span, seed: u64) {
    simulate(async {
        let shape = Shape { rate: RATE, ..Shape::new(2, 1) };
        let lab = Lab::start(&shape, seed).await;
        let clients = lab.clients(40 << 20).await;
        let mut operations = post_all(&clients, &CASE).await;
        lab.sleep(after).await;
        ways.iter().for_each(|from| lab.set_outage_from(*from, true));
        lab.sleep(cut).await;
        let before = arrived(&lab);
        ways.iter().for_each(|from| lab.set_outage_from(*from, false));
        // One probe, which comes within a round trip and QUIC's patience with
        // acknowledgements, and three round trips.
        let probe = shape.rtt + Span::from_ms(25);
        let three = Span::from_ns(3 * shape.rtt.ns());
        lab.sleep(probe + three).await;
        let when = format!("{ways:?} cut {after} after the posts for {cut}, seed {seed}");
        for (before, now) in before.into_iter().zip(arrived(&lab)) {
            let whole = now == CASE.elements * 4;
            assert!(now > before || whole, "{when}: nothing came since, {now} bytes in all");
        }
        let expected = CASE.expected(3, 2);
        for outcome in outcomes(&mut operations).await {
            let result = outcome.unwrap_or_else(|failure| panic!("{when}: {failure}"));
            assert!(result == expected, "{when}: other bits");
        }
    });
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn collectives_continue_three_round_trips_after_an_outage() {
    for ways in CUTS {
        for tenth in [1, 4, 6] {
            cut_and_heal(ways, Span::from_ms(100 * tenth), Span::from_secs(2), tenth);
        }
    }
}

/// The limit allows for one liveness probe, which takes a round trip and QUIC's acknowledgement
/// delay.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn an_idle_link_is_full_soon_after_an_outage() {
    for ways in CUTS {
        for after in [100, 700] {
            let shape = Shape { rate: RATE, ..Shape::new(1, 1) };
            let (at, cut) = (Span::from_ms(after), Span::from_secs(2));
            for rates in out_and_back(&shape, ways, at, cut, shape.rtt) {
                assert!(
                    rates.iter().all(|rate| (180.0..=206.0).contains(rate)),
                    "{ways:?} cut after {after} ms: {rates:.0?} Mbit/s"
                );
            }
        }
    }
}

/// The bytes in flight far exceed a short link's queue. Retransmitted at once they would be lost
/// again and charged to the pacer, which would then send nothing new for 100 ms.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_short_link_is_nearly_full_right_after_an_outage() {
    // The queue holds 33 packets, or 5.
    let packets = [(1500, 140.0), (9000, 60.0)];
    for (ways, (mtu, least)) in CUTS.into_iter().flat_map(|ways| packets.map(|of| (ways, of))) {
        for after in [100, 700] {
            let shape = Shape { rate: RATE, rtt: Span::from_ms(2), mtu, ..Shape::new(1, 1) };
            let (at, cut) = (Span::from_ms(after), Span::from_secs(2));
            for rates in out_and_back(&shape, ways, at, cut, Span::from_ms(20)) {
                let mean = rates.iter().sum::<f64>() / rates.len() as f64;
                let when = format!("{ways:?} cut after {after} ms, MTU {mtu}");
                assert!(mean > least, "{when}: {rates:.0?} Mbit/s");
            }
        }
    }
}

/// A short outage hits only part of a window; the loss of one quarter in six is detected at once.
#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_link_is_full_soon_after_a_round_trips_outage() {
    for (ways, quarters) in CUTS.into_iter().flat_map(|ways| [1, 2, 4, 6].map(|of| (ways, of))) {
        let shape = Shape { rate: RATE, ..Shape::new(1, 1) };
        let cut = Span::from_ns(quarters * shape.rtt.ns() / 4);
        for rates in out_and_back(&shape, ways, Span::from_ms(700), cut, shape.rtt) {
            assert!(
                rates.iter().all(|rate| (180.0..=206.0).contains(rate)),
                "{ways:?} cut for {cut}: {rates:.0?} Mbit/s"
            );
        }
    }
}

/// Cuts the link of an exchange of 64 MiB, some time after its posts. Returns the rates of each
/// direction in six steps, in Mbit/s, from the time when it must be full again.
fn out_and_back(
    shape: &Shape,
    ways: &[GatewayId],
    after: Span,
    cut: Span,
    step: Span,
) -> [Vec<f64>; 2] {
    let case = Case { elements: 16 << 20, values: Values::Ordinary, ..CASE };
    let expected = case.expected(2, 1);
    simulate(async {
        let lab = Lab::start(shape, 3).await;
        let flow = Flow::of(&lab.net);
        let clients = lab.clients(140 << 20).await;
        let mut operations = post_all(&clients, &case).await;
        lab.sleep(after).await;
        ways.iter().for_each(|from| lab.set_outage_from(*from, true));
        lab.sleep(cut).await;
        ways.iter().for_each(|from| lab.set_outage_from(*from, false));
        let begin = lab.net.now() + Span::from_ns(4 * shape.rtt.ns()) + Span::from_ms(25);
        for outcome in outcomes(&mut operations).await {
            assert!(outcome.expect("completes") == expected, "other bits");
        }
        [(EAST, WEST), (WEST, EAST)].map(|way| {
            let rates = flow.delivered(way, begin, step, 6);
            println!("{ways:?} cut after {after} for {cut}: {way:?}: {rates:.0?} Mbit/s");
            rates
        })
    })
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_cut_of_five_seconds_is_survived() {
    for ways in CUTS {
        for (seed, after) in [10, 150, 300, 450, 600].into_iter().enumerate() {
            cut_and_heal(ways, Span::from_ms(after), Span::from_secs(5), seed as u64);
        }
    }
}
