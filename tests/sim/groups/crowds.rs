//! 64 overlapping groups of 16 ranks over four regions, each with 20 operations under way.

use super::members::{Members, failure_of, post_sum, rank_in_job};
use gateway::client::{Client, Operation};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::{Lab, mbit, simulate};
use units::{Span, TimeNs};

/// 64: the groups of the job.
const GROUPS: u32 = 64;
/// 20: the operations that each member of a group has under way.
const OPERATIONS: usize = 20;
/// 24: the ranks of a region. So a rank is in 12 groups at most, and has fewer operations under way
/// than the 256 that its connection allows.
const RANKS: u32 = 24;
/// 1,000: the elements of an operation, so that all operations together move 80 MB between regions.
const ELEMENTS: u64 = 1000;

/// Starts four regions of two gateways each.
async fn start(seed: u64) -> Lab {
    let gateway = MeshGateway::with_port(RANKS / 2, mbit(500));
    Mesh::of_gateways(vec![vec![gateway; 2]; 4]).start(seed).await
}

/// Returns the ranks of a group: four neighbours of each region, other ones than those of the next
/// group.
fn ranks_of(group: u32) -> Vec<u32> {
    let of_region =
        |region| (0..4).map(move |at| region * RANKS + (group * 5 + at + region) % RANKS);
    (0..4).flat_map(of_region).collect()
}

/// Lets the ranks of a job make all groups.
async fn make_groups(clients: &[Client]) -> Vec<Members> {
    let mut groups = Vec::new();
    for group in 0..GROUPS {
        groups.push(Members::make(clients, &ranks_of(group), group).await);
    }
    groups
}

/// Posts [`OPERATIONS`] sums on some members of a group.
async fn post_sums(members: &[Client]) -> Vec<Operation> {
    let mut operations = Vec::new();
    for _ in 0..OPERATIONS {
        for member in members {
            operations.push(post_sum(member, ELEMENTS).await);
        }
    }
    operations
}

/// Two ranks and a gateway are lost while all groups have operations under way.
#[test]
fn three_faults_are_heard_by_their_own_groups_alone() {
    simulate(async {
        let mut lab = start(1).await;
        let clients = lab.clients(4 << 20).await;
        let groups = make_groups(&clients).await;
        let lost_gateway = GatewayId(7);
        let of_gateway = lab.fabric.gateway(lost_gateway).ranks.clone();
        let is_lost = |rank: u32| rank == 3 || rank == RANKS + 9 || of_gateway.contains(&rank);
        let (mut failing, mut others) = (Vec::new(), Vec::new());
        for (group, Members(members)) in (0..).zip(groups) {
            let is_failing = ranks_of(group).into_iter().any(is_lost);
            let left = if is_failing {
                members.into_iter().filter(|member| !is_lost(rank_in_job(member).0)).collect()
            } else {
                members
            };
            let operations = post_sums(&left).await;
            let list = if is_failing { &mut failing } else { &mut others };
            list.push((Members(left), operations));
        }
        assert!(
            failing.len() >= 20 && others.len() >= 10,
            "{} and {}",
            failing.len(),
            others.len()
        );
        // What is left of a lost rank is its client in this list.
        drop(clients);
        lab.stop_gateway(lost_gateway).await;
        for (members, operations) in others {
            members.check_sums(operations, ELEMENTS).await;
            members.sum(ELEMENTS).await;
        }
        for (_, operations) in failing {
            for operation in operations {
                let failure = failure_of(operation).await;
                let codes =
                    [FailureCode::RankLost, FailureCode::RegionLost, FailureCode::ShuttingDown];
                assert!(codes.contains(&failure.code), "{failure}");
            }
        }
    });
}

/// Returns when each operation of all groups but the first was ready, in order, after the first post.
/// A rank of the first group posts nothing if it is stopped.
async fn ready_times(is_stopped: bool) -> Vec<Span> {
    let lab = start(2).await;
    let clients = lab.clients(4 << 20).await;
    let groups = make_groups(&clients).await;
    let begin: TimeNs = lab.host.now();
    let mut waiting = post_sums(&groups[0].0[usize::from(is_stopped)..]).await;
    let mut under_way = Vec::new();
    for Members(members) in &groups[1..] {
        under_way.extend(post_sums(members).await);
    }
    let mut times = Vec::new();
    for mut operation in under_way {
        let timing = operation.ready().await.expect("a result");
        times.push(timing.ready.since(begin));
    }
    if is_stopped {
        waiting.extend(post_sums(&groups[0].0[..1]).await);
    }
    groups[0].check_sums(waiting, ELEMENTS).await;
    times.sort_unstable();
    times
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_stopped_rank_delays_no_other_groups_slowest_operations() {
    let p99 = |is_stopped| {
        let times = simulate(ready_times(is_stopped));
        times[times.len() * 99 / 100]
    };
    let (without, with) = (p99(false), p99(true));
    assert!(with.ns() * 10 <= without.ns() * 12, "{with} beside a stopped rank, else {without}");
}
