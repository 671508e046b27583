//! Ranks of a group get its results, whatever others do, and soon.

use super::members::{Members, post_sum, rank_in_job};
use super::sends::OneSend;
use gateway::client::{Client, GroupError};
use gateway::observe::status::FlightReport;
use hier_collectives::descriptor::{Counts, Dtype, ReduceOp, SlotElements};
use hier_collectives::ids::{GatewayId, RankId};
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use units::{ByteCount, Span};

/// 8 MiB: the arena of each rank.
const ARENA_BYTES: u64 = 8 << 20;

fn simulate_mesh<F: Future<Output = ()>>(mesh: &Mesh, test: impl FnOnce(Lab, Vec<Client>) -> F) {
    simulate(async {
        let lab = mesh.start(1).await;
        let clients = lab.clients(ARENA_BYTES).await;
        test(lab, clients).await;
    });
}

#[test]
fn members_alone_get_the_sum_of_their_group() {
    simulate_mesh(&Mesh::of_ranks(&[2, 1, 2]), |_lab, clients| async move {
        let groups = [&[0, 2][..], &[1, 3, 4], &[0, 4], &[2], &[0, 1], &[0, 1, 2, 3, 4]];
        let mut made = Vec::new();
        for (tag, ranks) in (0..).zip(groups) {
            made.push(Members::make(&clients, ranks, tag).await);
        }
        // All groups at once, the latest first, small and large.
        for elements in [0, 1000, 100_000] {
            let mut under_way = Vec::new();
            for members in made.iter().rev() {
                under_way.push((members, members.post_sums(elements).await));
            }
            for (members, operations) in under_way.into_iter().rev() {
                members.check_sums(operations, elements).await;
            }
        }
        // The job itself goes on as ever.
        Members(clients).sum(1000).await;
    });
}

#[test]
fn several_gateways_of_a_region_serve_groups() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let regions = vec![vec![port(1), port(2)], vec![port(1), MeshGateway::sidecar(2)]];
    let mesh = Mesh { segment: Some(ByteCount::new(16 << 10)), ..Mesh::of_gateways(regions) };
    simulate_mesh(&mesh, |_lab, clients| async move {
        for (tag, ranks) in (0..).zip([&[0, 3][..], &[1, 2, 3], &[0, 1, 3, 5], &[4, 5], &[1, 2]]) {
            Members::make(&clients, ranks, tag).await.sum(50_000).await;
        }
        // The gateway of ranks 4 and 5 has no port of its own.
        let apart = clients[0].new_group_with_tag(&[0, 4], 9).await.expect_err("no way");
        let GroupError::Failed(failure) = apart else { panic!("{apart}") };
        assert!(failure.text.contains("no gateway with a WAN port"), "{failure}");
    });
}

#[test]
fn every_operation_works_in_a_group() {
    simulate_mesh(&Mesh::of_ranks(&[2, 2, 1]), |_lab, clients| async move {
        let Members(members) = Members::make(&clients, &[1, 2, 4], 0).await;
        let slots = |contribution, result| SlotElements { contribution, result };
        let root = RankId(1);
        let mut gathers = Vec::new();
        for member in &members {
            let rank = member.rank().0;
            let allocate = |contribution, result| {
                let slots = slots(contribution, result);
                member.allocate_slots(Dtype::I64, slots).expect("room")
            };
            let (own, all): (Vec<i64>, Vec<i64>) =
                (vec![rank.into(); 2], (0..6).map(|at| i64::from(10 * rank) + at).collect());
            let (mut gather, mut scatter) = (allocate(2, 6), allocate(6, 2));
            let (mut exchange, mut to_root) = (allocate(6, 6), allocate(6, 6));
            gather.write(bytemuck::cast_slice(&own));
            scatter.write(bytemuck::cast_slice(&all));
            exchange.write(bytemuck::cast_slice(&all));
            to_root.write(bytemuck::cast_slice(&all));
            let posted = [
                member.all_gather(gather, Counts::Even).await,
                member.reduce_scatter(scatter, ReduceOp::Sum, Counts::Even).await,
                member.all_to_all(exchange, Counts::Even).await,
                member.broadcast(to_root, root).await,
            ];
            gathers.push((rank, posted.map(|operation| operation.expect("posted"))));
        }
        for (rank, operations) in gathers {
            let own = 2 * i64::from(rank);
            let expected: [Vec<i64>; 4] = [
                vec![0, 0, 1, 1, 2, 2],
                (own..own + 2).map(|at| 30 + 3 * at).collect(),
                (0..3).flat_map(|from| [10 * from + own, 10 * from + own + 1]).collect(),
                (10..16).collect(),
            ];
            for (mut operation, expected) in operations.into_iter().zip(expected) {
                operation.ready().await.expect("a result");
                let result: Vec<i64> = bytemuck::pod_collect_to_vec(&operation.result());
                assert_eq!(result, expected, "rank {rank}");
            }
        }
    });
}

