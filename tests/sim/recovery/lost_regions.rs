//! Regions that are lost where a quorum may go on: the others do so within seconds, with right sums,
//! and the region that was away enters again once it is back.

use gateway::client::Client;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::topology::QuorumSpec;
use scenarios::lab::credentials::CredentialKind;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, simulate};
use units::Span;

const ARENA: u64 = 1 << 20;
const A: GatewayId = GatewayId(0);
const B: GatewayId = GatewayId(1);
const C: GatewayId = GatewayId(2);
/// 17 s: a silent gateway is lost after 15 s, and an agreement takes a few round trips.
pub(crate) const GONE_ON_WITHIN: Span = Span::from_secs(17);
/// 10 s: a dial each second, the 2 s after which a region is taken in, and an agreement.
pub(crate) const BACK_WITHIN: Span = Span::from_secs(10);

/// Three regions of two, one and one ranks, of which two may go on.
fn majority() -> Mesh {
    Mesh { quorum: QuorumSpec::Majority, ..Mesh::of_ranks(&[2, 1, 1]) }
}

/// Posts an average over the world, to which each rank brings its number in the fabric; returns what
/// each rank gets.
pub(crate) async fn averages(clients: &[(u32, &Client)]) -> Vec<Result<f32, Failure>> {
    let mut operations = Vec::new();
    for (number, client) in clients {
        client.agree_to_epoch();
        let mut tensor = client.allocate(Dtype::F32, 64).expect("room");
        tensor.write_f32(&[*number as f32; 64]);
        operations.push(client.all_reduce(tensor, ReduceOp::Avg).await.expect("posted"));
    }
    let mut outcomes = Vec::new();
    for mut operation in operations {
        let ready = operation.ready().await;
        outcomes.push(ready.map(|_| operation.result_f32()[17]));
        operation.reclaim().await.expect("the slots are the rank's again");
    }
    outcomes
}

/// Waits until these ranks are in an epoch after `before` of a world of `size` ranks.
pub(crate) async fn wait_for_world(
    lab: &Lab,
    clients: &[&Client],
    before: u64,
    size: u32,
    at_most: Span,
) {
    let began = lab.host.now();
    let is_there = |client: &&Client| client.epoch().0 > before && client.world_size() == size;
    while !clients.iter().all(is_there) {
        let waited = lab.host.now().since(began);
        let seen: Vec<_> = clients.iter().map(|c| (c.epoch(), c.world_size())).collect();
        assert!(waited < at_most, "no world of {size} after epoch {before}: {seen:?}");
        lab.sleep(Span::from_ms(10)).await;
    }
}

/// Cuts a gateway off from all others, or mends that.
pub(crate) fn cut_off(lab: &Lab, gateway: GatewayId, cut: bool) {
    let others = lab.fabric.gateway_ids().filter(|id| *id != gateway);
    others.for_each(|other| lab.set_outage_between(gateway, other, cut));
}

