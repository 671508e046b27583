//! Sends round a ring, by tags in any order, and ends that do not fit each other.

use super::{RANKS, numbers_of, sum_in, tensor_of};
use gateway::client::{Client, Operation, SendSpec};
use hier_collectives::ids::{RankId, Tag};
use hier_collectives::post::{Failure, FailureCode};
use units::Span;

/// Numbers of a long send: 2 MiB, which take many segments.
const LONG: usize = 1 << 18;

/// Uses sends between all three ranks.
pub async fn use_sends(client: Client) {
    send_round(&client).await;
    let pair = client.new_group(&[0, 2]).await.expect("made");
    if let Some(pair) = &pair {
        send_round(pair).await;
    }
    use_tags(&client).await;
    fail(&client).await;
    assert_eq!(sum_in(&client, 1).await, i64::from(RANKS), "the job goes on");
}

/// Returns the numbers that a rank sends.
fn numbers_from(rank: u32) -> Vec<i64> {
    (0..LONG as i64).map(|at| at * 7 + i64::from(rank)).collect()
}

/// Begins to send numbers.
async fn begin_send(group: &Client, values: &[i64], to: u32, tag: u16) -> Operation {
    let spec = SendSpec::new(RankId(to), Tag(tag));
    group.send(tensor_of(group, values, 0), spec).await.expect("posted")
}

/// Sends numbers until the other rank has them.
async fn send(group: &Client, values: &[i64], to: u32, tag: u16) -> Result<(), Failure> {
    numbers_of(begin_send(group, values, to, tag).await).await.map(|_| ())
}

/// Receives numbers within a timeout.
async fn receive_within(group: &Client, count: usize, spec: SendSpec) -> Result<Vec<i64>, Failure> {
    let posted = group.receive(tensor_of(group, &[], count), spec).await;
    numbers_of(posted.expect("posted")).await
}

/// Receives numbers.
async fn receive(group: &Client, count: usize, from: u32, tag: u16) -> Result<Vec<i64>, Failure> {
    receive_within(group, count, SendSpec::new(RankId(from), Tag(tag))).await
}

/// Each rank of a group sends to the next one, and receives from the one before.
async fn send_round(group: &Client) {
    let (own, size) = (group.rank().0, group.world_size());
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    let sent = begin_send(group, &numbers_from(own), next, 0).await;
    let got = receive(group, LONG, before, 0).await.expect("sent");
    assert!(got == numbers_from(before), "other numbers than rank {before} sent");
    numbers_of(sent).await.expect("received");
}

/// Rank 2 receives from rank 0 in another order than that of the sends, once nothing at all.
async fn use_tags(job: &Client) {
    if job.rank() == RankId(0) {
        let mut sent = Vec::new();
        for (values, tag) in [(&[1][..], 0), (&[2], 0), (&[], 1), (&[4], u16::MAX)] {
            sent.push(begin_send(job, values, 2, tag).await);
        }
        for operation in sent {
            numbers_of(operation).await.expect("received");
        }
    }
    if job.rank() == RankId(2) {
        for (wanted, tag) in [(&[4][..], u16::MAX), (&[], 1), (&[1], 0), (&[2], 0)] {
            let got = receive(job, wanted.len(), 0, tag).await;
            assert_eq!(got.expect("sent"), wanted, "tag {tag}");
        }
    }
}

/// Ends that differ, and an end that comes too late: both hear of it, and the next sends meet.
async fn fail(job: &Client) {
    let code = |outcome: Result<(), Failure>| outcome.expect_err("it fails").code;
    let rank = job.rank().0;
    if rank == 0 {
        assert_eq!(code(send(job, &[5], 1, 7).await), FailureCode::Disagreement);
        let timeout = Span::from_ms(100);
        let late = SendSpec { timeout, ..SendSpec::new(RankId(1), Tag(8)) };
        let late = receive_within(job, 1, late).await.map(|_| ());
        assert_eq!(code(late), FailureCode::TimedOut);
    }
    if rank == 1 {
        let differs = receive(job, 2, 0, 7).await.map(|_| ());
        assert_eq!(code(differs), FailureCode::Disagreement);
    }
    job.barrier().await.expect("all come");
    if rank == 1 {
        assert_eq!(code(send(job, &[5], 0, 8).await), FailureCode::TimedOut, "it comes too late");
        send(job, &[5, 6], 0, 8).await.expect("the next one meets");
    }
    if rank == 0 {
        assert_eq!(receive(job, 2, 1, 8).await.expect("sent"), [5, 6]);
    }
}
