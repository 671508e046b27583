//! One rank of the quickstart, a process of its own: trains, then all-reduces.
//!
//! [`super::messages`] describes its lines on stdout and stdin.

use super::messages::{JOB_NAME, RankMessage, RankTimes};
use crate::bench::{BenchError, bench_rank_sha256, synchronize_bench_ranks};
use gateway::client::{
    ArenaFull, AttachError, AttachOptions, Client, DEFAULT_TIMEOUT, GatewayAddress, Operation,
    PostError, Tensor,
};
use gateway::host::{Host, RealHost};
use gateway::local::protocol::Token;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::Failure;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use training::data_parallel::{self, DataParallelRange, EXCHANGED_ELEMENTS, ShareError};
use training::digits::Digits;
use units::{ByteCount, Span};

/// The work of one rank.
#[derive(Debug)]
pub(crate) struct RankTask {
    /// Socket of the rank's gateway.
    pub socket: PathBuf,
    /// Token of the job.
    pub token: Token,
    /// Number of the rank.
    pub rank: u32,
    /// Samples of each global batch that each rank computes, by rank.
    pub shares: Vec<u64>,
    /// Number of training steps.
    pub steps: NonZeroU32,
    /// Size of the buffer that is all-reduced.
    pub size: ByteCount,
    /// Number of all-reduces.
    pub iterations: NonZeroU32,
    /// File for the final weights, as little-endian f32.
    pub weights: PathBuf,
}

/// Why a rank failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    /// The rank could not attach.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The arena is full.
    #[error(transparent)]
    Full(#[from] ArenaFull),
    /// A collective could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A collective failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The ranks could not be synchronized.
    #[error(transparent)]
    Synchronize(#[from] BenchError),
    /// The shares do not divide the global batch.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The parent has ended, or the weights cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl RankTask {
    /// Attaches the rank to its gateway, trains, then all-reduces, and prints a message after each
    /// step.
    ///
    /// # Errors
    /// [`RankError`].
    pub(crate) async fn run(self) -> Result<(), RankError> {
        let share = DataParallelRange::from_shares(&self.shares, self.rank as usize)?;
        let gradients = 2 * GRADIENT_TENSORS as u64 * (EXCHANGED_ELEMENTS as u64 * 4 + 64);
        let arena = gradients + 2 * (self.size.get() + 64) + 4096;
        let attach = AttachOptions {
            epoch_timeout: Span::from_secs(60),
            ..AttachOptions::new(JOB_NAME, self.token, self.rank, arena)
        };
        let client = Client::attach(&GatewayAddress::Socket(self.socket.clone()), attach).await?;
        let weights = self.train(&client, &share).await?;
        std::fs::write(&self.weights, &weights)?;
        print_rank_task_message(&RankMessage::Trained { digest: bench_rank_sha256(&weights) })?;
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let result = self.all_reduce(&client).await?;
        print_rank_task_message(&RankMessage::Done { digest: bench_rank_sha256(&result) })?;
        // Stay attached until the quickstart ends this process: other ranks may still be receiving.
        io::stdin().read_line(&mut line)?;
        Ok(())
    }

    /// Trains on the share of this rank. Returns the final weights as little-endian f32.
    async fn train(
        &self,
        client: &Client,
        share: &DataParallelRange,
    ) -> Result<Vec<u8>, RankError> {
        let digits = Digits::load();
        let mut gradients = RankTaskAverage::new(client)?;
        let mut printed = Ok(());
        let average =
            async |buffer: &mut [f32], weight: f64| gradients.average(buffer, weight).await;
        let progress = |step, loss| {
            if printed.is_ok() {
                printed = print_rank_task_message(&RankMessage::Step { step, loss });
            }
        };
        let trained =
            data_parallel::train_rank_in_parallel(&digits, share, self.steps, average, progress)
                .await?;
        printed?;
        Ok(bytemuck::cast_slice(&trained.parameters).to_vec())
    }

    /// All-reduces a buffer in each iteration and prints its times. Returns the bytes of the last
    /// result.
    async fn all_reduce(&self, client: &Client) -> Result<Vec<u8>, RankError> {
        let mut tensor = client.allocate(Dtype::F32, self.size.get() / 4)?;
        let values: Vec<f32> = (0..self.size.get() / 4)
            .map(|i| ((i * 7 + u64::from(self.rank)) % 1000) as f32)
            .collect();
        tensor.write_f32(&values);
        drop(values);
        let mut result = Vec::new();
        for _ in 0..self.iterations.get() {
            synchronize_bench_ranks(client).await?;
            let posted = RealHost.now();
            let mut operation = client.all_reduce(tensor, ReduceOp::Sum).await?;
            let timing = operation.ready().await?;
            print_rank_task_message(&RankMessage::Iteration(RankTimes {
                posted_ns: posted.ns(),
                ready_ns: RealHost.now().ns(),
                wan_begin_ns: timing.wan_begin.ns(),
                wan_end_ns: timing.wan_end.ns(),
            }))?;
            result = operation.result();
            tensor = operation.reclaim().await?;
        }
        Ok(result)
    }
}

/// 2 tensors in a rank's arena hold gradients in turn. While the rank fills one tensor, its gateway
/// may still read the other for the step before.
const GRADIENT_TENSORS: usize = 2;

/// Averages gradients over all ranks.
struct RankTaskAverage<'a> {
    client: &'a Client,
    /// Tensors not in use.
    free: Vec<Tensor>,
    /// Operations whose result was read and whose tensor the gateway may still read, oldest first.
    completed: VecDeque<Operation>,
}

impl<'a> RankTaskAverage<'a> {
    /// Allocates the tensors of gradients in the arena of the client.
    fn new(client: &'a Client) -> Result<Self, ArenaFull> {
        let tensor = |_| client.allocate(Dtype::F32, EXCHANGED_ELEMENTS as u64);
        let free = (0..GRADIENT_TENSORS).map(tensor).collect::<Result<_, _>>()?;
        Ok(Self { client, free, completed: VecDeque::new() })
    }

    /// Replaces `buffer` by its mean over all ranks, with `weight` for this rank.
    async fn average(&mut self, buffer: &mut [f32], weight: f64) -> Result<(), RankError> {
        let mut tensor = match (self.free.pop(), self.completed.pop_front()) {
            (Some(tensor), oldest) => {
                self.completed.extend(oldest);
                tensor
            }
            (None, Some(oldest)) => oldest.reclaim().await?,
            (None, None) => self.client.allocate(Dtype::F32, buffer.len() as u64)?,
        };
        tensor.write_f32(buffer);
        let op = ReduceOp::Avg;
        let posted = self.client.all_reduce_with(tensor, op, weight, DEFAULT_TIMEOUT).await;
        let mut operation = posted?;
        operation.ready().await?;
        buffer.copy_from_slice(&operation.result_f32());
        self.completed.push_back(operation);
        Ok(())
    }
}

/// Prints a message to the quickstart as one line of JSON.
fn print_rank_task_message(message: &RankMessage) -> io::Result<()> {
    let text = serde_json::to_string(message).map_err(io::Error::other)?;
    Ok(stdio::write_stdout_report(&text)?)
}
