//! Links whose rate gateways do not know: the model of `congestion-model` in whole gateways.

use gateway::client::Client;
use gateway::simulate::simulated_address;
use gateway::wan::link::controller_policy::{ControllerPolicy, LinkPolicy};
use gateway::wan::link_trace::{LinkTrace, TraceRecord};
use hier_collectives::bound;
use hier_collectives::ids::GatewayId;
use scenarios::collectives::series::{post, ready, seconds};
use scenarios::lab::shape::LONG_MTU;
use scenarios::observe::flow::Flow;
use scenarios::{EAST, JOB, Lab, Shape, WEST, mbit, ppm, simulate};
use std::collections::VecDeque;
use units::{BitRate, ByteCount, Span};
use wan_sim::{
    Conditions, CrossKind, CrossTraffic, EmulatedLink, LinkSpec, QueueSize, Script,
    jain_fairness_of_cross_reports,
};

/// A link whose gateways know only that their ports are ten times as fast.
fn shape(rate: u64, rtt_ms: u64) -> Shape {
    let policy = LinkPolicy { controller: ControllerPolicy::Shared, ..LinkPolicy::default() };
    let (rtt, said_rate) = (Span::from_ms(rtt_ms), Some(mbit(10 * rate)));
    // Windows are those of the ports.
    let memory = ByteCount::new(1 << 30);
    Shape { rate: mbit(rate), said_rate, rtt, policy, memory, ..Shape::new(1, 1) }
}

/// Bytes of so many BDP of the link, whole floats.
fn bdps(shape: &Shape, count: u64) -> u64 {
    let bytes = shape.rate.bytes_per_second() * shape.rtt.as_secs_f64();
    (bytes as u64 * count).next_multiple_of(4)
}

/// The part of the lower bound of the true link that an all-reduce takes.
fn efficiency(shape: &Shape, bytes: u64, seconds: f64) -> f64 {
    let fabric = Shape { said_rate: None, ..shape.clone() }.fabric();
    bound::all_reduce_lower_bound(&fabric, ByteCount::new(bytes)).as_secs_f64() / seconds
}

async fn ranks(lab: &Lab, arena: u64) -> Vec<Client> {
    let mut clients = Vec::new();
    for rank in 0..lab.fabric.world_size() {
        let patience = Span::from_secs(60);
        clients.push(lab.attach_folded(JOB, rank, arena, patience).await.expect("attaches"));
    }
    lab.sleep(Span::from_secs(1)).await;
    clients
}

