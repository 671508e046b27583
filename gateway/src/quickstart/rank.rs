//! One rank of the quickstart, a process of its own: trains, then all-reduces. It says what
//! it does on stdout, a line of JSON each, and waits for a line on stdin in between.

use super::digits::Digits;
use super::training::{self, EXCHANGED_ELEMENTS, RankShare, ShareError};
use crate::bench::{BenchError, sha256};
use crate::client::{
    ArenaFull, Attach, AttachError, Client, DEFAULT_TIMEOUT, Operation, PostError, Tensor, Way,
};
use crate::host::{Host, RealHost};
use crate::local::protocol::Token;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::Failure;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use units::{ByteCount, Span};

/// The job of the quickstart.
pub(super) const JOB: &str = "quickstart";

/// What a rank is to do.
#[derive(Debug)]
pub struct RankTask {
    /// Its gateway's socket.
    pub socket: PathBuf,
    /// The job's token.
    pub token: Token,
    /// The rank.
    pub rank: u32,
    /// Samples of each global batch, by rank.
    pub shares: Vec<u64>,
    /// Steps to train.
    pub steps: NonZeroU32,
    /// The buffer to all-reduce.
    pub size: ByteCount,
    /// How often.
    pub iterations: NonZeroU32,
    /// Where its final weights go, as little-endian f32.
    pub weights: PathBuf,
}

/// Why a rank failed.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// Not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No room.
    #[error(transparent)]
    Full(#[from] ArenaFull),
    /// Not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A collective failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The ranks could not meet.
    #[error(transparent)]
    Meet(#[from] BenchError),
    /// Shares that are none.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The parent is gone, or the disk is full.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a rank says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// A step is done.
    Step {
        /// Its number, from 1.
        step: u32,
        /// Mean loss over its global batch.
        loss: f32,
    },
    /// The training is done, the weights are written.
    Trained {
        /// SHA-256 of the weights.
        digest: String,
    },
    /// One all-reduce, on the clock that all processes of the machine share.
    Iteration {
        /// When the rank posted.
        posted_ns: u64,
        /// When it had the result.
        ready_ns: u64,
        /// When its gateway had the first segment to send.
        wan_begin_ns: u64,
        /// When its gateway had the last segment.
        wan_end_ns: u64,
    },
    /// All is done.
    Done {
        /// SHA-256 of the last result.
        digest: String,
    },
}

impl RankTask {
    /// Does it.
    ///
    /// # Errors
    /// [`RankError`].
    pub async fn run(self) -> Result<(), RankError> {
        let share = RankShare::of(&self.shares, self.rank as usize)?;
        let gradients = 2 * TENSORS as u64 * (EXCHANGED_ELEMENTS as u64 * 4 + 64);
        let arena = gradients + 2 * (self.size.get() + 64) + 4096;
        let attach = Attach {
            patience: Span::from_secs(60),
            ..Attach::new(JOB, self.token, self.rank, arena)
        };
        let client = Client::attach(&Way::Socket(self.socket.clone()), attach).await?;
        let weights = self.train(&client, &share).await?;
        std::fs::write(&self.weights, &weights)?;
        say(&Line::Trained { digest: sha256(&weights) })?;
        let mut go = String::new();
        if io::stdin().read_line(&mut go)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let result = self.all_reduce(&client).await?;
        say(&Line::Done { digest: sha256(&result) })?;
        // Stay until told to end: peers may still need what this rank's gateway holds.
        io::stdin().read_line(&mut go)?;
        Ok(())
    }

    async fn train(&self, client: &Client, share: &RankShare) -> Result<Vec<u8>, RankError> {
        let digits = Digits::load();
        let mut exchange = Exchange::new(client)?;
        let mut told = Ok(());
        let average =
            async |buffer: &mut [f32], weight: f64| exchange.average(buffer, weight).await;
        let progress = |step, loss| {
            if told.is_ok() {
                told = say(&Line::Step { step, loss });
            }
        };
        let trained = training::train(&digits, share, self.steps, average, progress).await?;
        told?;
        Ok(bytemuck::cast_slice(&trained.parameters).to_vec())
    }

    async fn all_reduce(&self, client: &Client) -> Result<Vec<u8>, RankError> {
        let mut tensor = client.allocate(Dtype::F32, self.size.get() / 4)?;
        let values: Vec<f32> = (0..self.size.get() / 4)
            .map(|i| ((i * 7 + u64::from(self.rank)) % 1000) as f32)
            .collect();
        tensor.write_f32(&values);
        drop(values);
        let mut result = Vec::new();
        for _ in 0..self.iterations.get() {
            crate::bench::meet(client).await?;
            let posted = RealHost.now();
            let mut operation = client.all_reduce(tensor, ReduceOp::Sum).await?;
            let timing = operation.ready().await?;
            say(&Line::Iteration {
                posted_ns: posted.ns(),
                ready_ns: RealHost.now().ns(),
                wan_begin_ns: timing.wan_begin.ns(),
                wan_end_ns: timing.wan_end.ns(),
            })?;
            result = operation.result();
            tensor = operation.reclaim().await?;
        }
        Ok(result)
    }
}

/// Tensors in turn: one may still be read for the last stragglers of the step before.
const TENSORS: usize = 2;

struct Exchange<'a> {
    client: &'a Client,
    free: Vec<Tensor>,
    settling: VecDeque<Operation>,
}

impl<'a> Exchange<'a> {
    fn new(client: &'a Client) -> Result<Self, ArenaFull> {
        let tensor = |_| client.allocate(Dtype::F32, EXCHANGED_ELEMENTS as u64);
        let free = (0..TENSORS).map(tensor).collect::<Result<_, _>>()?;
        Ok(Self { client, free, settling: VecDeque::new() })
    }

    async fn average(&mut self, buffer: &mut [f32], weight: f64) -> Result<(), RankError> {
        let mut tensor = match (self.free.pop(), self.settling.pop_front()) {
            (Some(tensor), settling) => {
                self.settling.extend(settling);
                tensor
            }
            (None, Some(settling)) => settling.reclaim().await?,
            (None, None) => self.client.allocate(Dtype::F32, buffer.len() as u64)?,
        };
        tensor.write_f32(buffer);
        let op = ReduceOp::Avg;
        let posted = self.client.all_reduce_with(tensor, op, weight, DEFAULT_TIMEOUT).await;
        let mut operation = posted?;
        operation.ready().await?;
        buffer.copy_from_slice(&operation.result_f32());
        self.settling.push_back(operation);
        Ok(())
    }
}

fn say(line: &Line) -> io::Result<()> {
    let text = serde_json::to_string(line).map_err(io::Error::other)?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}
