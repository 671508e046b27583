//! Sends between ranks whose gateways have no connection: gateways on the way pass them on.

use super::sends::{ARENA_BYTES, OneSend, crossed, simulate_ranks};
use gateway::client::Client;
use hier_collectives::bound::{operation_lower_bound, payload_rate_fraction};
use hier_collectives::descriptor::Dtype;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::plan::Operation;
use hier_collectives::topology::GroupFabric;
use scenarios::collectives::data::SplitMix64;
use scenarios::lab::mesh::{Mesh, MeshGateway, MeshLink};
use scenarios::{Lab, mbit, ppm, simulate};
use units::{ByteCount, Span};

/// Returns a gateway with a port of 500 Mbit/s.
fn port(ranks: u32) -> MeshGateway {
    MeshGateway::with_port(ranks, mbit(500))
}

/// Returns regions with these gateways in a line, each linked with its neighbours.
pub fn line(regions: Vec<Vec<MeshGateway>>) -> Mesh {
    let mut mesh = Mesh::of_gateways(regions);
    mesh.links.retain(|link| link.regions.0 + 1 == link.regions.1);
    mesh
}

/// Returns the pairs of ranks, in both orders, whose gateways have no connection.
fn pairs_apart(lab: &Lab) -> Vec<(u32, u32)> {
    let gateway = |rank| lab.fabric.gateway_of(RankId(rank)).expect("served");
    let all = 0..lab.fabric.world_size();
    let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
    pairs.filter(|(from, to)| !lab.fabric.connects(gateway(*from), gateway(*to))).collect()
}

/// Carries out several sends at once: their receives are posted by tag, the highest first.
async fn run_at_once(clients: &[Client], sends: &[OneSend]) {
    let mut under_way = Vec::new();
    for one in sends {
        under_way.push((one, one.send(clients).await, None));
    }
    let mut order: Vec<usize> = (0..sends.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(sends[*at].tag));
    for at in order {
        under_way[at].2 = Some(sends[at].receive(clients).await);
    }
    for (one, sent, received) in under_way {
        one.check(sent, received.expect("posted")).await;
    }
}

#[test]
fn sends_pass_gateways_without_their_ranks() {
    let sidecar = MeshGateway::sidecar(1);
    let ring = Mesh::of_ranks(&[1, 1, 1, 2]).without(0, 2).without(1, 3);
    for mesh in [
        Mesh::of_ranks(&[2, 1, 1]).without(0, 2),
        line(vec![vec![port(1)], vec![port(2), port(1)], vec![port(1), port(1)]]),
        line(vec![vec![port(1)], vec![port(1)], vec![port(1), port(1)], vec![port(1)]]),
        line(vec![vec![port(1), sidecar], vec![port(1)], vec![sidecar, port(1)]]),
        Mesh::of_gateways(vec![vec![port(1), sidecar], vec![sidecar, port(1)]]),
        ring,
    ] {
        simulate_ranks(&mesh, |lab, clients| async move {
            let pairs = pairs_apart(&lab);
            assert!(pairs.len() >= 2, "{pairs:?}");
            for (number, (from, to)) in (0u64..).zip(&pairs) {
                let sizes = [0, 1, 1000, 70_000, 300_000, 1 << 20];
                let one = |at: usize| OneSend {
                    elements: sizes[(at + number as usize) % sizes.len()],
                    seed: at as u64,
                    ..OneSend::of_bytes(*from, *to, (at % 3) as u16, 0)
                };
                // The other way, too, at the same time, and of another dtype.
                let back = |at: usize| OneSend {
                    dtype: Dtype::F64,
                    elements: one(at).elements / 8,
                    ..OneSend { from: *to, to: *from, ..one(at) }
                };
                let sends: Vec<OneSend> = (0..6).flat_map(|at| [one(at), back(at)]).collect();
                run_at_once(&clients, &sends).await;
            }
            // The job's own collectives go on as before.
            super::members::Members(clients).sum(1000).await;
        });
    }
}

