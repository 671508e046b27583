//! Requests for the status, from the HTTP server's tasks to the engine's task.

use super::status::GatewayReport;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A request to the engine, which answers it between two of its events.
pub type StatusRequest = oneshot::Sender<GatewayReport>;

/// Asks the engine for its status, without ever blocking it.
///
/// Requests go through a channel from the HTTP server to the engine, of `REQUESTS_MAX` entries.
/// While it is full, further requests fail.
#[derive(Debug, Clone)]
pub struct StatusHandle {
    requests: mpsc::Sender<StatusRequest>,
}

/// Why there is no status: the engine is busy or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The channel to the engine is full.
    #[error("{REQUESTS_MAX} status requests are waiting already")]
    Busy,
    /// The engine did not answer in time.
    #[error("the engine did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Late,
    /// The engine has ended.
    #[error("the gateway is stopping")]
    Gone,
}

impl StatusHandle {
    /// A handle, and the requests that the engine receives from it.
    pub fn new() -> (Self, mpsc::Receiver<StatusRequest>) {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        (Self { requests }, received)
    }

    /// The gateway's status, if the engine answers within `ANSWER_TIMEOUT`.
    ///
    /// # Errors
    /// The engine is busy or gone.
    pub async fn request(&self) -> Result<GatewayReport, StatusError> {
        let (answer, status) = oneshot::channel();
        self.requests.try_send(answer).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StatusError::Busy,
            mpsc::error::TrySendError::Closed(_) => StatusError::Gone,
        })?;
        match tokio::time::timeout(ANSWER_TIMEOUT, status).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(_)) => Err(StatusError::Gone),
            Err(_) => Err(StatusError::Late),
        }
    }
}

/// 8 status requests wait for the engine at most: scrapers are few. Tested by
/// `an_engine_that_does_not_answer_is_given_up`.
const REQUESTS_MAX: usize = 8;

/// 2 s: how long a request waits for the engine, which answers many times a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
