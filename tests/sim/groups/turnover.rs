//! Groups that are made and left, again and again.

use super::members::{Members, post_sum};
use super::sends::OneSend;
use gateway::client::{Client, GroupError};
use hier_collectives::ids::{GatewayId, Step};
use hier_collectives::post::FailureCode;
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, simulate};
use std::process::Command;
use units::Span;

/// Returns the number of groups that each gateway knows of.
async fn group_counts(lab: &Lab) -> Vec<u64> {
    let mut counts = Vec::new();
    for id in lab.fabric.gateway_ids() {
        counts.push(lab.status(id).await.jobs[0].groups);
    }
    counts
}

#[test]
fn groups_that_all_have_left_leave_nothing() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        for round in 0..300 {
            let ranks = [&[0, 1][..], &[0, 2], &[1, 2], &[0, 1, 2]][round % 4];
            let members = Members::make(&clients, ranks, 5).await;
            if round % 3 > 0 {
                members.sum(100).await;
            }
            // Some are left while the next one, perhaps of the same ranks and tag, is made.
            drop(members);
        }
        lab.sleep(Span::from_secs(1)).await;
        assert_eq!(group_counts(&lab).await, [0, 0, 0]);
        let members = Members::make(&clients, &[0, 1, 2], 5).await;
        assert_eq!(group_counts(&lab).await, [1, 1, 1]);
        members.sum(100).await;
    });
}

/// Returns the memory of this process that is in use, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// Lets ranks make and leave `count` groups, of which some sum numbers.
async fn make_and_leave(clients: &[Client], count: u32) {
    for round in 0..count {
        let ranks = [&[0, 1][..], &[0, 2], &[1, 2], &[0, 1, 2]][round as usize % 4];
        let members = Members::make(clients, ranks, round % 7).await;
        if round % 10 == 0 {
            members.sum(10).await;
        }
    }
}

/// Environment variable of the process in which a million groups are made: its memory is not that of
/// other tests.
const ALONE: &str = "LANDBRIDGE_TEST_GROUPS_ALONE";

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_million_groups_that_were_left_take_no_memory() {
    if std::env::var_os(ALONE).is_none() {
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        let name = "groups::turnover::a_million_groups_that_were_left_take_no_memory";
        let output = command.args(["--exact", name, "--ignored"]).env(ALONE, "1").output();
        let output = output.expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        make_and_leave(&clients, 100_000).await;
        let before = resident_bytes();
        make_and_leave(&clients, 900_000).await;
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes more");
        lab.sleep(Span::from_secs(1)).await;
        assert_eq!(group_counts(&lab).await, [0, 0]);
    });
}

#[test]
fn a_group_that_one_rank_leaves_stays_for_others() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        let Members(mut members) = Members::make(&clients, &[0, 1], 0).await;
        // The first leaves while its operation is under way, and makes the group again.
        let early = members.remove(0);
        let first = post_sum(&early, 100).await;
        drop(early);
        let second = post_sum(&members[0], 100).await;
        for mut operation in [first, second] {
            operation.ready().await.expect("a result");
            operation.reclaim().await.expect("reclaimed");
        }
        lab.sleep(Span::from_secs(1)).await;
        assert_eq!(group_counts(&lab).await, [1, 1]);
        drop(members);
        lab.sleep(Span::from_secs(1)).await;
        assert_eq!(group_counts(&lab).await, [0, 0]);
    });
}

#[test]
fn late_ranks_find_the_operations_of_their_group() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 2]).start(1).await;
        let clients = lab.clients(4 << 20).await;
        let ranks = [0, 1, 2];
        let early = clients[0].new_group_with_tag(&ranks, 0).await.expect("made").expect("in it");
        let mut operations = vec![post_sum(&early, 100_000).await, post_sum(&early, 10).await];
        lab.sleep(Span::from_secs(60)).await;
        let mut members = vec![early];
        for rank in [1, 2] {
            let client = &clients[rank as usize];
            let late = client.new_group_with_tag(&ranks, 0).await.expect("made");
            members.push(late.expect("in it"));
        }
        for member in &members[1..] {
            operations.push(post_sum(member, 100_000).await);
            operations.push(post_sum(member, 10).await);
        }
        let members = Members(members);
        for (index, operation) in operations.into_iter().enumerate() {
            let elements = if index % 2 == 0 { 100_000 } else { 10 };
            members.check_sums(vec![operation], elements).await;
        }
        // A gateway without any rank of it left forgets it, too.
        let _ = lab.status(GatewayId(0)).await;
    });
}

#[test]
fn a_rank_of_too_many_groups_keeps_its_connection() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        // Pairs of ranks that sent do not count.
        OneSend::of_bytes(1, 2, 0, 100).run(&clients).await;
        assert_eq!(group_counts(&lab).await, [1, 1]);
        let make = |tag| clients[0].new_group_with_tag(&[0], tag);
        let mut made = Vec::new();
        for tag in 0..4096 {
            made.push(make(tag).await.expect("a group").expect("in it"));
        }
        for tag in [5000, 5001] {
            let refused = make(tag).await.expect_err("one too many");
            let GroupError::Failed(failure) = refused else { panic!("{refused}") };
            assert_eq!(failure.code, FailureCode::BadPost, "{failure}");
            assert!(failure.text.contains("4096 groups already; leave some"), "{failure}");
        }
        Members(vec![made.remove(7)]).sum(100).await;
        Members::make(&clients, &[0], 6000).await.sum(100).await;
        Members(clients.clone()).sum(100).await;
    });
}

#[test]
fn the_end_of_many_groups_keeps_the_connection() {
    simulate(async {
        let lab = Mesh::of_ranks(&[2, 1]).start(1).await;
        let mut clients = lab.clients(1 << 20).await;
        Members(clients.clone()).sum(10).await;
        let mut made = Vec::new();
        for _ in 0..1500 {
            made.push(clients[0].new_group(&[0, 1]).await.expect("made").expect("in it"));
        }
        // All of them end at once with the epoch of their parent.
        drop(clients.remove(1));
        clients.insert(1, lab.client(1, 1 << 20).await);
        let failure = made[700].barrier().await.expect_err("over");
        assert_eq!(failure.code, FailureCode::EpochEnded, "{failure}");
        drop(made);
        // Rank 2 hears of the next epoch, too.
        lab.sleep(Span::from_secs(1)).await;
        Members(clients).sum(100).await;
    });
}

#[test]
fn a_group_left_before_it_is_made_ends_nothing() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        let bystanders = Members::make(&clients, &[0, 1], 0).await;
        let making = clients[0].new_group_with_tag(&[0, 1], 1);
        tokio::select! {
            biased;
            made = making => panic!("{made:?} before the gateway heard of it"),
            () = std::future::ready(()) => {}
        }
        bystanders.sum(100).await;
        Members(clients).sum(100).await;
    });
}

#[test]
fn a_group_is_left_after_its_last_commit() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1]).start(1).await;
        let clients = lab.clients(1 << 20).await;
        let members = Members::make(&clients, &[0, 1], 0).await;
        members.sum(100).await;
        let mut commits = Vec::new();
        for member in &members.0 {
            let commit = member.start_commit(Step(1), Span::from_secs(60)).await;
            commits.push(commit.expect("started"));
        }
        drop(members);
        for commit in commits {
            commit.confirmed().await.expect("committed");
        }
        lab.sleep(Span::from_secs(1)).await;
        assert_eq!(group_counts(&lab).await, [0, 0]);
        Members(clients).sum(100).await;
    });
}
