//! A rank that runs steps, in whatever world it is told, and attaches again when its gateway is gone.

use super::members_deployment::GatewayDoors;
use super::members_judge::{BucketAverages, MembersJudge};
use super::step_history::{EpochId, RankState, StepPlace};
use crate::collectives::data::SplitMix64;
use crate::{JOB, TOKEN};
use gateway::client::{AttachOptions, Client, GatewayAddress, PostError};
use gateway::host::{Host, VirtualHost};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{Epoch, GatewayId, RankId, Step};
use hier_collectives::post::{Failure, FailureCode};
use std::collections::BTreeSet;
use std::sync::Arc;
use units::Span;

/// 1 MiB: the arena of each rank.
const ARENA: u64 = 1 << 20;
/// 2 buckets: the averages of a step.
const BUCKETS: u64 = 2;
/// 100 ms: the time between two looks at the epoch, and between two attempts to attach.
const LOOK_EVERY: Span = Span::from_ms(100);
/// 600 ms: the longest time that a rank computes before a bucket. So a run has some hundred steps.
const PAUSE_MAX_MS: u64 = 600;
/// 64 elements of a bucket.
const ELEMENTS: u64 = 64;
/// 12: of so many buckets one has a rank that slips. So one step in six is begun again, and of the six or
/// so steps of 10 s, after which the ranks must have done one, hardly ever all.
const SLIPS_ONE_IN: u64 = 12;

/// A rank of a run.
pub(super) struct SteppingRank {
    pub number: u32,
    pub gateway: GatewayId,
    pub doors: GatewayDoors,
    pub host: Arc<VirtualHost>,
    pub judge: Arc<MembersJudge>,
    pub dice: SplitMix64,
    /// Whether it posts a wrong length now and then.
    pub slips: bool,
    pub state: RankState,
}

/// A rank in an epoch.
struct RankEpoch<'c> {
    client: &'c Client,
    judge: Arc<MembersJudge>,
    host: Arc<VirtualHost>,
    rank: u32,
    epoch: EpochId,
    /// The ranks of the epoch, by their numbers in the fabric.
    members: BTreeSet<u32>,
}

impl SteppingRank {
    /// Attaches and runs steps, again and again, until the simulation ends.
    pub async fn run(mut self) {
        loop {
            if let Some(client) = self.attach().await {
                self.work(&client).await;
            }
            self.sleep(LOOK_EVERY).await;
        }
    }

    /// Attaches to the gateway, and waits for an epoch as long as it runs; `None` if it does not.
    async fn attach(&self) -> Option<Client> {
        let door = GatewayAddress::InProcess(self.doors.door(self.gateway)?);
        let options = AttachOptions::new(JOB, TOKEN, self.number, ARENA);
        Client::attach(&door, AttachOptions { gateway_timeout: Span::ZERO, ..options }).await.ok()
    }

