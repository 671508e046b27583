//! A global batch that all ranks split alike, and anew as their speeds drift.

use super::{ArenaFull, Client, Failure};
use hier_collectives::batch::{BatchError, BatchSplit};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use units::Span;

/// This rank's part of a global batch, step by step. All ranks make one alike, and end the same
/// steps. See [`Client::batch_share`].
pub struct BatchShare {
    client: Client,
    split: BatchSplit,
    /// This rank's speed when it last had samples, in samples per second; 0 before that.
    speed: f64,
}

/// Why speeds could not be exchanged. The split is as it was.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// No room for a number of each rank. The caller's fault.
    #[error(transparent)]
    ArenaFull(#[from] ArenaFull),
    /// The exchange failed, as any collective may; see [`BatchShare::end_step`].
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A rank was told a time that gives no speed.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl Client {
    /// Splits a global batch in whole samples among all ranks: at first by `speeds`, such as the
    /// fabric declares, in any unit, and within `limits`, such as what each rank's memory holds.
    ///
    /// # Errors
    /// [`BatchError`], naming the first rank at fault.
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
        Ok(BatchShare { client: self.clone(), split, speed: 0.0 })
    }
}

impl BatchShare {
    /// This rank's samples of the next step. An average of gradients is weighted by it.
    pub fn samples(&self) -> u64 {
        self.split.shares()[self.client.rank().0 as usize]
    }

    /// Every rank's samples of the next step.
    pub fn shares(&self) -> &[u64] {
        self.split.shares()
    }

    /// The step is over, and this rank computed for so long: a collective of a few numbers for
    /// each rank, which costs about what a barrier does. True if the next step is split in another
    /// way, on all ranks alike. Where it failed on some and not on others, they may split unlike,
    /// until the next that succeeds splits anew on all of them.
    ///
    /// # Errors
    /// [`StepError`].
    pub async fn end_step(&mut self, computed: Span) -> Result<bool, StepError> {
        if self.samples() > 0 && computed > Span::ZERO {
            self.speed = self.samples() as f64 / computed.as_secs_f64();
        }
        let (ranks, rank) = (self.client.world_size() as usize, self.client.rank().0 as usize);
        // Each rank's words at its place of each part, and nothing anywhere else.
        let mine = [self.speed.to_bits(), self.split.agreed(), self.split.state()];
        let mut words = vec![0; mine.len() * ranks];
        for (part, word) in words.chunks_mut(ranks).zip(mine) {
            part[rank] = word;
        }
        let mut tensor = self.client.allocate(Dtype::I64, words.len() as u64)?;
        tensor.write(bytemuck::cast_slice(&words));
        let posted = self.client.all_reduce(tensor, ReduceOp::Sum).await;
        let mut operation = posted.map_err(|error| error.failure)?;
        operation.ready().await?;
        let words: Vec<u64> = bytemuck::pod_collect_to_vec(&operation.result());
        operation.reclaim().await?;
        let (speeds, names) = words.split_at(ranks);
        let (agreed, states) = names.split_at(ranks);
        let speeds: Vec<f64> = speeds.iter().copied().map(f64::from_bits).collect();
        Ok(self.split.handle_exchange(&speeds, agreed, states)?)
    }
}
