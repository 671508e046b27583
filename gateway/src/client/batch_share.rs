//! A global batch that is split among all ranks, and split again as their speeds drift.

use super::arena_buffer::ArenaFull;
use super::client_handle::Client;
use super::collective_spec::CollectiveSpec;
use hier_collectives::batch::{BatchError, BatchSplit};
use hier_collectives::descriptor::{Pattern, ReduceOp};
use hier_collectives::post::Failure;
use units::Span;

/// This rank's part of a global batch, made by [`Client::batch_share`]. All ranks make equal parts
/// of one batch, and end the same steps.
pub struct BatchShare {
    client: Client,
    split: BatchSplit,
    /// This rank's speed in the last step with samples, in samples per second; 0 before that.
    samples_per_second: f64,
}

/// Why speeds were not exchanged. This rank's split is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The arena has no room for three numbers of each rank. The caller's fault.
    #[error(transparent)]
    ArenaFull(#[from] ArenaFull),
    /// The exchange failed. Other ranks may have completed it, and split differently until the
    /// next exchange succeeds.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A rank reported a time from which no speed follows.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl Client {
    /// Splits a global batch of `global_batch` samples among all ranks, in whole samples.
    ///
    /// `speeds` are the ranks' first speeds in any unit, such as those of the fabric file. `limits`
    /// are the most samples that each rank's memory holds. Both have one entry for each rank.
    ///
    /// # Errors
    /// [`BatchError`], which names the first rank at fault.
    pub fn batch_share(
        &self,
        global_batch: u64,
        speeds: &[f64],
        limits: &[u64],
    ) -> Result<BatchShare, BatchError> {
        let ranks = self.world_size() as usize;
        if speeds.len() != ranks {
            return Err(BatchError::Limits { limits: speeds.len(), ranks });
        }
        let split = BatchSplit::new(global_batch, speeds, limits)?;
        Ok(BatchShare { client: self.clone(), split, samples_per_second: 0.0 })
    }
}

impl BatchShare {
    /// Returns the number of this rank's samples in the next step, which is its weight in the
    /// average of gradients.
    pub fn samples(&self) -> u64 {
        self.split.shares()[self.client.rank().0 as usize]
    }

    /// Returns the number of samples of each rank in the next step, in rank order.
    pub fn shares(&self) -> &[u64] {
        self.split.shares()
    }

    /// Ends a step, in which this rank computed for `computed`; returns whether all ranks split the
    /// next step differently.
    ///
    /// The call exchanges three numbers of each rank, which costs about as much as a barrier.
    ///
    /// # Errors
    /// [`StepError`]. When the exchange failed on some ranks alone, their splits may differ from
    /// those of the others, until the next exchange that succeeds makes them equal again.
    pub async fn end_step(&mut self, computed: Span) -> Result<bool, StepError> {
        if self.samples() > 0 && computed > Span::ZERO {
            self.samples_per_second = self.samples() as f64 / computed.as_secs_f64();
        }
        let (ranks, rank) = (self.client.world_size() as usize, self.client.rank().0 as usize);
        // Each rank writes its own entries of three arrays, and zeros elsewhere: sums gather all.
        let own = [
            self.samples_per_second.to_bits(),
            self.split.agreed_digest(),
            self.split.state_digest(),
        ];
        let mut numbers = vec![0; own.len() * ranks];
        for (part, number) in numbers.chunks_mut(ranks).zip(own) {
            part[rank] = number;
        }
        let spec = CollectiveSpec::new(Pattern::AllReduce, ReduceOp::Sum);
        let result = numbers.len() as u64;
        let numbers =
            self.client.run_collective_of_numbers::<_, StepError>(&numbers, result, spec).await?;
        let (speeds, rest) = numbers.split_at(ranks);
        let (agreed, states) = rest.split_at(ranks);
        let speeds: Vec<f64> = speeds.iter().copied().map(f64::from_bits).collect();
        Ok(self.split.handle_exchange(&speeds, agreed, states)?)
    }
}