    /// Takes part in epochs until the connection ends.
    async fn work(&mut self, client: &Client) {
        while client.disconnect_reason().is_none() {
            let number = client.agree_to_epoch();
            let epoch = self.judge.epoch_now(number);
            let ranks = (0..client.world_size()).map(RankId);
            let members = ranks.filter_map(|rank| Some(client.rank_in_job(rank)?.0)).collect();
            let (judge, host) = (Arc::clone(&self.judge), Arc::clone(&self.host));
            let here = RankEpoch { client, judge, host, rank: self.number, epoch, members };
            if number > Epoch(0) && here.members.contains(&self.number) {
                let begun = self.begin_epoch(&here).await;
                if let Err(failure) = &begun {
                    self.judge.failed(self.place(epoch, false), failure);
                }
                if begun.is_ok() {
                    self.run_steps(&here).await;
                }
            }
            while client.epoch() == number && client.disconnect_reason().is_none() {
                self.sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Agrees on the state with which all ranks go on: that of the ranks which have done most, and of
    /// those, of the ranks whose last step was confirmed in the last epoch.
    ///
    /// # Errors
    /// The ranks could not agree.
    async fn begin_epoch(&mut self, here: &RankEpoch<'_>) -> Result<(), Failure> {
        let committed = here.client.committed();
        let own = self.state;
        let key = own.step << 32 | own.epoch.generation << 16 | own.epoch.number.0;
        let most = here.greatest(&[key]).await?[0];
        let at = self.place(here.epoch, false);
        let gateway = here.client.disconnect_reason().is_none().then_some(self.gateway);
        self.judge.entered(at, gateway, &here.members, committed);
        let (is_ahead, has_most) = (own.step == most >> 32, key == most);
        let told = |is_told: bool, value: u64| if is_told { value } else { 0 };
        let [digest, inverse, inverse_key] = here
            .greatest(&[
                told(has_most, own.digest),
                told(has_most, !own.digest),
                told(is_ahead, !key),
            ])
            .await?[..]
        else {
            panic!("three results");
        };
        if digest != !inverse {
            self.judge.wrong(format!("{at}: ranks differ, of which each has done most"));
        }
        if inverse_key != !most && has_most {
            self.judge.happened("rank ahead with another state");
        }
        let generation = most >> 16 & 0xffff;
        let epoch = EpochId { generation, number: Epoch(most & 0xffff) };
        self.state = RankState { step: most >> 32, epoch, digest };
        self.judge.goes_on(self.place(here.epoch, false), self.state);
        Ok(())
    }

    /// Runs steps until one fails for another reason than a slip. Failures go to the judge.
    async fn run_steps(&mut self, here: &RankEpoch<'_>) {
        let mut is_begun_again = false;
        loop {
            let mut at = self.place(here.epoch, is_begun_again);
            match self.step(&mut at, here).await {
                Ok(()) => {
                    self.state = self.state.after_step(here.epoch, &here.members);
                    self.judge.stepped(at, self.state);
                    is_begun_again = false;
                }
                Err(failure) => {
                    self.judge.failed(at, &failure);
                    if failure.code != FailureCode::Disagreement {
                        return;
                    }
                    is_begun_again = true;
                }
            }
        }
    }

    /// Runs one step: its averages and its commit. All ranks commit a step in which one has slipped, and
    /// begin it again.
    async fn step(&mut self, at: &mut StepPlace, here: &RankEpoch<'_>) -> Result<(), Failure> {
        let mut slipped = None;
        for _ in 0..BUCKETS {
            let pause = Span::from_ms(self.dice.roll() % PAUSE_MAX_MS);
            self.sleep(pause).await;
            let one_in = SLIPS_ONE_IN * here.members.len() as u64;
            let slips = self.slips && self.dice.roll().is_multiple_of(one_in);
            let elements = ELEMENTS + u64::from(slips) * (1 + u64::from(self.number));
            let own_state = ((self.state.digest ^ at.step) & 0xffff) as f32;
            let mut values = vec![own_state; elements as usize];
            values[0] = (1u32 << self.number) as f32;
            match here.average(&values).await {
                Ok(averages) => {
                    let [of_ranks, of_states] = averages;
                    let averages = BucketAverages { of_ranks, of_states, own_state };
                    self.judge.averaged(*at, &here.members, averages);
                }
                Err(failure) if failure.code == FailureCode::Disagreement => {
                    slipped = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
            at.is_begun = true;
        }
        let committed = here.client.commit(Step(at.step)).await;
        match slipped {
            Some(failure) => Err(failure),
            None => committed,
        }
    }

    /// Returns the place of the rank in an epoch.
    fn place(&self, epoch: EpochId, is_begun: bool) -> StepPlace {
        StepPlace { rank: self.number, epoch, step: self.state.step, is_begun }
    }

    async fn sleep(&self, span: Span) {
        self.host.sleep_until(self.host.now() + span).await;
    }
}

impl RankEpoch<'_> {
    /// Returns the greatest of all ranks' numbers at each place.
    async fn greatest(&self, values: &[u64]) -> Result<Vec<u64>, Failure> {
        let bytes = bytemuck::cast_slice(values);
        let result = self.reduce(Dtype::U64, ReduceOp::Max, bytes).await?;
        let numbers = result.chunks_exact(8).map(|bytes| bytes.try_into().expect("8 bytes"));
        Ok(numbers.map(u64::from_le_bytes).collect())
    }

    /// Returns the averages of all ranks' first and last numbers.
    async fn average(&self, values: &[f32]) -> Result<[f32; 2], Failure> {
        let result = self.reduce(Dtype::F32, ReduceOp::Avg, bytemuck::cast_slice(values)).await?;
        let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        Ok([number(&result[..4]), number(&result[result.len() - 4..])])
    }

    /// Reduces a tensor over the world.
    async fn reduce(&self, dtype: Dtype, op: ReduceOp, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let elements = bytes.len() as u64 / dtype.size();
        let mut tensor = self.client.allocate(dtype, elements).expect("room");
        tensor.write(bytes);
        let posted = self.client.all_reduce(tensor, op).await;
        let mut operation = posted.map_err(PostError::into_failure)?;
        let ready = operation.ready().await;
        let result = ready.map(|_| operation.result());
        if result.is_ok() {
            self.judge.has_result(self.rank, self.epoch, self.host.now());
        }
        // It waits for the receipts of others, which may be lost by now.
        let _ = operation.reclaim().await;
        result
    }
}
