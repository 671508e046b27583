//! Two regions and a witness: whatever is lost or cut, one region goes on at most, and one does where
//! it can. The witness gets no data, and its loss ends no step.

use super::lost_regions::{BACK_WITHIN, GONE_ON_WITHIN, averages, cut_off, wait_for_world};
use gateway::client::Client;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::post::FailureCode;
use hier_collectives::topology::QuorumSpec;
use scenarios::lab::credentials::CredentialKind;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, simulate};
use units::Span;

const ARENA: u64 = 1 << 20;
const A: GatewayId = GatewayId(0);
const B: GatewayId = GatewayId(1);
const WITNESS: GatewayId = GatewayId(2);

/// Two regions of two ranks and one, and a witness.
fn witnessed() -> Mesh {
    Mesh { quorum: QuorumSpec::Majority, ..Mesh::of_ranks(&[2, 1, 0]) }
}

/// Starts all gateways and ranks, and waits until the witness knows of their epoch.
async fn started() -> (Lab, Vec<Client>) {
    let lab = witnessed().start(7).await;
    let clients = lab.clients(ARENA).await;
    let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
    assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
    lab.sleep(Span::from_secs(2)).await;
    (lab, clients)
}

/// Ranks of some regions, each with its number in the fabric.
type Ranks<'c> = Vec<(u32, &'c Client)>;

/// Splits ranks into those of a region, which is a gateway's, and the others.
fn split<'c>(lab: &Lab, clients: &'c [Client], of: GatewayId) -> (Ranks<'c>, Ranks<'c>) {
    let ranks = lab.fabric.gateway(of).ranks.clone();
    (0..).zip(clients).partition(|(rank, _)| ranks.contains(rank))
}

/// Runs steps in a world of these ranks alone, which has begun after epoch `before`.
async fn go_on(lab: &Lab, left: &[(u32, &Client)], before: u64) {
    let clients: Vec<&Client> = left.iter().map(|(_, client)| *client).collect();
    let size = left.len() as u32;
    wait_for_world(lab, &clients, before, size, GONE_ON_WITHIN).await;
    let places: Vec<RankId> = clients.iter().map(|client| client.rank()).collect();
    assert_eq!(places, (0..size).map(RankId).collect::<Vec<_>>());
    let mean = left.iter().map(|(rank, _)| rank).sum::<u32>() as f32 / size as f32;
    for _ in 0..3 {
        assert_eq!(averages(left).await, vec![Ok(mean); left.len()]);
    }
}

/// Returns the number of members in the status of a gateway, whether the witness counts, and how many
/// losses are survived.
async fn membership(lab: &Lab, at: GatewayId) -> (usize, bool, Option<u32>) {
    let report = lab.status(at).await.membership.expect("a report");
    let counts = report.witness.is_some_and(|witness| witness.counts);
    (report.members.len(), counts, report.losses_survived)
}

#[test]
fn each_of_two_regions_goes_on_with_a_witness() {
    for lost in [A, B] {
        simulate(async {
            let (lab, clients) = started().await;
            let (gone, left) = split(&lab, &clients, lost);
            let before = clients[0].epoch().0;
            cut_off(&lab, lost, true);
            let (told_left, told_gone) = tokio::join!(averages(&left), averages(&gone));
            for told in told_left.into_iter().chain(told_gone) {
                let failure = told.expect_err("a region is lost");
                // Whoever loses the other region before the witness has hopes.
                let is_cut = failure.code == FailureCode::RegionLost;
                let words = "if the witness votes for it";
                assert!(is_cut || failure.text.contains(words), "{failure}");
            }
            go_on(&lab, &left, before).await;
            lab.sleep(Span::from_secs(60)).await;
            for (_, client) in &gone {
                assert_eq!(client.epoch().0, before, "the part without the witness stays");
            }
            let smaller = left[0].1.epoch().0;
            cut_off(&lab, lost, false);
            let everybody: Vec<&Client> = clients.iter().collect();
            wait_for_world(&lab, &everybody, smaller, 3, BACK_WITHIN).await;
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            // Those that were there hear of the change.
            averages(&all).await;
            assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
            let sent = lab.gateways[usize::from(A.0)].peers[&WITNESS].metrics.sent_bytes.get();
            assert_eq!(sent, 0, "a witness gets no data");
        });
    }
}

#[test]
fn a_region_goes_on_when_the_other_gateway_ends() {
    for lost in [A, B] {
        simulate(async {
            let (mut lab, clients) = started().await;
            let (_, left) = split(&lab, &clients, lost);
            let before = clients[0].epoch().0;
            lab.stop_gateway(lost).await;
            go_on(&lab, &left, before).await;
        });
    }
}

