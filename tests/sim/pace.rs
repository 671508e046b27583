//! Who holds the others up is named.

use gateway::client::Client;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::{Lab, Shape, simulate};
use units::Span;

/// A step: each rank computes for as long as it takes, posts 8 samples, and waits for the result.
async fn step(lab: &Lab, clients: &[Client], compute_ms: &[u64]) {
    let begin = lab.host.now();
    let mut order: Vec<(u64, &Client)> = compute_ms.iter().copied().zip(clients).collect();
    order.sort_by_key(|(ms, _)| *ms);
    let mut operations = Vec::new();
    for (ms, client) in order {
        lab.host.sleep_until(begin + Span::from_ms(ms)).await;
        let tensor = client.allocate(Dtype::F32, 1 << 14).expect("room");
        let timeout = Span::from_secs(60);
        let posted = client.all_reduce_with(tensor, ReduceOp::Avg, 8.0, timeout).await;
        operations.push(posted.expect("posted"));
    }
    for operation in &mut operations {
        operation.ready().await.expect("a result");
    }
}

/// What the gateways say, as `kind name`, after so many steps.
async fn named(lab: &Lab, clients: &[Client], compute_ms: &[u64], steps: u32) -> [String; 2] {
    for _ in 0..steps {
        step(lab, clients, compute_ms).await;
    }
    let mut said = [String::new(), String::new()];
    for (gateway, said) in [GatewayId(0), GatewayId(1)].into_iter().zip(&mut said) {
        let straggler = lab.status(gateway).await.jobs[0].straggler.clone();
        *said = straggler.map_or("nobody".to_owned(), |s| format!("{} {}", s.kind, s.name));
    }
    said
}

#[test]
fn a_slow_rank_and_a_slow_region_are_named_within_three_steps() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), 1).await;
        let clients = lab.clients(16 << 20).await;
        let even = named(&lab, &clients, &[300, 300, 300], 4).await;
        assert_eq!(even, ["nobody", "nobody"]);
        let rank = named(&lab, &clients, &[300, 500, 300], 3).await;
        assert_eq!(rank, ["rank 1", "region east"]);
        let region = named(&lab, &clients, &[300, 300, 500], 3).await;
        assert_eq!(region, ["region west", "rank 2"]);
        let again = named(&lab, &clients, &[300, 300, 300], 1).await;
        assert_eq!(again, ["nobody", "nobody"]);
    });
}

#[test]
fn speeds_are_measured_between_a_result_and_the_next_post() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), 1).await;
        let clients = lab.clients(16 << 20).await;
        named(&lab, &clients, &[200, 400, 400], 12).await;
        let ranks = lab.status(GatewayId(0)).await.jobs[0].ranks.clone();
        for (rank, due) in ranks.iter().zip([8.0 / 0.2, 8.0 / 0.4]) {
            let speed = rank.samples_per_second.expect("measured");
            assert!((speed / due - 1.0).abs() < 0.15, "{rank:?}, {due} expected");
        }
    });
}
