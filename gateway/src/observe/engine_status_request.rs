//! Requests for the status, from the HTTP server's tasks to the engine's task.

use super::fabric_report::FabricReport;
use super::status::{DumpReport, GatewayReport};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A request to the engine, which answers it between two of its events.
#[derive(Debug)]
pub enum StatusRequest {
    /// A request for the status.
    Status(oneshot::Sender<GatewayReport>),
    /// A request for the status, and for what the flight recorders hold at the same moment.
    Dump(oneshot::Sender<DumpReport>),
    /// A request for the fabric in force.
    Fabric(oneshot::Sender<FabricReport>),
}

/// Asks the engine for its status, without ever blocking it.
///
/// Requests go through a channel from the HTTP server to the engine, of `STATUS_REQUESTS_MAX`
/// entries. While it is full, further requests fail.
#[derive(Debug, Clone)]
pub struct EngineStatusHandle {
    requests: mpsc::Sender<StatusRequest>,
}

/// Why there is no status: the engine is busy or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The channel to the engine is full.
    #[error("{STATUS_REQUESTS_MAX} status requests are waiting already")]
    Busy,
    /// The engine did not answer in time.
    #[error("the engine did not answer within {} s", STATUS_ANSWER_TIMEOUT.as_secs())]
    Late,
    /// The engine has ended.
    #[error("the gateway is stopping")]
    Gone,
}

impl EngineStatusHandle {
    /// Makes a handle, and the queue by which the engine receives its requests.
    pub fn new() -> (Self, mpsc::Receiver<StatusRequest>) {
        let (requests, received) = mpsc::channel(STATUS_REQUESTS_MAX);
        (Self { requests }, received)
    }

    /// Requests the gateway's status, which the engine answers within `STATUS_ANSWER_TIMEOUT`.
    ///
    /// # Errors
    /// The engine is busy, late or gone.
    pub async fn request(&self) -> Result<GatewayReport, StatusError> {
        self.request_as(StatusRequest::Status).await
    }

    /// Requests the gateway's status with its flight recorders, as [`Self::request`] does.
    ///
    /// # Errors
    /// The engine is busy, late or gone.
    pub async fn request_dump(&self) -> Result<DumpReport, StatusError> {
        self.request_as(StatusRequest::Dump).await
    }

    /// Requests the fabric in force, as [`Self::request`] does.
    ///
    /// # Errors
    /// The engine is busy, late or gone.
    pub async fn request_fabric(&self) -> Result<FabricReport, StatusError> {
        self.request_as(StatusRequest::Fabric).await
    }

    /// Makes a request of the engine, and awaits its answer.
    async fn request_as<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> StatusRequest,
    ) -> Result<T, StatusError> {
        let (answer, status) = oneshot::channel();
        self.requests.try_send(make(answer)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StatusError::Busy,
            mpsc::error::TrySendError::Closed(_) => StatusError::Gone,
        })?;
        match tokio::time::timeout(STATUS_ANSWER_TIMEOUT, status).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(_)) => Err(StatusError::Gone),
            Err(_) => Err(StatusError::Late),
        }
    }
}

/// 8 status requests: the most that wait for the engine's task, as scrapers are few. One more fails
/// as busy.
/// Tested by `an_engine_that_does_not_answer_is_given_up`.
const STATUS_REQUESTS_MAX: usize = 8;

/// 2 s: how long a status request waits for the engine's task, which answers many times a second.
/// After that time the request fails as late.
const STATUS_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