#[test]
fn each_region_is_lost_and_comes_back() {
    for lost in [A, B, C] {
        simulate(async {
            let lab = majority().start(7).await;
            let clients = lab.clients(ARENA).await;
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            let of_lost = lab.fabric.gateway(lost).ranks.clone();
            let (gone, left): (Vec<_>, Vec<_>) =
                all.iter().copied().partition(|(rank, _)| of_lost.contains(rank));
            assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
            let before = clients[0].epoch().0;
            cut_off(&lab, lost, true);
            let began = lab.host.now();
            let (told_left, told_gone) = tokio::join!(averages(&left), averages(&gone));
            for told in told_left {
                let failure = told.expect_err("a region is lost");
                // One of its links may be taken for cut before the region is for lost.
                if failure.code == FailureCode::RegionLost {
                    continue;
                }
                assert_eq!(failure.code, FailureCode::MembershipChanged, "{failure}");
                let name = &lab.fabric.regions()[usize::from(lost.0)].name;
                let words = format!("region {name} is lost");
                assert!(failure.text.contains(&words), "{failure}");
                assert!(failure.text.contains(&format!("with {} rank", left.len())), "{failure}");
            }
            for told in told_gone {
                let failure = told.expect_err("the others are lost");
                assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
            }
            let of_left: Vec<&Client> = left.iter().map(|(_, client)| *client).collect();
            let size = left.len() as u32;
            wait_for_world(&lab, &of_left, before, size, GONE_ON_WITHIN).await;
            let took = lab.host.now().since(began);
            assert!(took < GONE_ON_WITHIN, "{took}");
            let places: Vec<RankId> = of_left.iter().map(|client| client.rank()).collect();
            assert_eq!(places, (0..size).map(RankId).collect::<Vec<_>>());
            let sum: u32 = left.iter().map(|(rank, _)| rank).sum();
            let mean = sum as f32 / size as f32;
            for _ in 0..3 {
                assert_eq!(averages(&left).await, vec![Ok(mean); left.len()]);
            }
            for (_, client) in &gone {
                assert_eq!(client.epoch().0, before, "the part without a quorum stays");
            }
            let smaller = of_left[0].epoch().0;
            let tensor = of_left[0].allocate(Dtype::F32, 64).expect("room");
            let under_way = of_left[0].all_reduce(tensor, ReduceOp::Avg).await;
            cut_off(&lab, lost, false);
            let everybody: Vec<&Client> = clients.iter().collect();
            wait_for_world(&lab, &everybody, smaller, 4, BACK_WITHIN).await;
            let mut under_way = under_way.expect("posted");
            let failure = under_way.ready().await.expect_err("a region is back");
            assert_eq!(failure.code, FailureCode::MembershipChanged, "{failure}");
            assert!(failure.text.contains("can be reached again"), "{failure}");
            under_way.reclaim().await.expect("the slots are the rank's again");
            assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        });
    }
}

#[test]
fn a_silence_of_the_fabric_lets_others_go_on_sooner() {
    simulate(async {
        let silence = Span::from_secs(5);
        let lab = Mesh { silence: Some(silence), ..majority() }.start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        let before = clients[0].epoch().0;
        // A shorter outage ends no step.
        cut_off(&lab, C, true);
        lab.sleep(Span::from_secs(3)).await;
        cut_off(&lab, C, false);
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        assert_eq!(clients[0].epoch().0, before, "slow is not dead");
        cut_off(&lab, C, true);
        let left: Vec<&Client> = clients[..3].iter().collect();
        wait_for_world(&lab, &left, before, 3, silence + Span::from_secs(3)).await;
    });
}

#[test]
fn a_gateway_without_memory_adds_no_quorum() {
    simulate(async {
        let mut lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
        let before = clients[0].epoch().0;
        cut_off(&lab, C, true);
        lab.restart(B, CredentialKind::Valid).await;
        lab.sleep(Span::from_secs(60)).await;
        let status = lab.status(A).await;
        assert_eq!(status.jobs[0].epoch, None, "c may have gone on with b: {status:?}");
        cut_off(&lab, C, false);
        let rank = lab.client(2, ARENA).await;
        let everybody = [&clients[0], &clients[1], &rank, &clients[3]];
        wait_for_world(&lab, &everybody, before, 4, BACK_WITHIN).await;
        let all: Vec<(u32, &Client)> = (0..).zip(everybody).collect();
        assert_eq!(averages(&all).await, vec![Ok(1.5); 4]);
    });
}

#[test]
fn without_a_quorum_nobody_goes_on() {
    simulate(async {
        let lab = majority().start(7).await;
        let clients = lab.clients(ARENA).await;
        let before = clients[0].epoch().0;
        [(A, B), (A, C), (B, C)].iter().for_each(|(a, b)| lab.set_outage_between(*a, *b, true));
        lab.sleep(Span::from_secs(60)).await;
        for gateway in [A, B, C] {
            assert_eq!(lab.status(gateway).await.jobs[0].epoch, None);
        }
        [(A, B), (A, C), (B, C)].iter().for_each(|(a, b)| lab.set_outage_between(*a, *b, false));
        let everybody: Vec<&Client> = clients.iter().collect();
        wait_for_world(&lab, &everybody, before, 4, BACK_WITHIN).await;
    });
}
