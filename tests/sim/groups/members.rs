//! Ranks that make groups and exchange in them.

use gateway::client::{Client, Operation};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::post::Failure;

/// The members of one group, in the order of their ranks.
pub struct Members(pub Vec<Client>);

impl Members {
    /// Lets ranks of a job make a group of themselves, which `tag` tells from others of the same.
    pub async fn make(clients: &[Client], ranks: &[u32], tag: u32) -> Self {
        let mut members = Vec::new();
        for rank in ranks {
            let made = clients[*rank as usize].new_group_with_tag(ranks, tag).await;
            members.push(made.expect("a group").expect("one of it"));
        }
        Self(members)
    }

    /// Posts a sum of `elements` numbers on every member.
    pub async fn post_sums(&self, elements: u64) -> Vec<Operation> {
        let mut operations = Vec::new();
        for member in &self.0 {
            operations.push(post_sum(member, elements).await);
        }
        operations
    }

    /// Checks the results of sums of `elements` numbers on every member.
    pub async fn check_sums(&self, operations: Vec<Operation>, elements: u64) {
        let job_ranks: Vec<u32> = self.0.iter().map(|member| rank_in_job(member).0).collect();
        let expected: Vec<i64> =
            (0..elements).map(|at| job_ranks.iter().map(|rank| number(*rank, at)).sum()).collect();
        for mut operation in operations {
            operation.ready().await.unwrap_or_else(|why| panic!("{job_ranks:?}: {why}"));
            let sums: Vec<i64> = bytemuck::pod_collect_to_vec(&operation.result());
            assert!(sums == expected, "{job_ranks:?}: other sums");
            operation.reclaim().await.expect("reclaimed");
        }
    }

    /// Sums numbers on every member and checks the results.
    pub async fn sum(&self, elements: u64) {
        let operations = self.post_sums(elements).await;
        self.check_sums(operations, elements).await;
    }
}

/// Returns a member's rank in the job.
pub fn rank_in_job(member: &Client) -> RankId {
    member.rank_in_job(member.rank()).expect("its own rank")
}

/// Posts a sum of `elements` numbers that follow from the rank in the job.
pub async fn post_sum(member: &Client, elements: u64) -> Operation {
    let mut tensor = member.allocate(Dtype::I64, elements).expect("room");
    let rank = rank_in_job(member).0;
    let numbers: Vec<i64> = (0..elements).map(|at| number(rank, at)).collect();
    tensor.write(bytemuck::cast_slice(&numbers));
    member.all_reduce(tensor, ReduceOp::Sum).await.expect("posted")
}

/// Waits for the failure of an operation.
pub async fn failure_of(mut operation: Operation) -> Failure {
    let failure = operation.ready().await.expect_err("a failure");
    operation.reclaim().await.expect("reclaimed");
    failure
}

/// Returns the number that a rank contributes at an index.
fn number(rank: u32, at: u64) -> i64 {
    i64::from(rank + 1) * 1_000_003 + (at % 1009) as i64
}
