//! The requests of one rank to the store of its job, one after the other.

use crate::collectives::data::SplitMix64;
use crate::faults::deployment::world::World;
use gateway::client::{Store, StoreError};
use gateway::host::{Host, VirtualHost};
use hier_collectives::store::{
    StoreCommand, StoreFailureCode, StoreKey, StoreOutcome, StoreQuery, StoreRequest,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use units::Span;

/// 20 s: the time that a request to the store may take.
const STORE_TIMEOUT: Span = Span::from_secs(20);
/// 3 s: the longest pause of a rank between two requests to the store.
const PAUSE_MS_MAX: u64 = 3_000;

/// The requests of one rank while it is attached.
pub(super) struct StoreWork {
    pub world: Arc<World>,
    pub host: Arc<VirtualHost>,
    pub job: usize,
    pub dice: SplitMix64,
}

impl StoreWork {
    /// Sends requests until the connection ends.
    pub async fn run(mut self, store: Store) {
        let store = store.with_timeout(STORE_TIMEOUT);
        loop {
            let pause = Span::from_ms(100 + self.dice.roll() % PAUSE_MS_MAX);
            self.host.sleep_until(self.host.now() + pause).await;
            let request = self.draw();
            let (oracle, called) = (&self.world.oracle, self.host.now());
            let number = oracle.store_called(self.job, &request, called);
            let outcome = carry_out(&store, &request).await;
            let now = self.host.now();
            match outcome {
                Ok(outcome) => oracle.store_answered(self.job, number, outcome, now),
                Err(StoreError::Failed(failure)) => {
                    let unknown = failure.code == StoreFailureCode::Unconfirmed;
                    if !unknown {
                        oracle.store_unchanged(self.job, number);
                    }
                    // A query may wait for a key that nobody sets.
                    let waits = matches!(request, StoreRequest::Query(_))
                        && failure.code == StoreFailureCode::TimedOut;
                    let calm = called.ns() >= self.world.calm_from.load(Ordering::Relaxed);
                    let expected = unknown && !calm && !self.world.scenario.faults.is_empty();
                    if !expected && !waits {
                        oracle.wrong(format!("job {}: {request:?}: {failure}", self.job));
                    }
                }
                Err(StoreError::Disconnected(_)) => return std::future::pending().await,
                Err(error) => oracle.wrong(format!("job {}: {request:?}: {error}", self.job)),
            }
        }
    }

    /// Draws a request about one key; there are keys for values, for numbers and for queues.
    fn draw(&mut self) -> StoreRequest {
        let generation = self.world.oracle.store_generation(self.job);
        let key = |kind: &str| -> StoreKey { format!("{kind}{generation}").into_bytes() };
        let value = (self.dice.roll() % 4).to_string().into_bytes();
        let expected = (self.dice.roll() % 4).to_string().into_bytes();
        let command = match self.dice.roll() % 12 {
            0 | 1 => StoreCommand::Set(vec![(key("value"), value)]),
            2 => StoreCommand::CompareSet { key: key("value"), expected, desired: value },
            3 => StoreCommand::Append { key: key("value"), bytes: value },
            4 => StoreCommand::Delete(key("value")),
            5 | 6 => StoreCommand::Add { key: key("number"), amount: 1 },
            7 => StoreCommand::Push { key: key("queue"), item: value },
            8 => StoreCommand::Pop(key("queue")),
            9 => return StoreRequest::Query(StoreQuery::Get(vec![key("value")])),
            10 => return StoreRequest::Query(StoreQuery::Check(vec![key("value")])),
            _ => {
                let (key, least) = (key("queue"), 0);
                return StoreRequest::Query(StoreQuery::QueueLength { key, least });
            }
        };
        StoreRequest::Command(command)
    }
}

/// Sends a request about one key and returns its outcome.
async fn carry_out(store: &Store, request: &StoreRequest) -> Result<StoreOutcome, StoreError> {
    let text = |key: &StoreKey| String::from_utf8_lossy(key).into_owned();
    let values = |value: Vec<u8>| StoreOutcome::Values(vec![value]);
    Ok(match request {
        StoreRequest::Command(StoreCommand::Set(pairs)) => {
            let (key, value) = &pairs[0];
            store.set(&text(key), value).await.map(|()| StoreOutcome::Done)?
        }
        StoreRequest::Command(StoreCommand::Add { key, amount }) => {
            StoreOutcome::Number(store.add(&text(key), *amount).await?)
        }
        StoreRequest::Command(StoreCommand::CompareSet { key, expected, desired }) => {
            values(store.compare_set(&text(key), expected, desired).await?)
        }
        StoreRequest::Command(StoreCommand::Append { key, bytes }) => {
            store.append(&text(key), bytes).await.map(|()| StoreOutcome::Done)?
        }
        StoreRequest::Command(StoreCommand::Delete(key)) => {
            StoreOutcome::Flag(store.delete_key(&text(key)).await?)
        }
        StoreRequest::Command(StoreCommand::Push { key, item }) => {
            StoreOutcome::Number(store.queue_push(&text(key), item).await?)
        }
        StoreRequest::Command(StoreCommand::Pop(key)) => {
            StoreOutcome::Values(store.queue_try_pop(&text(key)).await?.into_iter().collect())
        }
        StoreRequest::Query(StoreQuery::Get(keys)) => values(store.get(&text(&keys[0])).await?),
        StoreRequest::Query(StoreQuery::Check(keys)) => {
            StoreOutcome::Flag(store.check([text(&keys[0]).as_str()]).await?)
        }
        StoreRequest::Query(StoreQuery::QueueLength { key, .. }) => {
            StoreOutcome::Number(store.queue_len(&text(key)).await?)
        }
        StoreRequest::Query(_) => unreachable!("not drawn"),
    })
}