#[test]
fn a_lost_witness_ends_no_step() {
    simulate(async {
        let (mut lab, clients) = started().await;
        let before = clients[0].epoch().0;
        let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
        assert_eq!(membership(&lab, A).await, (2, true, Some(1)));
        lab.stop_gateway(WITNESS).await;
        for _ in 0..60 {
            assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
            lab.sleep(Span::from_secs(1)).await;
        }
        assert_eq!(membership(&lab, A).await, (2, false, Some(0)));
        lab.start_gateway(WITNESS).await;
        lab.sleep(Span::from_secs(20)).await;
        assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
        assert_eq!(clients[0].epoch().0, before, "one epoch all the while");
        assert_eq!(membership(&lab, A).await, (2, true, Some(1)));
        assert_eq!(membership(&lab, WITNESS).await, (0, true, None));
        // The witness that was started again has learned what it needs.
        let (_, left) = split(&lab, &clients, A);
        lab.stop_gateway(A).await;
        go_on(&lab, &left, before).await;
        assert_eq!(membership(&lab, B).await, (1, true, Some(0)));
    });
}

#[test]
fn one_side_goes_on_where_a_pair_is_cut() {
    for (one, other) in [(A, B), (A, WITNESS), (B, WITNESS)] {
        simulate(async {
            let (lab, clients) = started().await;
            let before = clients[0].epoch().0;
            let all: Vec<(u32, &Client)> = (0..).zip(&clients).collect();
            lab.set_outage_between(one, other, true);
            lab.sleep(Span::from_secs(60)).await;
            if other == WITNESS {
                assert_eq!(averages(&all).await, vec![Ok(1.0); 3]);
                assert_eq!(clients[0].epoch().0, before, "one epoch all the while");
                return;
            }
            let (of_a, of_b) = split(&lab, &clients, A);
            let goes_on = |side: &[(u32, &Client)]| {
                let size = side.len() as u32;
                side.iter()
                    .all(|(_, client)| client.epoch().0 > before && client.world_size() == size)
            };
            assert_ne!(goes_on(&of_a), goes_on(&of_b), "one of them, with the witness");
            let (side, stays) = if goes_on(&of_a) { (of_a, of_b) } else { (of_b, of_a) };
            go_on(&lab, &side, before).await;
            for (_, client) in stays {
                assert_eq!(client.epoch().0, before, "the other side stays");
            }
            let smaller = side[0].1.epoch().0;
            lab.set_outage_between(one, other, false);
            let everybody: Vec<&Client> = clients.iter().collect();
            wait_for_world(&lab, &everybody, smaller, 3, BACK_WITHIN).await;
        });
    }
}

#[test]
fn a_witness_keeps_a_region_from_old_steps() {
    simulate(async {
        let (mut lab, clients) = started().await;
        let before = clients[0].epoch().0;
        let (of_a, of_b) = split(&lab, &clients, A);
        cut_off(&lab, B, true);
        go_on(&lab, &of_a, before).await;
        lab.stop_gateway(A).await;
        cut_off(&lab, B, false);
        lab.sleep(Span::from_secs(120)).await;
        let status = lab.status(B).await;
        assert_eq!(status.jobs[0].epoch, None, "the steps of a are unknown there: {status:?}");
        assert_eq!(of_b[0].1.epoch().0, before);
        lab.restart(WITNESS, CredentialKind::Valid).await;
        lab.sleep(Span::from_secs(60)).await;
        assert_eq!(lab.status(B).await.jobs[0].epoch, None, "nor does a new witness know");
    });
}

#[test]
fn a_region_asks_the_witness_again_after_a_refusal() {
    // The other region comes back at another moment of the pause between two questions.
    for late_ms in (0..1000).step_by(125) {
        simulate(async {
            let (mut lab, mut clients) = started().await;
            let before = clients[0].epoch().0;
            cut_off(&lab, B, true);
            go_on(&lab, &split(&lab, &clients, A).0, before).await;
            lab.stop_gateway(A).await;
            cut_off(&lab, B, false);
            lab.sleep(Span::from_secs(30) + Span::from_ms(late_ms)).await;
            lab.start_gateway(A).await;
            for rank in [0, 1] {
                clients[rank as usize] = lab.client(rank, ARENA).await;
            }
            let everybody: Vec<&Client> = clients.iter().collect();
            wait_for_world(&lab, &everybody, before, 3, BACK_WITHIN).await;
            lab.sleep(Span::from_secs(2)).await;
            let whole = clients[2].epoch().0;
            lab.stop_gateway(A).await;
            go_on(&lab, &split(&lab, &clients, B).0, whole).await;
        });
    }
}
