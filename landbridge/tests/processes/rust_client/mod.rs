//! The client in Rust: three ranks that use sends, groups and the store of gateways that are processes.
//!
//! Each rank is a task with a connection of its own. `remote` has the collectives, by benchmarks that
//! check every operation.

mod groups;
mod sends;
mod store;

use gateway::client::{AttachOptions, Client, GatewayAddress, Operation, Tensor};
use hier_collectives::descriptor::{Dtype, ReduceOp, SlotElements};
use hier_collectives::post::Failure;
use std::future::Future;

/// The ranks of the job: two in east, one in west.
const RANKS: u32 = 3;

/// Runs the same part on all ranks of running gateways at once. Each must end without a panic.
fn run_on_each_rank<F>(part: impl Fn(Client) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut deployment = super::deployment(RANKS - 1, 1);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let attaching: Vec<_> = (0..RANKS)
            .map(|rank| {
                let region = if rank < RANKS - 1 { "east" } else { "west" };
                let way = GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
                let token = deployment.token("train");
                let options = AttachOptions::new("train", token, rank, 16 << 20);
                tokio::spawn(async move { Client::attach(&way, options).await })
            })
            .collect();
        let mut parts = Vec::new();
        for attached in attaching {
            let client = attached.await.expect("no panic").expect("attaches");
            parts.push(tokio::spawn(part(client)));
        }
        for part in parts {
            part.await.expect("no panic");
        }
    });
}

/// Returns a tensor with these values to give, and room for `got` numbers.
fn tensor_of(client: &Client, given: &[i64], got: usize) -> Tensor {
    let elements = SlotElements { contribution: given.len() as u64, result: got as u64 };
    let mut tensor = client.allocate_slots(Dtype::I64, elements).expect("room");
    tensor.write(bytemuck::cast_slice(given));
    tensor
}

/// Waits for the numbers of an operation, and for its memory.
async fn numbers_of(mut operation: Operation) -> Result<Vec<i64>, Failure> {
    operation.ready().await?;
    let numbers = bytemuck::pod_collect_to_vec(&operation.result());
    operation.reclaim().await?;
    Ok(numbers)
}

/// Adds a value of each rank of a group.
async fn sum_in(group: &Client, value: i64) -> i64 {
    let posted = group.all_reduce(tensor_of(group, &[value], 1), ReduceOp::Sum).await;
    numbers_of(posted.expect("posted")).await.expect("a sum")[0]
}

#[test]
fn ranks_in_rust_send_to_each_other_by_tag() {
    run_on_each_rank(sends::use_sends);
}

#[test]
fn ranks_in_rust_make_groups_and_use_them_at_once() {
    run_on_each_rank(groups::use_groups);
}

#[test]
fn ranks_in_rust_share_the_store_of_their_job() {
    run_on_each_rank(store::use_store);
}