/// Efficiencies of all-reduces of 50 BDP: the first ones, with pauses of 1 s, and one after ten idle
/// minutes.
fn efficiencies(shape: &Shape, seed: u64) -> Vec<f64> {
    simulate(async {
        let lab = Lab::start(shape, seed).await;
        let bytes = bdps(shape, 50);
        let clients = ranks(&lab, 4 * bytes).await;
        let mut found = Vec::new();
        for pause in [1, 1, 1, 600] {
            found.push(efficiency(
                shape,
                bytes,
                seconds(&lab, &mut post(&clients, bytes).await).await,
            ));
            lab.sleep(Span::from_secs(pause)).await;
        }
        found.push(efficiency(shape, bytes, seconds(&lab, &mut post(&clients, bytes).await).await));
        found
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_link_of_unknown_rate_is_filled() {
    let mut bad = Vec::new();
    for (rate, rtt_ms, loss, queue, mtu) in [
        (50, 80, 0, 1000, 1500),
        (200, 20, 0, 1000, 1500),
        (200, 80, 10_000, 1000, 1500),
        (1000, 80, 0, 250, LONG_MTU),
        (1000, 20, 0, 4000, 1500),
        (500, 200, 10_000, 500, LONG_MTU),
    ] {
        let loss = ppm(loss);
        let shape = Shape { loss, mtu, queue_thousandths: queue, ..shape(rate, rtt_ms) };
        let etas = efficiencies(&shape, 1);
        let text = format!("{rate} Mbit/s, {rtt_ms} ms, loss {loss}, queue {queue}: {etas:.3?}");
        println!("{text}");
        if mean(&etas[1..]) < 0.9 || etas.iter().any(|eta| *eta < 0.8) {
            bad.push(text);
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_rate_said_too_high_costs_little() {
    for factor in [2, 10] {
        let shape = Shape { said_rate: Some(mbit(100 * factor)), ..shape(100, 40) };
        let etas = efficiencies(&shape, 2);
        println!("{factor} times: {etas:.3?}");
        assert!(mean(&etas) >= 0.9, "{factor} times: {etas:.3?}");
    }
}

/// Packet trains have measured the capacity before there is data.
#[test]
fn a_first_transfer_is_not_held_by_its_start() {
    let shape = shape(200, 20);
    let first = efficiencies(&shape, 1)[0];
    assert!(first >= 0.9, "{first:.3}");
}

#[test]
fn a_trace_tells_phases_and_rates_of_a_transfer() {
    let shape = shape(100, 40);
    let records: Vec<_> = simulate(async {
        let (trace, mut reader) = LinkTrace::with_reader();
        let lab = Lab::start_traced(&shape, 6, trace).await;
        let bytes = bdps(&shape, 20);
        let clients = ranks(&lab, 4 * bytes).await;
        ready(&mut post(&clients, bytes).await).await;
        std::iter::from_fn(|| reader.waiting_record()).collect()
    });
    assert!(matches!(&records[0], TraceRecord::Begin(begin) if begin.gateway == "east-0"));
    let mut rounds = Vec::new();
    let mut changes = Vec::new();
    for record in &records {
        match record {
            TraceRecord::Lane(round) => rounds.push(round),
            TraceRecord::Transition(change) => changes.push(change),
            _ => {}
        }
    }
    assert!(rounds.len() >= 15, "{}", rounds.len());
    assert!(rounds.iter().all(|round| round.peer == "west-0" && round.lane == 0));
    assert!(rounds.is_sorted_by_key(|round| round.at_seconds));
    let best = rounds.iter().map(|round| round.round_bits_per_second).max();
    assert!(best.is_some_and(|best| best > 80_000_000), "{best:?}");
    let path: Vec<_> = changes[..2].iter().map(|change| (&*change.from, &*change.to)).collect();
    assert_eq!(path, [("startup", "packet-trains"), ("packet-trains", "cruise")]);
    assert!(records.iter().any(|record| matches!(record, TraceRecord::Link(_))));
}

/// Changes the rate of both directions of the link.
fn respec(lab: &Lab, rate: BitRate, shape: &Shape) {
    let (east, west) = (simulated_address(EAST).ip(), simulated_address(WEST).ip());
    let bdp = ByteCount::new(bdps(shape, 1));
    let spec = LinkSpec::new(rate, Span::from_ns(shape.rtt.ns() / 2)).expect("a link");
    for (from, to) in [(east, west), (west, east)] {
        lab.net.set_spec(from, to, spec.with_queue(bdp)).expect("a link");
    }
}

#[test]
fn a_halved_shared_capacity_is_answered_soon() {
    const ROUNDS: u64 = 10;
    let shape = shape(100, 80);
    simulate(async {
        let lab = Lab::start(&shape, 3).await;
        let flow = Flow::of(&lab.net);
        let bytes = bdps(&shape, 30);
        let clients = ranks(&lab, 16 * bytes).await;
        let mut operations = Vec::new();
        for _ in 0..6 {
            operations.extend(post(&clients, bytes).await);
        }
        lab.sleep(Span::from_secs(4)).await;
        respec(&lab, mbit(50), &shape);
        let met = lab.net.now() + Span::from_ns(6 * shape.rtt.ns());
        ready(&mut operations).await;
        for way in [(EAST, WEST), (WEST, EAST)] {
            let delivered = flow.delivered(way, met, shape.rtt, ROUNDS);
            let offered = flow.offered(way, met, shape.rtt, ROUNDS);
            println!("{way:?}: offered {offered:.0?}, delivered {delivered:.0?} Mbit/s");
            assert!(mean(&delivered) >= 40.0, "{way:?}: delivered {delivered:.0?}");
            assert!(mean(&offered) <= 55.0, "{way:?}: offered {offered:.0?}");
        }
    });
}

/// The found rate replaces that of the ports in the status.
#[test]
fn the_status_shows_the_rate_that_was_found() {
    let shape = shape(100, 40);
    let mut found: Vec<f64> = (1..=5).map(|seed| found_rate(&shape, seed)).collect();
    found.sort_by(f64::total_cmp);
    println!("{found:.3?}");
    // A burst of acknowledgements adds to the greatest rate of a round: four of five seeds are at 1.052.
    // With a few bytes less in the first messages it was one of ten, and the median below 1.02.
    assert!(found[0] >= 0.9 && found[2] <= 1.06 && found[4] <= 1.08, "{found:.3?}");
}

/// The rate that the status shows after a transfer, as a part of the link's.
fn found_rate(shape: &Shape, seed: u64) -> f64 {
    simulate(async {
        let lab = Lab::start(shape, seed).await;
        let bytes = bdps(shape, 50);
        let clients = ranks(&lab, 4 * bytes).await;
        ready(&mut post(&clients, bytes).await).await;
        lab.sleep(Span::from_secs(1)).await;
        let link = lab.status(GatewayId(0)).await.links[0].clone();
        assert_eq!(link.rate_bits_per_second, 1_000_000_000);
        let found = link.measured_bits_per_second.expect("found") as f64;
        found / shape.rate.bits_per_second() as f64
    })
}

/// Parts of the link from east to west that gateways and a rival get over a minute.
fn beside(kind: CrossKind, rtt_ms: u64, queue_thousandths: u32) -> [f64; 2] {
    let shape = shape(50, rtt_ms);
    simulate(async {
        let lab = Lab::start(&shape, 5).await;
        let (east, west) = (simulated_address(EAST).ip(), simulated_address(WEST).ip());
        let queue = QueueSize::ThousandthsOfBdp(queue_thousandths);
        let spec = LinkSpec::new(shape.rate, Span::from_ns(shape.rtt.ns() / 2)).expect("a link");
        let start = Span::from_ns(lab.net.now().ns()) + Span::from_secs(2);
        let cross = vec![CrossTraffic::new(kind).starting_at(start)];
        let conditions = Conditions { cross, ..Conditions::default() };
        let link = EmulatedLink::under(spec.with_queue(queue), Script::default(), &conditions, 1);
        lab.net.set_link(east, west, link);
        let bytes = 8 << 20;
        let clients = ranks(&lab, 64 << 20).await;
        let until = lab.net.now() + Span::from_secs(70);
        let mut under_way = VecDeque::new();
        let mut measured = None;
        while lab.net.now() < until {
            while under_way.len() < 3 {
                under_way.push_back(post(&clients, bytes).await);
            }
            ready(&mut under_way.pop_front().expect("posted")).await;
            if measured.is_none() && lab.net.now() > until - Span::from_secs(60) {
                let ours = lab.net.counters(east, west).expect("a link").ip_bytes;
                measured = Some((lab.net.now(), ours));
            }
        }
        let (from, before) = measured.expect("a minute");
        let now = lab.net.now();
        let seconds = now.since(from).as_secs_f64();
        let ours = lab.net.counters(east, west).expect("a link");
        let ours = (ours.ip_bytes - before) as f64 / seconds;
        let theirs = lab.net.cross_reports(east, west).expect("a link");
        let theirs = theirs[0].delivered_between(from, now) as f64 / seconds;
        let whole = shape.rate.bytes_per_second();
        [ours / whole, theirs / whole]
    })
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_link_is_shared_with_cubic_and_bbr() {
    for (kind, least) in [(CrossKind::Cubic, 0.75), (CrossKind::Bbr, 0.55)] {
        for queue in [1000, 4000] {
            let shares = beside(kind, 40, queue);
            let jain = jain_fairness_of_cross_reports(&shares);
            println!("{kind:?} queue {queue}: {shares:.2?} Jain {jain:.2}");
            assert!(jain >= least, "{kind:?} queue {queue}: {shares:.2?}");
        }
    }
}
