//! Groups by list, by tag and by color, and groups of groups.

use super::{RANKS, numbers_of, sum_in, tensor_of};
use gateway::client::{Client, GroupError};
use hier_collectives::descriptor::Counts;
use hier_collectives::ids::{RankId, Step};
use hier_collectives::post::FailureCode;

/// Makes groups of the three ranks, and uses each at once.
pub async fn use_groups(job: Client) {
    use_pair(&job).await;
    split_job(&job).await;
    use_tags(&job).await;
    disagree(&job).await;
    assert_eq!(sum_in(&job, 1).await, i64::from(RANKS), "the job goes on");
}

/// Uses a group of ranks 0 and 2, and a group of that group.
async fn use_pair(job: &Client) {
    let rank = job.rank().0;
    let made = job.new_group(&[2, 0]).await.expect("made");
    assert_eq!(made.is_none(), rank == 1, "rank {rank}");
    let Some(pair) = made else { return };
    assert_eq!((pair.rank(), pair.world_size()), (RankId(rank / 2), 2));
    assert_eq!(pair.rank_in_job(RankId(1)), Some(RankId(2)));
    assert_eq!(pair.rank_in_job(RankId(2)), None);
    assert_eq!(sum_in(&pair, i64::from(rank) + 1).await, 4);
    let own = i64::from(rank) * 10;
    let gathered = pair.all_gather(tensor_of(&pair, &[own], 2), Counts::Even).await;
    assert_eq!(numbers_of(gathered.expect("posted")).await, Ok(vec![0, 20]));
    pair.commit(Step(5)).await.expect("both commit");
    let alone = pair.new_group(&[1]).await.expect("made");
    assert_eq!(alone.is_none(), rank == 0);
    // The group of a group stays when that is left.
    drop(pair);
    if let Some(alone) = alone {
        assert_eq!(alone.rank_in_job(RankId(0)), Some(RankId(2)));
        assert_eq!(sum_in(&alone, 9).await, 9);
    }
}

/// Splits the job by color, with and without ranks that have none.
async fn split_job(job: &Client) {
    let rank = job.rank().0;
    let color = if rank == 1 { 4 } else { 70_000 };
    let half = job.split(Some(color), 0).await.expect("made").expect("it has a color");
    let members = if rank == 1 { 1 } else { 2 };
    assert_eq!(sum_in(&half, 1).await, members);
    let rest = job.split((rank != 0).then_some(0), -5).await.expect("made");
    assert_eq!(rest.is_none(), rank == 0);
    if let Some(rest) = rest {
        assert_eq!(sum_in(&rest, i64::from(rank)).await, 3);
    }
    let key = i32::try_from(rank).expect("small");
    let refused = job.split(Some(0), -key).await.map(|_| ());
    assert!(matches!(refused, Err(GroupError::KeyOrder)), "{refused:?}");
    let all = job.split(Some(0), key).await.expect("made").expect("it has a color");
    assert_eq!(sum_in(&all, 1).await, i64::from(RANKS));
    assert_eq!(sum_in(&half, 1).await, members, "it is still there");
}

/// Makes groups by tag, again and again, without rank 0.
async fn use_tags(job: &Client) {
    for tag in 0..20 {
        if job.rank() != RankId(0) {
            let made = job.new_group_with_tag(&[1, 2], tag).await.expect("made");
            let made = made.expect("it has this rank");
            assert_eq!(sum_in(&made, i64::from(tag)).await, 2 * i64::from(tag));
        }
    }
}

/// Names different ranks with one tag: ranks 0 and 2 hear of it, at the call or at the first collective.
async fn disagree(job: &Client) {
    let ranks: &[u32] = match job.rank().0 {
        0 => &[0, 2],
        2 => &[0, 2, 1],
        _ => return,
    };
    let failure = match job.new_group_with_tag(ranks, u32::MAX).await {
        Ok(made) => made.expect("it has this rank").barrier().await.expect_err("they differ"),
        Err(GroupError::Failed(failure)) => failure,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(failure.code, FailureCode::Disagreement, "{failure}");
}
