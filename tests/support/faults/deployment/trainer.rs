//! A trainer: it attaches, posts as the rendezvous demands, checks results, and attaches again when
//! its gateway is gone.

use crate::TOKEN;
use crate::collectives::data::SplitMix64;
use crate::faults::deployment::pending::{Outcome, PendingCollectives};
use crate::faults::deployment::rendezvous::{Attempt, NextAction};
use crate::faults::deployment::side_work::{SideWork, post_on};
use crate::faults::deployment::store_work::StoreWork;
use crate::faults::deployment::world::World;
use crate::faults::judge::collective::CollectiveId;
use crate::faults::judge::oracle::Commit;
use gateway::client::{AttachOptions, Client, GatewayAddress};
use gateway::host::{BoxFuture, Host, VirtualHost};
use hier_collectives::ids::{Epoch, Step};
use std::future::Future;
use std::sync::Arc;
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
                    let store = StoreWork {
                        world: Arc::clone(&self.world),
                        host: Arc::clone(&self.host),
                        job: self.job,
                        dice: SplitMix64(self.dice.roll()),
                    };
                    tokio::select! {
                        biased;
                        () = self.work(&client) => {}
                        () = store.run(client.store()) => {}
                    }
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
        let side = SideWork {
            world: Arc::clone(&self.world),
            host: Arc::clone(&self.host),
            client: client.clone(),
            job: self.job,
            attempt: attempt.number,
            rank: self.rank,
        };
        let mut under_way = PendingCollectives::none();
        for index in 0..self.world.scenario.load.in_flight {
            let tag = CollectiveId { job: self.job, attempt: attempt.number, index };
            let pause = self.pause();
            under_way.during(self.sleep(pause)).await;
            // Numbers begin anew in another epoch, where this round is made again.
            if client.agree_to_epoch() != attempt.epoch {
                self.say(|| format!("leaves attempt {}: epoch {}", attempt.number, client.epoch()));
                under_way.all().await;
                return false;
            }
            if !self.post(client, tag, &mut under_way).await {
                under_way.all().await;
                return false;
            }
            // A rank that is gone is missed in an epoch of its job in which it has posted.
            if index == 0 {
                side.begin(&mut under_way).await;
            }
        }
        // Some commit at once, others when they have all results.
        if self.dice.roll().is_multiple_of(2) {
            under_way.add(self.commit(client.clone(), attempt.number));
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

    /// Posts a collective of the job, which is then under way. Returns whether that was possible.
    async fn post(
        &self,
        client: &Client,
        tag: CollectiveId,
        under_way: &mut PendingCollectives,
    ) -> bool {
        let timeout = self.world.scenario.load.timeout;
        match post_on(client, &self.world, tag, self.rank, timeout).await {
            Ok((operation, contribution)) => {
                let (world, rank) = (Arc::clone(&self.world), self.rank);
                under_way.add(Outcome { world, rank, tag, contribution }.wait(operation));
                true
            }
            Err(error) => {
                self.say(|| error.to_string());
                false
            }
        }
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
