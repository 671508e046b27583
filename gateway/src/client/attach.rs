//! Attaching a rank to its gateway, with retries while the gateway starts.

use super::client_handle::Client;
use super::collective::DEFAULT_TIMEOUT;
use super::connection::{Connection, read_events, write_requests};
use super::handover::{ArenaHandover, GatewayAddress, GatewayConnection};
use super::slots::SlotAllocator;
use crate::local::protocol::{
    self, LOCAL_VERSION, Request, Response, Token, read_local_message, write_local_message,
};
use crate::memory::arena::ArenaError;
use hier_collectives::ids::RankId;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use units::Span;

/// 60 s: how long a rank retries by default while no gateway answers; a restart takes less.
/// Tested by `a_trainer_waits_for_a_gateway_that_starts_later`.
pub const GATEWAY_TIMEOUT: Span = Span::from_secs(60);

/// 50 ms: the pause after the first failed attempt to attach; each further pause is twice as long.
const ATTACH_RETRY_PAUSE_MIN: Span = Span::from_ms(50);

/// 2 s: the longest pause between two attempts to attach.
const ATTACH_RETRY_PAUSE_MAX: Span = Span::from_secs(2);

/// 64 requests of one client wait to be written to the gateway at most; further posts and commits
/// wait for room.
const CLIENT_REQUESTS_MAX: usize = 64;

/// The parameters of attaching a rank.
#[derive(Debug, Clone)]
pub struct AttachOptions {
    /// Name of the job.
    pub job: String,
    /// The job's token.
    pub token: Token,
    /// The rank for which to attach.
    pub rank: RankId,
    /// Size of the arena in bytes. Each tensor takes twice its length, in whole cache lines.
    pub arena_bytes: u64,
    /// How long to retry while no gateway answers, or one goes away before the first epoch.
    pub gateway_timeout: Span,
    /// How long to wait for the first epoch, which begins when all gateways have met.
    pub epoch_timeout: Span,
}

/// Why a rank is not attached. Its arena is gone.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No gateway answers: it does not run, or the address is wrong.
    #[error("no gateway answers at {address}: {source}")]
    NoGateway {
        /// The gateway's address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The gateway refused the rank; the text says why.
    #[error("the gateway refused: {0}")]
    Refused(String),
    /// The gateway closed the connection before the first epoch.
    #[error("the gateway went away: {0}")]
    Lost(String),
    /// The system has no memory for the arena, or no descriptor for it or the connection.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The gateways did not meet in time.
    #[error(
        "attached, but no epoch began within {0}: some gateway is missing; see `landbridge status`"
    )]
    NoEpoch(Span),
}

impl AttachOptions {
    /// Makes options for a rank of a job, with [`GATEWAY_TIMEOUT`], and [`DEFAULT_TIMEOUT`] for the
    /// epoch. `arena_bytes` is the size of the arena in bytes.
    pub fn new(job: &str, token: impl Into<Token>, rank: u32, arena_bytes: u64) -> Self {
        Self {
            job: job.to_owned(),
            token: token.into(),
            rank: RankId(rank),
            arena_bytes,
            gateway_timeout: GATEWAY_TIMEOUT,
            epoch_timeout: DEFAULT_TIMEOUT,
        }
    }
}

impl Client {
    /// Attaches a rank, and waits until all gateways have met. Retries while no gateway answers.
    ///
    /// # Errors
    /// [`AttachError`]: the rank is not attached.
    pub async fn attach(
        gateway: &GatewayAddress,
        options: AttachOptions,
    ) -> Result<Self, AttachError> {
        let handover = ArenaHandover::new(gateway, options.arena_bytes)?;
        let mut unanswered_since = Instant::now();
        let (mut deadline, mut pause) = (None, ATTACH_RETRY_PAUSE_MIN);
        loop {
            let lost = match Self::try_attach(&handover, &options, &mut deadline).await {
                Err(error @ AttachError::NoGateway { .. }) => error,
                Err(error @ AttachError::Lost(_)) => {
                    // A gateway that answered has just gone. A process that closes without an
                    // answer is no gateway, and the time counts on.
                    if deadline.is_some() {
                        (unanswered_since, pause) = (Instant::now(), ATTACH_RETRY_PAUSE_MIN);
                    }
                    error
                }
                outcome => return outcome,
            };
            let waited = unanswered_since.elapsed() + pause.duration();
            if waited > options.gateway_timeout.duration() {
                return Err(lost);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(AttachError::NoEpoch(options.epoch_timeout));
            }
            tokio::time::sleep(pause.duration()).await;
            pause = (pause + pause).min(ATTACH_RETRY_PAUSE_MAX);
        }
    }

