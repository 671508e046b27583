//! A trainer: it attaches, posts as the rendezvous demands, checks results, and attaches again when
//! its gateway is gone.

use crate::TOKEN;
use crate::collectives::data::SplitMix64;
use crate::faults::deployment::rendezvous::{Attempt, NextAction};
use crate::faults::deployment::world::World;
use crate::faults::judge::collective::CollectiveId;
use crate::faults::judge::oracle::Commit;
use gateway::client::{
    AttachOptions, Client, CollectiveSpec, GatewayAddress, Operation, PostError,
};
use gateway::host::{BoxFuture, Host, VirtualHost};
use hier_collectives::ids::{Epoch, Step};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use units::Span;

/// One process of a rank.
pub(in crate::faults) struct Trainer {
    pub world: Arc<World>,
    pub host: Arc<VirtualHost>,
    pub job: usize,
    pub rank: u32,
    pub dice: SplitMix64,
    /// The last epoch in which it took part since it attached.
    pub heard_of: Epoch,
}

/// 60 s: the longest time that a trainer waits for an epoch before it attaches again.
const PATIENCE: Span = Span::from_secs(60);
/// 50 ms: the first pause of a trainer between attempts to attach; it doubles each time.
const BACKOFF_MIN: Span = Span::from_ms(50);
/// 2 s: the longest pause of a trainer between attempts to attach.
const BACKOFF_MAX: Span = Span::from_secs(2);
/// 100 ms: the interval at which a waiting trainer asks the rendezvous of its job what to do next.
const ASK_EVERY: Span = Span::from_ms(100);

impl Trainer {
    /// Runs until all is done.
    pub async fn run(mut self) {
        let mut pause = BACKOFF_MIN;
        while !self.rendezvous().is_over() {
            match self.attach().await {
                Ok(client) => {
                    pause = BACKOFF_MIN;
                    self.heard_of = Epoch(0);
                    self.work(&client).await;
                }
                Err(why) => {
                    self.say(|| why);
                    self.sleep(pause).await;
                    pause = (pause + pause).min(BACKOFF_MAX);
                }
            }
        }
    }

    async fn attach(&self) -> Result<Client, String> {
        let way = GatewayAddress::InProcess(
            self.world.knocker(self.job, self.rank).ok_or("no gateway to attach to")?,
        );
        let arena = self.world.scenario.load.arena().get();
        let job = self.world.scenario.shape.jobs[self.job].0;
        // A door leads to one life of a gateway: there is nobody to try again with behind it.
        let attach = AttachOptions {
            epoch_timeout: PATIENCE,
            gateway_timeout: Span::ZERO,
            ..AttachOptions::new(job, TOKEN, self.rank, arena)
        };
        let attached = Client::attach(&way, attach).await.map_err(|error| error.to_string())?;
        self.say(|| format!("attached, epoch {}", attached.epoch()));
        Ok(attached)
    }

    /// Takes part until all is done or the connection is lost.
    async fn work(&mut self, client: &Client) {
        loop {
            if let Some(why) = client.disconnect_reason() {
                self.world.oracle.detached(self.job, self.rank, &why, self.host.now());
                return self.say(|| why);
            }
            match self.rendezvous().ask(self.rank, client.epoch(), self.host.now()) {
                NextAction::End => return,
                NextAction::Wait => self.sleep(ASK_EVERY).await,
                NextAction::Go(attempt) => {
                    let good = self.attempt(client, attempt).await;
                    self.world.ended(self.job, self.rank, attempt, good);
                }
            }
        }
    }

    /// Posts all collectives of a round, then waits for all of them and commits them as a step.
    async fn attempt(&mut self, client: &Client, attempt: Attempt) -> bool {
        if self.heard_of < attempt.epoch {
            self.heard_of = attempt.epoch;
            let step = client.committed().map(|step| step.0);
            self.world.oracle.knows(self.job, self.rank, attempt.epoch, step);
        }
        let mut under_way = PendingCollectives { waiting: vec![], good: true };
        for index in 0..self.world.scenario.load.in_flight {
            let tag = CollectiveId { job: self.job, attempt: attempt.number, index };
            let pause = self.pause();
            under_way.during(self.sleep(pause)).await;
            // Numbers begin anew in another epoch, where this round is made again.
            if client.epoch() != attempt.epoch {
                self.say(|| format!("leaves attempt {}: epoch {}", attempt.number, client.epoch()));
                under_way.all().await;
                return false;
            }
            match self.post(client, tag).await {
                Ok((operation, contribution)) => {
                    let (world, rank) = (Arc::clone(&self.world), self.rank);
                    let waiting = Outcome { world, rank, tag, contribution };
                    under_way.waiting.push(Box::pin(waiting.wait(operation)));
                }
                Err(error) => {
                    self.say(|| error.to_string());
                    under_way.all().await;
                    return false;
                }
            }
        }
        // Some commit at once, others when they have all results.
        if self.dice.roll().is_multiple_of(2) {
            let commit = Box::pin(self.commit(client.clone(), attempt.number));
            under_way.waiting.push(commit);
            return under_way.all().await;
        }
        under_way.all().await & self.commit(client.clone(), attempt.number).await
    }

