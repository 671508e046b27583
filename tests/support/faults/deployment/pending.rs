//! Operations that a rank waits for: their outcomes go to the oracle.

use crate::faults::deployment::world::World;
use crate::faults::judge::collective::CollectiveId;
use gateway::client::Operation;
use gateway::host::BoxFuture;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A posted collective of a rank.
pub(super) struct Outcome {
    pub world: Arc<World>,
    pub rank: u32,
    pub tag: CollectiveId,
    pub contribution: Vec<u8>,
}

impl Outcome {
    /// Waits until the slots are free again. Returns whether there was a result.
    pub async fn wait(self, mut operation: Operation) -> bool {
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
pub(super) struct PendingCollectives {
    waiting: Vec<BoxFuture<bool>>,
    good: bool,
}

impl PendingCollectives {
    /// Returns the operations of a rank that has posted nothing.
    pub fn none() -> Self {
        Self { waiting: vec![], good: true }
    }

    /// Adds an operation, which tells at its end whether it was good.
    pub fn add(&mut self, operation: impl Future<Output = bool> + Send + 'static) {
        self.waiting.push(Box::pin(operation));
    }

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

    /// Waits for `other`, and notes the collectives that end meanwhile.
    pub async fn during<T>(&mut self, mut other: BoxFuture<T>) -> T {
        std::future::poll_fn(|context| {
            let _ = self.poll(context);
            other.as_mut().poll(context)
        })
        .await
    }

    /// Waits for all of them; returns whether all were good.
    pub async fn all(mut self) -> bool {
        std::future::poll_fn(|context| self.poll(context)).await;
        self.good
    }
}
