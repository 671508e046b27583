//! Links of a mesh that are cut for good: steps go round them in time, all gateways name them, and
//! they are used again once they are back.

use gateway::client::Client;
use gateway::observe::problem_cause::ProblemCause;
use gateway::observe::readiness::is_ready;
use gateway::observe::status::GatewayReport;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::{Failure, FailureCode};
use scenarios::collectives::batch::{Case, outcomes, post_all};
use scenarios::lab::mesh::Mesh;
use scenarios::observe::log_capture::Log;
use scenarios::{Lab, simulate};
use units::Span;

/// A sum of 16 MiB, of integers: its bits are the same in any order.
const CASE: Case = Case {
    op: ReduceOp::Sum,
    dtype: Dtype::I64,
    elements: 2 << 20,
    seed: 3,
    values: scenarios::collectives::batch::Values::Any,
};
/// 96 MiB: room for two such sums of a rank, one of which has failed.
const ARENA: u64 = 96 << 20;
/// 10 s, the least stall deadline: a link that is cut is gone round by then.
const STALL_DEADLINE: Span = Span::from_secs(10);

const A: GatewayId = GatewayId(0);
const B: GatewayId = GatewayId(1);
const C: GatewayId = GatewayId(2);

/// Waits until every rank is in an epoch after `before`, at most a minute.
async fn next_epoch(lab: &Lab, clients: &[Client], before: u64) {
    let begin = lab.host.now();
    while clients.iter().any(|client| client.epoch().0 <= before) {
        assert!(lab.host.now().since(begin) < Span::from_secs(60), "no epoch after {before}");
        lab.sleep(Span::from_ms(10)).await;
    }
}

/// One collective of all ranks, each of which gets the expected bits.
async fn works(clients: &[Client]) {
    let expected = CASE.in_any_order(clients.len() as u32);
    let mut operations = post_all(clients, &CASE).await;
    for outcome in outcomes(&mut operations).await {
        let result = outcome.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(result == expected, "other bits");
    }
}

/// Posts a collective, cuts links while it is under way, and returns each rank's failure.
async fn cut_under_way(
    lab: &Lab,
    clients: &[Client],
    links: &[(GatewayId, GatewayId)],
) -> Vec<Failure> {
    let mut operations = post_all(clients, &CASE).await;
    lab.sleep(Span::from_ms(60)).await;
    links.iter().for_each(|(one, other)| lab.set_outage_between(*one, *other, true));
    let failed = outcomes(&mut operations).await.into_iter().filter_map(Result::err).collect();
    for operation in operations {
        operation.reclaim().await.expect("the slots are the rank's again");
    }
    failed
}

/// Returns the status of every gateway.
async fn statuses(lab: &Lab) -> Vec<GatewayReport> {
    let mut all = Vec::new();
    for gateway in lab.fabric.gateway_ids() {
        all.push(lab.status(gateway).await);
    }
    all
}