    /// Commits an attempt. Returns whether every region has it.
    fn commit(&self, client: Client, attempt: u64) -> impl Future<Output = bool> + Send + 'static {
        let (world, host) = (Arc::clone(&self.world), Arc::clone(&self.host));
        let (job, rank) = (self.job, self.rank);
        async move {
            let begun = host.now();
            let timeout = world.scenario.load.timeout;
            let outcome = client.commit_with(Step(attempt), timeout).await;
            let heard = outcome.as_ref().copied();
            world.oracle.committed(Commit { job, attempt, rank }, heard, begun, host.now());
            world.say(job, rank, || match &outcome {
                Ok(()) => format!("step {attempt} is complete in every region"),
                Err(failure) => failure.to_string(),
            });
            outcome.is_ok()
        }
    }

    async fn post(
        &self,
        client: &Client,
        tag: CollectiveId,
    ) -> Result<(Operation, Vec<u8>), PostError> {
        let oracle = &self.world.oracle;
        let shape = oracle.shape(tag);
        let tensor = client.allocate(shape.dtype, shape.elements);
        let mut tensor = tensor.expect("room for a round; the last one's slots came back");
        let contribution = oracle.contribution(tag, self.rank);
        tensor.write(&contribution);
        oracle.posted(tag, self.rank, self.host.now());
        let spec = CollectiveSpec {
            pattern: shape.pattern,
            op: shape.op,
            weight: oracle.weight(tag, self.rank),
            timeout: self.world.scenario.load.timeout,
        };
        let operation = client.post(tensor, spec).await?;
        self.say(|| format!("posts collective {}: {shape}", operation.sequence()));
        Ok((operation, contribution))
    }

    /// Returns the pause before a post, since ranks are seldom ready at the same time.
    fn pause(&mut self) -> Span {
        match self.dice.roll() % 10 {
            0..=5 => Span::ZERO,
            6..=8 => Span::from_ms(self.dice.roll() % 100),
            _ => Span::from_ms(self.dice.roll() % 800),
        }
    }

    fn rendezvous(&self) -> &crate::faults::deployment::rendezvous::Rendezvous {
        &self.world.rendezvous[self.job]
    }

    fn sleep(&self, span: Span) -> BoxFuture<()> {
        match span {
            Span::ZERO => Box::pin(std::future::ready(())),
            _ => self.host.sleep_until(self.host.now() + span),
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        self.world.say(self.job, self.rank, what);
    }
}

/// A posted collective of a rank.
struct Outcome {
    world: Arc<World>,
    rank: u32,
    tag: CollectiveId,
    contribution: Vec<u8>,
}

impl Outcome {
    /// Waits until the slots are free again. Returns whether there was a result.
    async fn wait(self, mut operation: Operation) -> bool {
        let Self { world, rank, tag, contribution } = self;
        let sequence = operation.sequence();
        let say = |what: &str| {
            world.say(tag.job, rank, || format!("collective {sequence}: {what}"));
        };
        let ready = operation.ready().await;
        let result = match &ready {
            Ok(_) => Ok(operation.result()),
            Err(failure) => Err(failure),
        };
        world.oracle.completed(tag, rank, result, world.now());
        match &ready {
            Ok(_) => say("result ready"),
            // Most begin with the collective.
            Err(failure) => world.say(tag.job, rank, || failure.to_string()),
        }
        if let Ok(mut tensor) = operation.reclaim().await {
            let intact = tensor.read() == contribution;
            world.oracle.freed(tag, rank, intact, world.now());
            say("slots free");
            // What a trainer may do from now on.
            tensor.write(&vec![0xa5; contribution.len()]);
        }
        ready.is_ok()
    }
}

/// Collectives that a rank waits for, and whether all that have ended were good.
struct PendingCollectives {
    waiting: Vec<BoxFuture<bool>>,
    good: bool,
}

impl PendingCollectives {
    /// Ready once nothing is in flight.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waiting.retain_mut(|one| match one.as_mut().poll(context) {
            Poll::Ready(good) => {
                self.good &= good;
                false
            }
            Poll::Pending => true,
        });
        if self.waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits for `pause`, and notes the collectives that end meanwhile.
    async fn during(&mut self, mut pause: BoxFuture<()>) {
        std::future::poll_fn(|context| {
            let _ = self.poll(context);
            pause.as_mut().poll(context)
        })
        .await;
    }

    async fn all(mut self) -> bool {
        std::future::poll_fn(|context| self.poll(context)).await;
        self.good
    }
}