#[test]
fn a_relayed_send_crosses_each_link_once() {
    let many = vec![port(1), port(1)];
    let mesh = line(vec![vec![port(1)], many.clone(), many, vec![port(1)]]);
    simulate_ranks(&mesh, |lab, clients| async move {
        let part = GroupFabric::of_send(&lab.fabric, &[RankId(0), RankId(5)]).expect("a line");
        let way: Vec<u16> = part.gateways.iter().map(|id| id.0).collect();
        assert_eq!(way.len(), 4, "{way:?}");
        for (from, to) in [(0, 5), (5, 0)] {
            OneSend::of_bytes(from, to, 0, 1).run(&clients).await;
        }
        lab.sleep(Span::from_secs(1)).await;
        let ids = 0..lab.fabric.gateways().len() as u16;
        let links: Vec<(u16, u16)> =
            ids.clone().flat_map(|from| ids.clone().map(move |to| (from, to))).collect();
        let all = |lab: &Lab| links.iter().map(|(a, b)| crossed(lab, *a, *b)).collect::<Vec<_>>();
        let bytes = 8 << 20;
        for (from, to) in [(0, 5), (5, 0)] {
            let before = all(&lab);
            OneSend::of_bytes(from, to, 7, bytes).run(&clients).await;
            for ((link, before), now) in links.iter().zip(before).zip(all(&lab)) {
                let (payload, ip) = (now.0 - before.0, now.1 - before.1);
                let on_way =
                    |(a, b): (u16, u16)| way.windows(2).any(|hop| (hop[0], hop[1]) == (a, b));
                let back = (link.1, link.0);
                let (there, here) = if from < to { (*link, back) } else { (back, *link) };
                let must = if on_way(there) { bytes } else { 0 };
                assert_eq!(payload, must, "{link:?}");
                // Control messages, and acknowledgements on the way back.
                let full = (must as f64 / payload_rate_fraction(lab.fabric.mtu())) as u64;
                let back = if on_way(here) { bytes / 25 } else { 0 };
                let most = full * 102 / 100 + back + (32 << 10);
                assert!(ip <= most, "{link:?}: {ip} IP bytes of {full}");
            }
        }
    });
}

#[test]
fn a_relayed_send_takes_the_delays_of_its_hops() {
    // The links of the line have round trips of 30, 60 and 90 ms.
    let mesh = line(vec![vec![port(1)], vec![port(1)], vec![port(1)], vec![port(1)]]);
    simulate_ranks(&mesh, |lab, clients| async move {
        for (from, to, delay_ms) in [(0, 2, 45), (2, 0, 45), (1, 3, 75), (0, 3, 90), (3, 0, 90)] {
            for tag in 0..3 {
                let one = OneSend::of_bytes(from, to, tag, 4096);
                let mut received = one.receive(&clients).await;
                // Its post is known on the way.
                lab.sleep(Span::from_ms(delay_ms)).await;
                let begin = lab.host.now();
                let sent = one.send(&clients).await;
                received.ready().await.expect("a result");
                let took = lab.host.now().since(begin);
                let most = Span::from_ms(delay_ms + 3);
                assert!(took <= most, "{one:?} took {took}");
                one.check(sent, received).await;
            }
        }
    });
}

#[test]
fn a_send_over_unequal_links_fills_the_narrowest() {
    let wide = || vec![MeshGateway::with_port(1, mbit(1000))];
    for ways in [[(100, 20), (100, 80)], [(100, 80), (150, 20)], [(150, 60), (100, 60)]] {
        let mut mesh = line(vec![wide(), wide(), wide()]);
        for (link, (rate, rtt)) in mesh.links.iter_mut().zip(ways) {
            *link = MeshLink { rate: mbit(rate), rtt: Span::from_ms(rtt), ..*link };
        }
        simulate_ranks(&mesh, |lab, clients| async move {
            // The gateways meet first.
            OneSend::of_bytes(0, 2, 0, 1).run(&clients).await;
            lab.sleep(Span::from_secs(1)).await;
            let rtt: f64 = lab.fabric.links().iter().map(|link| link.rtt.as_secs_f64()).sum();
            let bytes = (20.0 * mbit(100).bytes_per_second() * rtt) as u64;
            let one = OneSend::of_bytes(0, 2, 1, bytes);
            let mut received = one.receive(&clients).await;
            lab.sleep(Span::from_ms(200)).await;
            let begin = lab.host.now();
            let sent = one.send(&clients).await;
            received.ready().await.expect("a result");
            let seconds = lab.host.now().since(begin).as_secs_f64();
            let part = GroupFabric::of_send(&lab.fabric, &[RankId(0), RankId(2)]).expect("a line");
            let operation = Operation::Send { from: GatewayId(0), to: GatewayId(2) };
            let bound = operation_lower_bound(&part.fabric, operation, ByteCount::new(bytes));
            let eta = bound.as_secs_f64() / seconds;
            println!("{ways:?}: eta {eta:.4}");
            assert!((0.93..=1.0).contains(&eta), "{ways:?}: eta {eta:.4}");
            one.check(sent, received).await;
        });
    }
}

