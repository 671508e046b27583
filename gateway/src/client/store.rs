//! The store of the job: keys, counters and queues that all ranks share.

use super::client_handle::Client;
use super::connection::{ClientConnection, PendingStoreRequest};
use crate::local::protocol::{ProtocolRequest, STORE_REQUESTS_MAX};
use hier_collectives::store::{
    StoreCommand, StoreFailure, StoreFailureCode, StoreKey, StoreOutcome, StoreQuery, StoreRequest,
    StoreRequestError,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use units::Span;

/// 5 min: how long a request to the store waits for its answer by default, as in PyTorch's stores.
/// After that time the request fails.
pub const STORE_TIMEOUT: Span = Span::from_secs(300);
/// 2 s: how long after the timeout of a request to the store the client still waits for the
/// gateway's answer. Then the request fails, since the gateway does not answer; a change may have
/// been made.
const ANSWER_DELAY_MAX: Span = Span::from_secs(2);

/// 112 requests to the store that wait for a key or an item: the most that a client has under way.
/// Further ones wait here. A gateway takes 128 of a rank, so 16 places are left for changes, which
/// others may be waiting for.
pub(super) const STORE_WAITS_MAX: usize = 112;

/// The store of the job that a client is attached to. Clones share the client's connection.
///
/// Every gateway of the job holds all of it. A change is made once all of them hold it. Reads are
/// answered by the gateway of this rank, as if all requests of all ranks came one after the other.
#[derive(Debug, Clone)]
pub struct Store {
    client: Client,
    timeout: Span,
}

/// Why a request to the store has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store answered: the time was over, too many requests wait, or the change was refused.
    #[error("{0}")]
    Failed(#[from] StoreFailure),
    /// The request is too long. Nothing was sent.
    #[error("{0}")]
    Request(#[from] StoreRequestError),
    /// The connection to the gateway ended. A change may have been made.
    #[error("{0}; a change may have been made")]
    Disconnected(String),
}

impl Client {
    /// Returns a handle on the store that all ranks of the job share. Its requests wait for
    /// [`STORE_TIMEOUT`].
    pub fn store(&self) -> Store {
        Store { client: self.clone(), timeout: STORE_TIMEOUT }
    }
}

impl Store {
    /// Returns a handle on the same store whose requests each wait for `timeout`.
    pub fn with_timeout(&self, timeout: Span) -> Self {
        Self { client: self.client.clone(), timeout }
    }

    /// Sets the value of a key, in place of the one that it had.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.multi_set([(key, value)]).await
    }

    /// Sets the values of several keys in one change, so that nobody sees some of them alone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn multi_set<'a>(
        &self,
        pairs: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<(), StoreError> {
        let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value.to_vec()));
        self.command(StoreCommand::Set(pairs.collect())).await.map(|_| ())
    }

    /// Returns the value of a key, and waits until the key has one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.multi_get([key]).await.map(first_client_store_value)
    }

    /// Returns the values of keys at one moment, once all of them have one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn multi_get<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.query(StoreQuery::Get(client_store_keys(keys))).await.map(client_store_values)
    }

    /// Adds to the number that is the value of a key, 0 at first. Returns the sum.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.command(StoreCommand::Add { key: key.into(), amount }).await.map(client_store_number)
    }

    /// Gives a key the value `desired` if its value is `expected`; an empty `expected` also stands
    /// for a key without a value. Returns the value that the key has then, or `expected` if it has
    /// none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let (expected, desired) = (expected.to_vec(), desired.to_vec());
        let command = StoreCommand::CompareSet { key: key.into(), expected, desired };
        self.command(command).await.map(client_store_values).map(first_client_store_value)
    }

    /// Appends bytes to the value of a key, which is empty at first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn append(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let command = StoreCommand::Append { key: key.into(), bytes: bytes.to_vec() };
        self.command(command).await.map(|_| ())
    }

    /// Waits until all keys exist, with a value or a queue.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn wait<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), StoreError> {
        self.query(StoreQuery::Wait(client_store_keys(keys))).await.map(|_| ())
    }

    /// Returns whether all keys exist now, with a value or a queue.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn check<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<bool, StoreError> {
        let outcome = self.query(StoreQuery::Check(client_store_keys(keys))).await?;
        Ok(outcome == StoreOutcome::Flag(true))
    }

    /// Removes a key with its value and its queue. Returns whether it existed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let outcome = self.command(StoreCommand::Delete(key.into())).await?;
        Ok(outcome == StoreOutcome::Flag(true))
    }

    /// Returns the number of keys that have a value or a queue.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn num_keys(&self) -> Result<i64, StoreError> {
        self.query(StoreQuery::Count).await.map(client_store_number)
    }

    /// Returns the keys with a prefix, in order. Keys that come or go meanwhile may be missing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list_keys(&self, prefix: &str) -> Result<Vec<StoreKey>, StoreError> {
        let mut listed: Vec<StoreKey> = Vec::new();
        loop {
            let after = listed.last().cloned().unwrap_or_default();
            let query = StoreQuery::List { prefix: prefix.into(), after };
            match self.query(query).await? {
                StoreOutcome::Keys { keys, is_last } => {
                    listed.extend(keys);
                    if is_last {
                        return Ok(listed);
                    }
                }
                _ => return Ok(listed),
            }
        }
    }

    /// Adds an item at the end of the queue of a key. Returns the length of the queue.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn queue_push(&self, key: &str, item: &[u8]) -> Result<i64, StoreError> {
        let command = StoreCommand::Push { key: key.into(), item: item.to_vec() };
        self.command(command).await.map(client_store_number)
    }

    /// Takes the first item of the queue of a key, once there is one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let deadline = Instant::now() + self.timeout.duration();
        loop {
            if let Some(item) = self.queue_try_pop(key).await? {
                return Ok(item);
            }
            // Another rank may take the item before this one.
            let left = deadline.saturating_duration_since(Instant::now());
            let query = StoreQuery::QueueLength { key: key.into(), least: 1 };
            self.request(StoreRequest::Query(query), left).await?;
        }
    }

    /// Takes the first item of the queue of a key, if there is one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let outcome = self.command(StoreCommand::Pop(key.into())).await?;
        Ok(client_store_values(outcome).into_iter().next())
    }

    /// Returns the number of items in the queue of a key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn queue_len(&self, key: &str) -> Result<i64, StoreError> {
        let query = StoreQuery::QueueLength { key: key.into(), least: 0 };
        self.query(query).await.map(client_store_number)
    }

    /// Sends a command, which changes the store, and waits for its outcome.
    async fn command(&self, command: StoreCommand) -> Result<StoreOutcome, StoreError> {
        self.request(StoreRequest::Command(command), self.timeout.duration()).await
    }

    /// Sends a query, which reads the store, and waits for its answer within the timeout of this
    /// handle.
    async fn query(&self, query: StoreQuery) -> Result<StoreOutcome, StoreError> {
        self.request(StoreRequest::Query(query), self.timeout.duration()).await
    }

    /// Waits for the place of a request, and for another one among the requests that wait for keys.
    async fn take_store_places(
        &self,
        may_wait: bool,
    ) -> Result<Vec<OwnedSemaphorePermit>, AcquireError> {
        let connection: &ClientConnection = &self.client.connection;
        let mut places = Vec::new();
        if may_wait {
            places.push(Arc::clone(&connection.store_waits).acquire_owned().await?);
        }
        places.push(Arc::clone(&connection.store_places).acquire_owned().await?);
        Ok(places)
    }

    /// Sends a command or query once there is room for it. Then waits for its answer, at most
    /// [`ANSWER_DELAY_MAX`] longer than `timeout`.
    async fn request(
        &self,
        request: StoreRequest,
        timeout: Duration,
    ) -> Result<StoreOutcome, StoreError> {
        request.check()?;
        let connection: &ClientConnection = &self.client.connection;
        let ended = || {
            let why = connection.lock_state().ended.clone();
            StoreError::Disconnected(why.unwrap_or_else(|| "the connection ended".to_owned()))
        };
        let begun = Instant::now();
        let places = self.take_store_places(request.may_wait());
        let places = tokio::time::timeout(timeout, places).await.map_err(|_| {
            let text = format!(
                "at most {STORE_REQUESTS_MAX} requests of this rank to the store are under way, and at \
                 most {STORE_WAITS_MAX} that wait for keys; none ended in time, and nothing was sent"
            );
            StoreFailure { code: StoreFailureCode::TimedOut, text }
        })?;
        let places = places.map_err(|_| ended())?;
        let timeout = timeout.saturating_sub(begun.elapsed());
        let permit = connection.requests.reserve().await.map_err(|_| ended())?;
        let (answer, answered) = oneshot::channel();
        {
            let mut state = connection.lock_state();
            if let Some(why) = &state.ended {
                return Err(StoreError::Disconnected(why.clone()));
            }
            let pending = PendingStoreRequest { answer, _places: places };
            let number = state.add_store_request(pending);
            let timeout_ns = Span::from_ns(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
            permit.send(ProtocolRequest::Store { number, timeout: timeout_ns, request });
        }
        match tokio::time::timeout(timeout + ANSWER_DELAY_MAX.duration(), answered).await {
            Ok(answer) => Ok(answer.map_err(|_| ended())??),
            Err(_) => {
                let text = "the gateway does not answer; is it stopped, or its host overloaded?";
                let (code, text) = (StoreFailureCode::Unconfirmed, text.to_owned());
                Err(StoreFailure { code, text }.into())
            }
        }
    }
}

/// Converts texts to keys of the store.
fn client_store_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<StoreKey> {
    keys.into_iter().map(StoreKey::from).collect()
}

/// Returns the values that an outcome of the store holds; none for an outcome of another kind.
fn client_store_values(outcome: StoreOutcome) -> Vec<Vec<u8>> {
    match outcome {
        StoreOutcome::Values(values) => values,
        _ => Vec::new(),
    }
}

/// Returns the first of some values; an empty one if there is none.
fn first_client_store_value(values: Vec<Vec<u8>>) -> Vec<u8> {
    values.into_iter().next().unwrap_or_default()
}

/// Returns the number that an outcome of the store holds; 0 for an outcome of another kind.
fn client_store_number(outcome: StoreOutcome) -> i64 {
    match outcome {
        StoreOutcome::Number(number) => number,
        _ => 0,
    }
}