#[test]
fn a_group_is_made_within_a_round_trip() {
    // The links from a to b, a to c and b to c have round trips of 30, 50 and 60 ms.
    simulate_mesh(&Mesh::of_ranks(&[2, 1, 2]), |lab, clients| async move {
        let limit = |rtt_ms: u64| Span::from_ms(rtt_ms + 5);
        for (tag, (ranks, most)) in
            (0..).zip([(&[0, 1][..], limit(0)), (&[1, 2], limit(30)), (&[0, 2, 4], limit(60))])
        {
            let begin = lab.host.now();
            let first = clients[ranks[0] as usize].new_group_with_tag(ranks, tag).await;
            let took = lab.host.now().since(begin);
            assert!(took <= most, "{ranks:?} took {took}");
            // Its gateways know of it by now, so that others wait for no packet.
            let begin = lab.host.now();
            let second = clients[ranks[1] as usize].new_group_with_tag(ranks, tag).await;
            let took = lab.host.now().since(begin);
            assert!(took <= most, "{ranks:?} took {took} on the second");
            drop((first, second));
        }
    });
}

/// Splits all ranks at once by these colors and keys.
async fn split_all(clients: &[Client], keys: &[(u32, i32)]) -> Vec<Result<Client, GroupError>> {
    let split = |(client, (color, key)): (&Client, &(u32, i32))| {
        let (client, color, key) = (client.clone(), *color, *key);
        tokio::spawn(async move { client.split(Some(color), key).await })
    };
    let splits: Vec<_> = clients.iter().zip(keys).map(split).collect();
    let mut made = Vec::new();
    for split in splits {
        let group = split.await.expect("no panic");
        made.push(group.map(|group| group.expect("it has a color")));
    }
    made
}

#[test]
fn a_split_numbers_ranks_by_their_keys() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let regions = vec![
        vec![port(1), port(2)],
        vec![port(1), MeshGateway::sidecar(1)],
        vec![port(1), port(1)],
    ];
    simulate_mesh(&Mesh::of_gateways(regions), |_lab, clients| async move {
        // Equal keys leave the order of the parent, and keys of other colors count for nothing.
        let keys = [(1, i32::MIN), (0, 9), (1, -3), (0, 9), (0, 9), (1, -3), (1, i32::MAX)];
        let mut groups = [Vec::new(), Vec::new()];
        for (made, (color, _)) in split_all(&clients, &keys).await.into_iter().zip(keys) {
            groups[color as usize].push(made.expect("keys in order"));
        }
        let in_job = |members: &[Client]| -> Vec<u32> {
            members.iter().map(|member| rank_in_job(member).0).collect()
        };
        assert_eq!(
            groups.each_ref().map(|members| in_job(members)),
            [vec![1, 3, 4], vec![0, 2, 5, 6]]
        );
        for members in groups {
            // The key gives the number in the group, by which results are in order.
            let mut gathers = Vec::new();
            for (number, member) in (0..).zip(&members) {
                assert_eq!(
                    (member.rank(), member.world_size()),
                    (RankId(number), members.len() as u32)
                );
                let slots = SlotElements { contribution: 1, result: members.len() as u64 };
                let mut tensor = member.allocate_slots(Dtype::I64, slots).expect("room");
                tensor
                    .write(bytemuck::bytes_of(&i64::from(keys[rank_in_job(member).0 as usize].1)));
                gathers.push(member.all_gather(tensor, Counts::Even).await.expect("posted"));
            }
            for mut operation in gathers {
                operation.ready().await.expect("a result");
                let gathered: Vec<i64> = bytemuck::pod_collect_to_vec(&operation.result());
                assert!(gathered.len() == members.len() && gathered.is_sorted(), "{gathered:?}");
            }
            Members(members).sum(1000).await;
        }
    });
}