    /// Attempts to attach once. Sets `deadline`, by which the first epoch must begin, at the first
    /// answer of a gateway.
    async fn try_attach(
        handover: &ArenaHandover<'_>,
        options: &AttachOptions,
        deadline: &mut Option<Instant>,
    ) -> Result<Self, AttachError> {
        let no_gateway = |source: io::Error| match ArenaError::without_descriptor(&source) {
            Some(limit) => AttachError::Memory(limit),
            None => AttachError::NoGateway { address: handover.address(), source },
        };
        let mut connected = handover.connect().await.map_err(no_gateway)?;
        let world_size = send_attach_request(&mut connected, options).await?;
        let connection = start_connection(connected, options, world_size);
        let epoch_timeout = options.epoch_timeout;
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + epoch_timeout.duration());
        let mut settled = connection.settled.subscribe();
        let waiting = settled.wait_for(|settled| *settled);
        match tokio::time::timeout_at(deadline, waiting).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return Err(AttachError::NoEpoch(epoch_timeout)),
        }
        if let Some(why) = connection.lock_state().ended.clone() {
            return Err(AttachError::Lost(why));
        }
        Ok(Self { connection })
    }
}

/// Sends the attach request, and returns the world size that the gateway answers.
async fn send_attach_request(
    connected: &mut GatewayConnection,
    options: &AttachOptions,
) -> Result<u32, AttachError> {
    let request = Request::Attach(protocol::Attach {
        version: LOCAL_VERSION,
        job: options.job.clone(),
        token: options.token,
        rank: options.rank,
        arena_bytes: options.arena_bytes,
    });
    let lost = |error: io::Error| AttachError::Lost(error.to_string());
    write_local_message(&mut connected.stream, &request.encode()).await.map_err(lost)?;
    let answer = read_local_message(&mut connected.stream).await.map_err(lost)?;
    match Response::decode(&answer) {
        Ok(Response::Attached { world_size, .. }) => Ok(world_size),
        Ok(Response::Refused(why)) => Err(AttachError::Refused(why)),
        other => Err(AttachError::Refused(format!("unexpected answer: {other:?}"))),
    }
}

/// Spawns the tasks that read and write the connection of an attached rank.
fn start_connection(
    connected: GatewayConnection,
    options: &AttachOptions,
    world_size: u32,
) -> Arc<Connection> {
    let (requests, written) = mpsc::channel(CLIENT_REQUESTS_MAX);
    let (over, listening) = (CancellationToken::new(), CancellationToken::new());
    let connection = Arc::new(Connection {
        rank: options.rank,
        world_size,
        slots: Arc::new(Mutex::new(SlotAllocator::new(options.arena_bytes))),
        arena: connected.arena,
        requests,
        state: Mutex::default(),
        changed: Notify::new(),
        settled: watch::Sender::new(false),
        over: over.clone(),
        _listening: listening.clone().drop_guard(),
    });
    let (reader, writer) = tokio::io::split(connected.stream);
    let write = write_requests(Arc::downgrade(&connection), writer, written);
    let read = read_events(Arc::downgrade(&connection), reader);
    tokio::spawn(over.run_until_cancelled_owned(write));
    tokio::spawn(listening.run_until_cancelled_owned(read));
    connection
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn a_server_that_closes_every_connection_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listens");
        tokio::spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
        let options = AttachOptions::new("train", [0; 32], 0, 4096);
        let options = AttachOptions { gateway_timeout: Span::from_ms(300), ..options };
        let gateway = GatewayAddress::Socket(path);
        let attaching = Client::attach(&gateway, options);
        let attaching = tokio::time::timeout(Duration::from_secs(60), attaching);
        let error = attaching.await.expect("gives up").expect_err("no gateway");
        assert!(matches!(error, AttachError::Lost(_)), "{error}");
    }
}
