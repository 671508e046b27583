//! All ranks of one job, in this process.

use super::{Deployment, Layout};
use gateway::client::{AttachOptions, Client, GatewayAddress, PostError};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::Epoch;
use hier_collectives::post::Failure;

/// Clients of all ranks of a job, in order.
pub struct Team(Vec<Client>);

impl Team {
    /// Attaches all ranks of a job.
    pub async fn attach(deployment: &Deployment, layout: &Layout<'_>, job: &str) -> Self {
        let attach = |rank: u32| {
            let region = if rank < layout.east { "east" } else { "west" };
            let way = GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
            let token = deployment.token(job);
            async move {
                let attach = AttachOptions::new(job, token, rank, 16 << 20);
                Client::attach(&way, attach).await.expect("attaches")
            }
        };
        // Attach all of them before the epoch begins.
        let mut team = Vec::new();
        for rank in 0..layout.east + layout.west {
            team.push(attach(rank).await);
        }
        Self(team)
    }

    /// All-reduces a buffer of `elements` times the value of each rank, and checks the sum. Returns its
    /// bytes.
    pub async fn sum(&self, values: &[i64], elements: usize) -> Result<Vec<u8>, Failure> {
        let mut operations = Vec::new();
        for (client, value) in self.0.iter().zip(values) {
            let mut tensor = client.allocate(Dtype::I64, elements as u64).expect("room");
            tensor.write(&value.to_le_bytes().repeat(elements));
            let posted = client.all_reduce(tensor, ReduceOp::Sum).await;
            operations.push(posted.map_err(PostError::into_failure)?);
        }
        let mut result = Vec::new();
        for mut operation in operations {
            operation.ready().await?;
            result = operation.result();
            operation.reclaim().await?;
        }
        let sum: i64 = values.iter().sum();
        assert!(result == sum.to_le_bytes().repeat(elements), "a wrong sum");
        Ok(result)
    }

    /// Returns the epoch of the job.
    pub fn epoch(&self) -> Epoch {
        self.0[0].epoch()
    }
}
