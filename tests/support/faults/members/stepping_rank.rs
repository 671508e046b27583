//! A rank that runs steps, in whatever world it is told.

use super::members_judge::{MembersJudge, StepPlace};
use crate::collectives::data::SplitMix64;
use gateway::client::Client;
use gateway::host::Host;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{Epoch, RankId, Step};
use hier_collectives::post::{Failure, FailureCode};
use std::collections::BTreeSet;
use std::sync::Arc;
use units::Span;

/// 2 buckets: the averages of a step.
const BUCKETS: u64 = 2;
/// 100 ms: the time between two looks at the epoch.
const LOOK_EVERY: Span = Span::from_ms(100);
/// 600 ms: the longest time that a rank computes before a bucket. So a run has some hundred steps.
const PAUSE_MAX_MS: u64 = 600;
/// 64 elements of a bucket.
const ELEMENTS: u64 = 64;

/// A rank of a run.
pub(super) struct SteppingRank {
    pub number: u32,
    pub client: Client,
    pub host: Arc<dyn Host>,
    pub judge: Arc<MembersJudge>,
    pub dice: SplitMix64,
    /// Whether it posts a wrong length now and then.
    pub slips: bool,
}

impl SteppingRank {
    /// Runs steps until the connection ends.
    pub async fn run(mut self) {
        let mut next = 0;
        while self.client.disconnect_reason().is_none() {
            let epoch = self.client.agree_to_epoch();
            let members = self.members();
            if members.contains(&self.number) {
                self.judge.entered(self.number, epoch, &members);
                if let Err(failure) = self.run_epoch(epoch, &members, &mut next).await {
                    let at = StepPlace { rank: self.number, epoch, step: next, is_begun: false };
                    self.judge.failed(at, &failure);
                }
            }
            while self.client.epoch() == epoch && self.client.disconnect_reason().is_none() {
                self.sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Returns the ranks of the world by their numbers in the fabric.
    fn members(&self) -> BTreeSet<u32> {
        let ranks = (0..self.client.world_size()).map(RankId);
        ranks.filter_map(|rank| Some(self.client.rank_in_job(rank)?.0)).collect()
    }

    /// Agrees on the next step, and runs steps until one fails for another reason than a slip. A failure
    /// in a step is reported to the judge.
    ///
    /// # Errors
    /// The ranks could not agree.
    async fn run_epoch(
        &mut self,
        epoch: Epoch,
        members: &BTreeSet<u32>,
        next: &mut u64,
    ) -> Result<(), Failure> {
        *next = self.reduce(*next as f32, ReduceOp::Max, ELEMENTS).await? as u64;
        self.judge.goes_on(self.number, epoch, *next);
        let mut is_begun_again = false;
        loop {
            let place = |is_begun| StepPlace { rank: self.number, epoch, step: *next, is_begun };
            let mut at = place(is_begun_again);
            match self.step(&mut at, members).await {
                Ok(()) => {
                    self.judge.stepped(at);
                    (*next, is_begun_again) = (*next + 1, false);
                }
                Err(failure) => {
                    self.judge.failed(at, &failure);
                    if failure.code != FailureCode::Disagreement {
                        return Ok(());
                    }
                    is_begun_again = true;
                }
            }
        }
    }

    /// Runs one step: its averages and its commit. All ranks commit a step in which one has slipped, and
    /// begin it again.
    async fn step(&mut self, at: &mut StepPlace, members: &BTreeSet<u32>) -> Result<(), Failure> {
        let mut slipped = None;
        for _ in 0..BUCKETS {
            let pause = Span::from_ms(self.dice.roll() % PAUSE_MAX_MS);
            self.sleep(pause).await;
            let slips = self.slips && self.dice.roll().is_multiple_of(12);
            let elements = ELEMENTS + u64::from(slips) * (1 + u64::from(self.number));
            let value = self.number as f32 + at.step as f32;
            match self.reduce(value, ReduceOp::Avg, elements).await {
                Ok(mean) => self.judge.averaged(*at, members, mean),
                Err(failure) if failure.code == FailureCode::Disagreement => {
                    slipped = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
            at.is_begun = true;
        }
        let committed = self.client.commit(Step(at.step)).await;
        match slipped {
            Some(failure) => Err(failure),
            None => committed,
        }
    }

    /// Reduces a value over the world.
    async fn reduce(&self, value: f32, op: ReduceOp, elements: u64) -> Result<f32, Failure> {
        let mut tensor = self.client.allocate(Dtype::F32, elements).expect("room");
        tensor.write_f32(&vec![value; elements as usize]);
        let posted = self.client.all_reduce(tensor, op).await;
        let mut operation = posted.map_err(|error| error.failure)?;
        let ready = operation.ready().await;
        let result = ready.map(|_| operation.result_f32()[0]);
        let _ = operation.reclaim().await;
        result
    }

    async fn sleep(&self, span: Span) {
        self.host.sleep_until(self.host.now() + span).await;
    }
}