/// Checks that every gateway names the link between `b` and `c`, is ready, and knows the way round.
async fn assert_named(lab: &Lab) {
    for status in statuses(lab).await {
        let link = status.problems.iter().find(|problem| problem.cause == ProblemCause::Link);
        let link = link.unwrap_or_else(|| panic!("{status:?}"));
        assert_eq!(link.subject, "link b-c", "{status:?}");
        assert!(link.found.contains("by way of gateway a-0"), "{status:?}");
        assert!(is_ready(&status.problems), "{status:?}");
        let reason = &status.jobs[0].plan.as_ref().expect("an epoch").reason;
        assert!(reason.contains("link b-c is down"), "{reason}");
    }
    let metrics = lab.metrics(A).render();
    assert!(metrics.contains("landbridge_link_down{link=\"b-c\"} 1"), "{metrics}");
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_link_cut_under_way_is_gone_round_in_time() {
    for (seed, ranks) in [(1, &[1, 1, 1][..]), (2, &[2, 1, 1]), (3, &[1, 1, 2, 1])] {
        let log = Log::default();
        let _logging = log.listen();
        simulate(async {
            let lab = Mesh::of_ranks(ranks).start(seed).await;
            let clients = lab.clients(ARENA).await;
            let epoch = clients[0].epoch().0;
            let begin = lab.host.now();
            let failures = cut_under_way(&lab, &clients, &[(B, C)]).await;
            assert_eq!(failures.len(), clients.len(), "{failures:?}");
            for failure in failures {
                assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
                assert!(failure.text.starts_with("link b-c is down ("), "{failure}");
                assert!(failure.text.contains("by way of gateway a-0"), "{failure}");
            }
            next_epoch(&lab, &clients, epoch).await;
            let took = lab.host.now().since(begin);
            assert!(took < STALL_DEADLINE, "the next epoch after {took}");
            assert_named(&lab).await;
            let sent = |lab: &Lab| lab.gateways[1].peers[&C].metrics.sent_bytes.get();
            let before = sent(&lab);
            for _ in 0..3 {
                works(&clients).await;
            }
            assert_eq!(sent(&lab), before, "nothing is sent into the cut");
            // It comes back: no collective fails.
            lab.set_outage_between(B, C, false);
            lab.sleep(Span::from_secs(20)).await;
            let epoch = clients[0].epoch();
            for _ in 0..6 {
                works(&clients).await;
            }
            assert_eq!(clients[0].epoch(), epoch);
            assert!(sent(&lab) > before, "it is used again");
            for status in statuses(&lab).await {
                assert!(status.links_down.is_empty(), "{status:?}");
            }
        });
        let text = log.text();
        let warned = |line: &&str| {
            line.contains("WARN") && line.contains("data and control go round it by way of")
        };
        assert_eq!(text.lines().filter(warned).count(), ranks.len(), "once at each: {text}");
        assert!(text.contains("link b-c is up again"), "{text}");
    }
}

#[test]
fn a_link_that_never_came_up_is_gone_round() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(4).await;
        lab.set_outage_between(B, C, true);
        let begin = lab.host.now();
        let clients = lab.clients(ARENA).await;
        let took = lab.host.now().since(begin);
        assert!(took < STALL_DEADLINE + Span::from_secs(2), "the first epoch after {took}");
        assert_named(&lab).await;
        works(&clients).await;
    });
}

/// A silence of five seconds does no harm, also where links could be gone round.
#[test]
fn a_short_outage_in_a_mesh_is_survived() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(5).await;
        let clients = lab.clients(ARENA).await;
        let epoch = clients[0].epoch();
        for busy in [true, false] {
            let mut operations = Vec::new();
            if busy {
                operations = post_all(&clients, &CASE).await;
                lab.sleep(Span::from_ms(60)).await;
            }
            lab.set_outage_between(B, C, true);
            lab.sleep(Span::from_secs(5)).await;
            lab.set_outage_between(B, C, false);
            for outcome in outcomes(&mut operations).await {
                outcome.unwrap_or_else(|failure| panic!("{failure}"));
            }
            drop(operations);
            works(&clients).await;
        }
        assert_eq!(clients[0].epoch(), epoch);
    });
}

/// Two cuts isolate a gateway. Failures name the links, and the job goes on when one is back.
#[test]
fn an_isolated_region_fails_by_name() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(6).await;
        let clients = lab.clients(ARENA).await;
        let epoch = clients[0].epoch().0;
        let failures = cut_under_way(&lab, &clients, &[(A, C), (B, C)]).await;
        assert_eq!(failures.len(), clients.len(), "{failures:?}");
        for failure in failures {
            assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
            let named = ["link a-c", "link b-c"].iter().any(|link| failure.text.contains(link));
            assert!(named, "{failure}");
        }
        lab.sleep(Span::from_secs(20)).await;
        for status in statuses(&lab).await {
            assert!(status.jobs[0].epoch.is_none() && !is_ready(&status.problems), "{status:?}");
        }
        lab.set_outage_between(A, C, false);
        next_epoch(&lab, &clients, epoch).await;
        assert_named(&lab).await;
        works(&clients).await;
    });
}
