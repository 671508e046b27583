//! Failures stay in the groups that have the failed rank or gateway.

use super::members::{Members, failure_of, post_sum};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use scenarios::lab::mesh::Mesh;
use scenarios::simulate;
use units::Span;

/// 20 s, in which a gateway is away.
const AWAY: Span = Span::from_secs(20);

#[test]
fn a_lost_rank_ends_its_own_groups_alone() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1, 1]).start(1).await;
        let mut clients = lab.clients(4 << 20).await;
        let lost = Members::make(&clients, &[0, 2, 3], 0).await;
        let others = Members::make(&clients, &[1, 2, 3], 1).await;
        lost.sum(10).await;
        // Rank 0 posts no more; the others of its group wait for it.
        let waiting = [post_sum(&lost.0[1], 10).await, post_sum(&lost.0[2], 10).await];
        let under_way = others.post_sums(100_000).await;
        drop((clients.remove(0), lost));
        for operation in waiting {
            let failure = failure_of(operation).await;
            assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
            assert!(failure.text.contains("rank 0 (a)"), "{failure}");
        }
        others.check_sums(under_way, 100_000).await;
        others.sum(100).await;
    });
}

#[test]
fn a_rank_lost_before_it_posts_is_told() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1, 1]).start(1).await;
        let mut clients = lab.clients(4 << 20).await;
        let lost = Members::make(&clients, &[0, 2, 3], 0).await;
        // Rank 0 is awaited in a second group, which it has not made.
        let early = clients[2].new_group_with_tag(&[0, 2], 7).await.expect("made").expect("in it");
        let counted = clients[3].new_group(&[0, 3]).await.expect("made").expect("in it");
        let waiting = [
            post_sum(&lost.0[1], 10).await,
            post_sum(&lost.0[2], 10).await,
            post_sum(&early, 10).await,
            post_sum(&counted, 10).await,
        ];
        lab.sleep(Span::from_secs(5)).await;
        let begin = lab.host.now();
        drop((clients.remove(0), lost));
        for operation in waiting {
            let failure = failure_of(operation).await;
            assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
            assert!(failure.text.contains("rank 0 (a)"), "{failure}");
        }
        let waited = lab.host.now().since(begin);
        assert!(waited < Span::from_secs(1), "{waited}");
        // Its next process is awaited again, and meets the first post that has not failed.
        clients.insert(0, lab.client(0, 4 << 20).await);
        let second = post_sum(&early, 100).await;
        lab.sleep(Span::from_secs(5)).await;
        let late = clients[0].new_group_with_tag(&[0, 2], 7).await.expect("made").expect("in it");
        let failed = failure_of(post_sum(&late, 10).await).await;
        assert_eq!(failed.code, FailureCode::RankLost, "{failed}");
        let first = post_sum(&late, 100).await;
        Members(vec![late, early]).check_sums(vec![first, second], 100).await;
    });
}

#[test]
fn a_lost_gateway_ends_groups_with_its_ranks_alone() {
    simulate(async {
        let mut lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let clients = lab.clients(4 << 20).await;
        let lost = Members::make(&clients, &[0, 1, 2], 0).await;
        let others = Members::make(&clients, &[0, 2], 1).await;
        lost.sum(10).await;
        let waiting = [post_sum(&lost.0[0], 10).await, post_sum(&lost.0[2], 10).await];
        let under_way = others.post_sums(200_000).await;
        lab.stop_gateway(GatewayId(1)).await;
        for operation in waiting {
            let failure = failure_of(operation).await;
            assert!(
                matches!(failure.code, FailureCode::RegionLost | FailureCode::ShuttingDown),
                "{failure}"
            );
        }
        others.check_sums(under_way, 200_000).await;
        others.sum(100).await;
        // The gateway comes back, its rank attaches again, and all make the group again.
        lab.sleep(AWAY).await;
        lab.start_gateway(GatewayId(1)).await;
        let back = lab.client(1, 4 << 20).await;
        drop(lost);
        let clients = [clients[0].clone(), back, clients[2].clone()];
        Members::make(&clients, &[0, 1, 2], 0).await.sum(10).await;
        others.sum(100).await;
    });
}

#[test]
fn a_stopped_rank_delays_no_other_group() {
    simulate(async {
        let lab = Mesh::of_ranks(&[4, 4, 4]).start(1).await;
        let clients = lab.clients(8 << 20).await;
        let mut groups = Vec::new();
        for tag in 0..16 {
            let ranks = [tag % 4, 4 + (tag / 2) % 4, 8 + (tag / 4) % 4];
            groups.push(Members::make(&clients, &ranks, tag).await);
        }
        let alone = {
            let begin = lab.host.now();
            let operations = groups[1].post_sums(1000).await;
            groups[1].check_sums(operations, 1000).await;
            lab.host.now().since(begin)
        };
        // In the first group one rank posts nothing, and all groups have operations under way.
        let mut waiting = Vec::new();
        for _ in 0..20 {
            waiting.push(post_sum(&groups[0].0[0], 1000).await);
            waiting.push(post_sum(&groups[0].0[1], 1000).await);
        }
        let mut under_way = Vec::new();
        let begin = lab.host.now();
        for members in &groups[1..] {
            under_way.push((members, members.post_sums(1000).await));
        }
        for (members, operations) in under_way {
            members.check_sums(operations, 1000).await;
        }
        let took = lab.host.now().since(begin);
        assert!(took <= alone + Span::from_ms(3), "{took} beside {alone} alone");
        for _ in 0..20 {
            waiting.push(post_sum(&groups[0].0[2], 1000).await);
        }
        groups[0].check_sums(waiting, 1000).await;
    });
}