#[test]
fn a_relayed_send_arrives_whatever_links_lose() {
    let mesh = Mesh { loss: ppm(10_000), ..line(vec![vec![port(1)]; 4]) };
    simulate_ranks(&mesh, |_lab, clients| async move {
        let one = |from, to, tag| OneSend::of_bytes(from, to, tag, 700_000 + u64::from(tag));
        let sends: Vec<OneSend> =
            (0..4).flat_map(|tag| [one(0, 3, tag), one(3, 0, tag), one(0, 2, tag)]).collect();
        run_at_once(&clients, &sends).await;
    });
}

/// Returns the scratch bytes that a gateway holds, by its metrics.
fn scratch_bytes(lab: &Lab, gateway: u16) -> u64 {
    let metrics = lab.metrics(GatewayId(gateway)).render();
    let line = metrics.lines().find(|line| line.starts_with("landbridge_scratch_bytes{"));
    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map_or(0, |held| held as u64)
}

#[test]
fn a_gateway_on_the_way_holds_little_for_many_sends() {
    let memory = ByteCount::new(2 << 20);
    let slow = || vec![MeshGateway::with_port(3, mbit(100))];
    let mut mesh = Mesh { memory, ..line(vec![slow(), slow(), slow()]) };
    // More could come in than goes out.
    mesh.links[1].rate = mbit(20);
    simulate_ranks(&mesh, |lab, clients| async move {
        let pairs = || (0..3).flat_map(|from| (6..9).map(move |to| (from, to)));
        let sends: Vec<OneSend> =
            pairs().map(|(from, to)| OneSend::of_bytes(from, to, 1, 3 << 20)).collect();
        let mut under_way = Vec::new();
        for one in sends {
            let received = one.receive(&clients).await;
            under_way.push((one, one.send(&clients).await, received));
        }
        let mut most = 0;
        for _ in 0..200 {
            lab.sleep(Span::from_ms(10)).await;
            most = most.max(scratch_bytes(&lab, 1));
        }
        // The part for long operations, and for each pair a segment and two unsolicited windows.
        let bound = memory.get() + 9 * ((256 << 10) + (128 << 10));
        assert!((1..=bound).contains(&most), "{most} bytes, above {bound}");
        for (one, sent, received) in under_way {
            one.check(sent, received).await;
        }
        lab.sleep(Span::from_secs(1)).await;
        assert_eq!(scratch_bytes(&lab, 1), 0);
    });
}

/// Returns regions and gateways at random, with the fewest links that join all regions and some more.
fn random_mesh(dice: &mut SplitMix64) -> Mesh {
    let mut pick = |choices: u64| dice.roll() % choices;
    let count = 3 + pick(4) as usize;
    let gateway = |pick: &mut dyn FnMut(u64) -> u64| match pick(3) {
        0 => MeshGateway::sidecar(1),
        _ => port(1),
    };
    let region = |_| -> Vec<MeshGateway> {
        let others: Vec<MeshGateway> = (0..pick(3)).map(|_| gateway(&mut pick)).collect();
        [port(1)].into_iter().chain(others).collect()
    };
    let regions: Vec<Vec<MeshGateway>> = (0..count).map(region).collect();
    let mut mesh = Mesh::of_gateways(regions);
    let joins: Vec<(usize, usize)> = (1..count).map(|to| (pick(to as u64) as usize, to)).collect();
    mesh.links.retain(|link| joins.contains(&link.regions) || pick(5) == 0);
    mesh
}

/// Runs sends between all pairs of ranks of a random mesh that are apart.
fn run_random_mesh(seed: u64) {
    let mut dice = SplitMix64(seed);
    let mesh = random_mesh(&mut dice);
    simulate(async {
        let lab = mesh.start(seed).await;
        let clients = lab.clients(ARENA_BYTES / 8).await;
        let mut sends = Vec::new();
        for (from, to) in pairs_apart(&lab).into_iter().take(30) {
            let elements = [0, 5, 4000, 90_000][(dice.roll() % 4) as usize];
            sends.push(OneSend { seed, ..OneSend::of_bytes(from, to, 1, elements) });
        }
        run_at_once(&clients, &sends).await;
    });
}

#[test]
fn ranks_of_any_network_reach_each_other() {
    (0..12).for_each(run_random_mesh);
}
