//! Attaching: how a gateway is reached, tried again, and heard.

use super::slots::Slots;
use super::{Client, DEFAULT_TIMEOUT, Inner};
use crate::local::listener::{Duplex, InProcessConnector, connect_unix};
use crate::local::protocol::{
    self, LOCAL_VERSION, Request, Response, Token, read_message, write_message,
};
use crate::memory::arena::{Arena, ArenaError};
use hier_collectives::ids::RankId;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use units::Span;

/// How long a rank tries again while no gateway answers, unless it says otherwise: a gateway
/// that starts again is back by then.
pub const GATEWAY_PATIENCE: Span = Span::from_secs(60);

/// Pauses between tries: from this, doubling,
const RETRY_MIN: Span = Span::from_ms(50);
/// to this.
const RETRY_MAX: Span = Span::from_secs(2);
/// Posts and commits on their way to the gateway; who has more waits.
const REQUESTS_MAX: usize = 64;

/// How a gateway is reached.
#[derive(Debug, Clone)]
pub enum Way {
    /// Its Unix socket.
    Socket(PathBuf),
    /// A door in this process.
    InProcess(InProcessConnector),
    /// A door in this process, with memory that folds back on itself: for simulations of sizes
    /// and times, which look at no value.
    Folded(InProcessConnector),
}

/// What a trainer says of itself.
#[derive(Debug, Clone)]
pub struct Attach {
    /// The job.
    pub job: String,
    /// The job's token.
    pub token: Token,
    /// The rank it speaks for.
    pub rank: RankId,
    /// Memory for contributions and results, in bytes.
    pub arena_bytes: u64,
    /// How long to try again while no gateway answers, or one goes away before the first epoch.
    pub gateway_patience: Span,
    /// How long to wait for the first epoch, in which all gateways have met.
    pub patience: Span,
}

/// Why a trainer is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nothing answers.
    #[error("no gateway answers at {way}: {source}")]
    NoGateway {
        /// Where.
        way: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The gateway refused.
    #[error("the gateway refused: {0}")]
    Refused(String),
    /// The gateway went away before the first epoch.
    #[error("the gateway went away: {0}")]
    Lost(String),
    /// No memory for the arena.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The gateways have not met.
    #[error(
        "attached, but no epoch began within {0}: some gateway is missing; see `landbridge status`"
    )]
    NoEpoch(Span),
}

impl Attach {
    /// For a rank of a job, with [`GATEWAY_PATIENCE`], and [`DEFAULT_TIMEOUT`] for the epoch.
    pub fn new(job: &str, token: impl Into<Token>, rank: u32, arena_bytes: u64) -> Self {
        let (job, token, rank) = (job.to_owned(), token.into(), RankId(rank));
        let (gateway_patience, patience) = (GATEWAY_PATIENCE, DEFAULT_TIMEOUT);
        Self { job, token, rank, arena_bytes, gateway_patience, patience }
    }
}

impl Client {
    /// Attaches, and waits until all gateways have met.
    ///
    /// # Errors
    /// [`AttachError`]: nothing is attached then.
    pub async fn attach(way: &Way, attach: Attach) -> Result<Self, AttachError> {
        let handover = Handover::of(way, attach.arena_bytes)?;
        let mut gone_since = Instant::now();
        let (mut deadline, mut pause) = (None, RETRY_MIN);
        loop {
            let lost = match Self::try_attach(&handover, &attach, &mut deadline).await {
                Err(error @ AttachError::NoGateway { .. }) => error,
                Err(error @ AttachError::Lost(_)) => {
                    // One that let us in was there until now; whatever else closes is none.
                    if deadline.is_some() {
                        (gone_since, pause) = (Instant::now(), RETRY_MIN);
                    }
                    error
                }
                outcome => return outcome,
            };
            if gone_since.elapsed() + pause.duration() > attach.gateway_patience.duration() {
                return Err(lost);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(AttachError::NoEpoch(attach.patience));
            }
            tokio::time::sleep(pause.duration()).await;
            pause = (pause + pause).min(RETRY_MAX);
        }
    }