#[test]
fn a_split_refuses_keys_against_its_order() {
    let port = |ranks| MeshGateway::with_port(ranks, mbit(500));
    let regions = vec![vec![port(1), port(2)], vec![port(1), port(1)]];
    simulate_mesh(&Mesh::of_gateways(regions), |_lab, clients| async move {
        // Ranks 0 and 4, of different regions, ask for another order; those of color 1 do not.
        let keys = [(0, 5), (1, 0), (1, 1), (1, 1), (0, 4)];
        let mut members = Vec::new();
        for (made, (color, _)) in split_all(&clients, &keys).await.into_iter().zip(keys) {
            match made {
                Ok(group) => members.push(group),
                Err(failure) => {
                    assert_eq!(color, 0);
                    assert!(matches!(failure, GroupError::KeyOrder), "{failure}");
                }
            }
        }
        assert_eq!(members.len(), 3);
        Members(members).sum(1000).await;
        // All have counted, so that the next split of all meets.
        let made = split_all(&clients, &[(3, 0); 5]).await;
        Members(made.into_iter().map(|group| group.expect("made")).collect()).sum(10).await;
    });
}

#[test]
fn a_split_groups_ranks_by_color() {
    simulate_mesh(&Mesh::of_ranks(&[2, 2, 1]), |_lab, clients| async move {
        let color = |rank: u32| [Some(7), None, Some(3), Some(7), Some(3)][rank as usize];
        let split = |client: &Client| {
            let client = client.clone();
            tokio::spawn(async move { client.split(color(client.rank().0), 0).await })
        };
        let splits: Vec<_> = clients.iter().map(split).collect();
        let mut colors = [Vec::new(), Vec::new()];
        for (rank, made) in (0..).zip(splits) {
            match (color(rank), made.await.expect("no panic").expect("split")) {
                (None, None) => {}
                (Some(color), Some(group)) => colors[usize::from(color == 7)].push(group),
                (color, made) => panic!("{rank}: {color:?} {made:?}"),
            }
        }
        for members in colors.map(Members) {
            let ranks: Vec<u32> = members.0.iter().map(|member| rank_in_job(member).0).collect();
            assert!(ranks == [0, 3] || ranks == [2, 4], "{ranks:?}");
            members.sum(100).await;
        }
        // A group can be divided further, by numbers of its own.
        let Members(outer) = Members::make(&clients, &[0, 2, 4], 1).await;
        let mut inner = Vec::new();
        for member in &outer {
            inner.extend(member.new_group(&[1, 2]).await.expect("made"));
        }
        assert_eq!(inner.iter().map(|one| rank_in_job(one).0).collect::<Vec<_>>(), [2, 4]);
        Members(inner).sum(100).await;
    });
}

#[test]
fn a_dump_has_collectives_of_groups_and_sends() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1, 1]).start(1).await;
        let clients = lab.clients(4 << 20).await;
        let members = Members::make(&clients, &[0, 2, 3], 0).await;
        members.sum(10).await;
        // Ranks 2 and 3 do not post the next.
        let _waiting = post_sum(&members.0[0], 20).await;
        OneSend::of_bytes(1, 3, 5, 64).run(&clients).await;
        let dump = lab.dump(GatewayId(0)).await.expect("a dump");
        let groups = &dump.flights[0].groups;
        let of = |ranks: &[u32]| {
            let group = groups.iter().find(|group| group.ranks == ranks).expect("recorded");
            let end = |flight: &FlightReport| flight.end.as_ref().map(|end| end.code);
            let posts = |flight: &FlightReport| flight.posts.iter().map(|post| post.rank).collect();
            let one = |flight: &FlightReport| (flight.bytes, posts(flight), end(flight));
            let found: Vec<(u64, Vec<u32>, _)> = group.collectives.iter().map(one).collect();
            (group.group.clone(), found)
        };
        let (id, group) = of(&[0, 2, 3]);
        assert_eq!(group, [(80, vec![0], Some(None)), (160, vec![0], None)]);
        assert_eq!(of(&[1, 3]).1, [(64, vec![1], Some(None))]);
        assert_eq!(groups.len(), 2);
        assert_eq!(dump.flights[0].collectives, [], "none of the job itself");
        let other = lab.dump(GatewayId(1)).await.expect("a dump");
        assert_eq!(other.flights[0].groups[0].group, id, "one id on all gateways");
    });
}
