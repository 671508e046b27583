//! Groups whose gateway is lost or starts again, and groups whose rank is lost again. Their ranks hear of
//! it on all gateways, and make them again.

use super::members::{Members, failure_of, post_sum};
use gateway::client::{Client, GroupError};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, simulate};
use units::Span;

/// Returns whether a gateway has a lane to a peer.
async fn has_lane(lab: &Lab, gateway: u16, peer: &str) -> bool {
    let peers = lab.status(GatewayId(gateway)).await.peers;
    peers.iter().any(|one| one.gateway == peer && one.lanes_up > 0)
}

#[test]
fn a_group_lost_while_it_is_made_ends_everywhere() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        Members(clients.clone()).sum(10).await;
        // The third gateway is silent, to the first one later. The second still knows a way over the
        // first when that gives it up.
        lab.set_outage_between(GatewayId(1), GatewayId(2), true);
        lab.sleep(Span::from_secs(3)).await;
        lab.set_outage_between(GatewayId(0), GatewayId(2), true);
        while has_lane(&lab, 0, "c-0").await {
            lab.sleep(Span::from_ms(1)).await;
        }
        let begin = lab.host.now();
        let ranks = [0, 1, 2];
        let (one, other) = tokio::join!(
            clients[0].new_group_with_tag(&ranks, 7),
            clients[1].new_group_with_tag(&ranks, 7)
        );
        for made in [one, other] {
            let Err(GroupError::Failed(failure)) = made else { panic!("{made:?}") };
            assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
        }
        let waited = lab.host.now().since(begin);
        assert!(waited < Span::from_ms(100), "{waited}");
        // Once it is back, they make the group again.
        for gateway in [0, 1] {
            lab.set_outage_between(GatewayId(gateway), GatewayId(2), false);
        }
        Members::make(&clients, &ranks, 7).await.sum(1000).await;
    });
}

/// Makes the next counted group of all ranks on each of them.
async fn count_group(clients: &[Client]) -> Members {
    let ranks: Vec<u32> = (0..clients.len() as u32).collect();
    let mut members = Vec::new();
    for client in clients {
        members.extend(client.new_group(&ranks).await.expect("made"));
    }
    Members(members)
}

#[test]
fn counted_groups_end_with_a_restart_and_count_anew() {
    simulate(async {
        let mut lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let mut clients = lab.clients(4 << 20).await;
        let made = count_group(&clients).await;
        made.sum(100).await;
        // A second one that one rank alone has made, and a third with a tag.
        let early = clients[0].new_group(&[0, 2]).await.expect("made").expect("in it");
        let tagged = clients[0].new_group_with_tag(&[0, 2], 1).await.expect("made").expect("in it");
        let with_tag = post_sum(&tagged, 100).await;
        let waiting = [
            post_sum(&made.0[0], 10).await,
            post_sum(&made.0[2], 10).await,
            post_sum(&early, 10).await,
        ];
        lab.stop_gateway(GatewayId(1)).await;
        lab.sleep(Span::from_secs(1)).await;
        lab.start_gateway(GatewayId(1)).await;
        clients[1] = lab.client(1, 4 << 20).await;
        let codes = [FailureCode::ShuttingDown, FailureCode::RegionLost, FailureCode::EpochEnded];
        for operation in waiting {
            let failure = failure_of(operation).await;
            assert!(codes.contains(&failure.code), "{failure}");
        }
        // The restarted gateway knows of no group that ranks counted before. Its rank counts from 0 on,
        // and so do the others, in the epoch that begins with it.
        lab.sleep(Span::from_secs(1)).await;
        for client in &clients {
            client.agree_to_epoch();
        }
        Members(clients.clone()).sum(10).await;
        let again = count_group(&clients).await;
        again.sum(10_000).await;
        // Only the ranks of a group with a tag are needed, which knows nothing of that epoch.
        let late = clients[2].new_group_with_tag(&[0, 2], 1).await.expect("made").expect("in it");
        let second = post_sum(&late, 100).await;
        Members(vec![tagged, late]).check_sums(vec![with_tag, second], 100).await;
        drop((made, early));
        lab.sleep(Span::from_secs(1)).await;
        for id in lab.fabric.gateway_ids() {
            assert_eq!(lab.status(id).await.jobs[0].groups, 1, "gateway {id:?}");
        }
        again.sum(100).await;
        Members(clients).sum(100).await;
    });
}

#[test]
fn a_rank_lost_twice_is_told_twice() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1, 1]).start(1).await;
        let mut clients = lab.clients(4 << 20).await;
        let Members(mut members) = Members::make(&clients, &[0, 2, 3], 5).await;
        let mut lost = Some(members.remove(0));
        for round in 0..3 {
            let waiting = [post_sum(&members[0], 10).await, post_sum(&members[1], 10).await];
            lab.sleep(Span::from_secs(1)).await;
            let begin = lab.host.now();
            drop((clients.remove(0), lost.take()));
            for operation in waiting {
                let failure = failure_of(operation).await;
                assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
                assert!(failure.text.contains("rank 0 (a)"), "{failure}");
            }
            let waited = lab.host.now().since(begin);
            assert!(waited < Span::from_secs(1), "round {round}: {waited}");
            // Its next process is awaited again, and is lost before it has made the group.
            clients.insert(0, lab.client(0, 4 << 20).await);
        }
        let waiting = [post_sum(&members[0], 10).await, post_sum(&members[1], 10).await];
        let back = clients[0].new_group_with_tag(&[0, 2, 3], 5).await.expect("made");
        members.insert(0, back.expect("in it"));
        // It meets the first post that has not failed.
        for _ in 0..3 {
            let failure = failure_of(post_sum(&members[0], 10).await).await;
            assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
        }
        let first = post_sum(&members[0], 10).await;
        Members(members).check_sums([first].into_iter().chain(waiting).collect(), 10).await;
    });
}