    /// `deadline` of the first epoch counts from when a gateway first answered.
    async fn try_attach(
        handover: &Handover<'_>,
        attach: &Attach,
        deadline: &mut Option<Instant>,
    ) -> Result<Self, AttachError> {
        let (arena, mut stream) = handover.connect().await?;
        let request = Request::Attach(protocol::Attach {
            version: LOCAL_VERSION,
            job: attach.job.clone(),
            token: attach.token,
            rank: attach.rank,
            arena_bytes: attach.arena_bytes,
        });
        let lost = |error: io::Error| AttachError::Lost(error.to_string());
        write_message(&mut stream, &request.encode()).await.map_err(lost)?;
        let answer = read_message(&mut stream).await.map_err(lost)?;
        let world_size = match Response::decode(&answer) {
            Ok(Response::Attached { world_size, .. }) => world_size,
            Ok(Response::Refused(why)) => return Err(AttachError::Refused(why)),
            other => return Err(AttachError::Refused(format!("unexpected answer: {other:?}"))),
        };
        let (requests, written) = mpsc::channel(REQUESTS_MAX);
        let (over, listening) = (CancellationToken::new(), CancellationToken::new());
        let inner = Arc::new(Inner {
            rank: attach.rank,
            world_size,
            slots: Arc::new(Mutex::new(Slots::new(attach.arena_bytes))),
            arena,
            requests,
            state: Mutex::default(),
            changed: Notify::new(),
            settled: watch::Sender::new(false),
            over: over.clone(),
            _listening: listening.clone().drop_guard(),
        });
        let (reader, writer) = tokio::io::split(stream);
        let speak = write_requests(Arc::downgrade(&inner), writer, written);
        let listen = read_events(Arc::downgrade(&inner), reader);
        tokio::spawn(over.run_until_cancelled_owned(speak));
        tokio::spawn(listening.run_until_cancelled_owned(listen));
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + attach.patience.duration());
        let mut settled = inner.settled.subscribe();
        let waiting = settled.wait_for(|settled| *settled);
        match tokio::time::timeout_at(deadline, waiting).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return Err(AttachError::NoEpoch(attach.patience)),
        }
        if let Some(why) = inner.lock().ended.clone() {
            return Err(AttachError::Lost(why));
        }
        Ok(Self { inner })
    }
}

/// A trainer's memory, and how it is handed over.
enum Handover<'w> {
    /// Its file, to a gateway in another process.
    Memfd(&'w Path, Arc<Arena>, OwnedFd),
    /// Itself.
    InProcess(&'w InProcessConnector, Arc<Arena>),
}

impl<'w> Handover<'w> {
    fn of(way: &'w Way, bytes: u64) -> Result<Self, ArenaError> {
        match way {
            Way::Socket(path) => {
                let (arena, memfd) = Arena::create_memfd(bytes)?;
                Ok(Self::Memfd(path, arena, memfd))
            }
            Way::InProcess(knocker) => Ok(Self::InProcess(knocker, Arena::anonymous(bytes)?)),
            Way::Folded(knocker) => Ok(Self::InProcess(knocker, Arena::folded(bytes)?)),
        }
    }

    async fn connect(&self) -> Result<(Arc<Arena>, Box<dyn Duplex>), AttachError> {
        let no_gateway = |way: String| |source| AttachError::NoGateway { way, source };
        match self {
            Self::Memfd(path, arena, memfd) => {
                let stream = connect_unix(path, memfd).await;
                let stream = stream.map_err(no_gateway(path.display().to_string()))?;
                Ok((Arc::clone(arena), Box::new(stream)))
            }
            Self::InProcess(knocker, arena) => {
                let stream = knocker.connect(Arc::clone(arena)).await;
                let stream = stream.map_err(no_gateway("the in-process door".to_owned()))?;
                Ok((Arc::clone(arena), stream))
            }
        }
    }
}

async fn write_requests(
    inner: Weak<Inner>,
    mut writer: WriteHalf<Box<dyn Duplex>>,
    mut requests: mpsc::Receiver<Request>,
) {
    while let Some(request) = requests.recv().await {
        if let Err(error) = write_message(&mut writer, &request.encode()).await
            && let Some(inner) = inner.upgrade()
        {
            return inner.end(&error.to_string());
        }
    }
}

async fn read_events(inner: Weak<Inner>, mut reader: ReadHalf<Box<dyn Duplex>>) {
    let why = loop {
        let response = match read_message(&mut reader).await {
            Ok(bytes) => Response::decode(&bytes),
            Err(error) => break format!("connection to the gateway ended: {error}"),
        };
        let Some(inner) = inner.upgrade() else { return };
        match response {
            Ok(Response::Event(event)) => inner.handle(event),
            Ok(Response::Refused(why)) => break why,
            Ok(Response::Attached { .. }) => break "attached twice".to_owned(),
            Err(error) => break format!("the gateway sent what is no message: {error}"),
        }
    };
    if let Some(inner) = inner.upgrade() {
        inner.end(&why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn who_closes_each_time_is_no_gateway() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listens");
        tokio::spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
        let attach = Attach::new("train", [0; 32], 0, 4096);
        let attach = Attach { gateway_patience: Span::from_ms(300), ..attach };
        let way = Way::Socket(path);
        let attaching = Client::attach(&way, attach);
        let attaching = tokio::time::timeout(Duration::from_secs(60), attaching);
        let error = attaching.await.expect("gives up").expect_err("no gateway");
        assert!(matches!(error, AttachError::Lost(_)), "{error}");
    }
}
