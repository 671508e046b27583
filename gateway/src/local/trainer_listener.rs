//! Listeners for the connections of trainers and operators, and the client's end of each.
//!
//! In production a connection is a Unix socket whose first byte carries the memfd of the arena;
//! [`super::socket`] listens there. A trainer on another host connects with TLS, and shares no
//! memory: [`super::remote`] listens there. In a simulation it is a pipe in memory, and the arena
//! itself is handed over. [`super::local_server`] accepts, [`crate::client`] connects.

use crate::access::{
    SocketAccessError, TrustedSocketUsers, check_trusted_socket_folder, check_trusted_socket_peer,
    denied_trusted_socket,
};
use crate::host::BoxFuture;
use crate::memory::arena::{Arena, ArenaError};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc};
use units::Span;

/// 1,000 retries, 10 s with pauses of 10 ms ([`CONNECT_RETRY_PAUSE`]): a client makes no more while
/// the backlog of a gateway's Unix socket is full. After the last retry the client fails to
/// connect.
/// Tested by `ten_thousand_silent_connections_keep_no_trainer_out`.
const CONNECT_RETRIES_MAX: usize = 1000;
/// 10 ms: pause between two attempts of a client to connect to a gateway's Unix socket whose
/// backlog is full. The system does not tell when there is room again.
const CONNECT_RETRY_PAUSE: Span = Span::from_ms(10);
/// 64 connections: the most that wait until a listener in the same process accepts them. A further
/// connector waits for room. The number is chosen.
const PENDING_ACCEPTS_MAX: usize = 64;
/// 64 KiB, as the longest message: length of the buffer for each direction of an in-process
/// connection between trainer and gateway. A writer waits while the buffer is full.
const IN_PROCESS_PIPE_BYTES: usize = 1 << 16;

/// A stream in both directions: a Unix socket or a pipe in memory.
pub trait TrainerStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> TrainerStream for T {}

/// A connection whose first byte has arrived.
pub struct AcceptedConnection {
    /// The stream after the first byte.
    pub stream: Box<dyn TrainerStream>,
    /// The trainer's arena; `None` for an operator.
    pub memory: Option<TrainerListenerArena>,
}

/// How contributions get from a trainer to its gateway, and results back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Both ends have the arena mapped.
    Shared,
    /// Each end has an arena of its own, and bytes are sent in pieces.
    Streamed,
}

/// A trainer's arena before it is checked and mapped.
pub enum TrainerListenerArena {
    /// The file descriptor that came with the first byte.
    Memfd(OwnedFd),
    /// A descriptor that was sent, and that the system could not hand over: this process has as
    /// many files open as it may.
    Undeliverable,
    /// An arena that was made in this process.
    InProcess(Arc<Arena>),
    /// None: the gateway makes one, since the trainer sends bytes instead.
    Streamed,
}

impl TrainerListenerArena {
    /// Returns whether the arena's memory is shared, or its bytes come over the connection.
    pub fn transport(&self) -> Transport {
        match self {
            Self::Memfd(_) | Self::Undeliverable | Self::InProcess(_) => Transport::Shared,
            Self::Streamed => Transport::Streamed,
        }
    }

    /// Returns the arena if it has `claimed_bytes` bytes: a memfd is checked and mapped, an arena
    /// of this process is handed over. For a trainer that streams, an arena is made.
    ///
    /// # Errors
    /// [`ArenaError`] says what is wrong with it.
    pub fn open(self, claimed_bytes: u64) -> Result<Arc<Arena>, ArenaError> {
        match self {
            Self::Memfd(memory) => Arena::from_memfd(&memory, claimed_bytes),
            Self::Undeliverable => Err(ArenaError::Undeliverable),
            Self::Streamed => Arena::for_streams(claimed_bytes),
            Self::InProcess(arena) if arena.mapped_bytes() == claimed_bytes => Ok(arena),
            Self::InProcess(arena) => {
                Err(ArenaError::OtherSize { actual: arena.mapped_bytes(), claimed: claimed_bytes })
            }
        }
    }
}

/// The origin of a connection, as far as the system knows it before a byte has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionSource {
    /// The user id of a process on this host.
    User(u32),
    /// The address of another host, or the first half of an IPv6 address.
    Host(IpAddr),
}

/// A connection whose first byte may not have arrived.
pub struct IncomingConnection {
    /// The origin of the connection.
    pub source: ConnectionSource,
    /// Receives the first byte and the arena. It is polled in a task of its own, so that a silent
    /// connection keeps no other waiting.
    pub handshake: BoxFuture<io::Result<AcceptedConnection>>,
}

/// Accepts the connections of trainers and operators.
pub trait TrainerListener: Send + Sync + 'static {
    /// Waits for the next connection of a trainer or operator.
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>>;
}

/// Receives the first byte of a connection; returns the arena whose descriptor comes with the byte
/// of a trainer, `None` for an operator.
pub(super) async fn receive_trainer_listener_descriptor(
    stream: &UnixStream,
) -> io::Result<Option<TrainerListenerArena>> {
    loop {
        stream.readable().await?;
        let received = stream.try_io(Interest::READABLE, || {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = rustix::net::recvmsg(stream.as_fd(), &mut slices, &mut ancillary, flags)?;
            let rights = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            });
            // Further descriptors are closed when they are dropped.
            let descriptor = rights.flatten().next();
            if got.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if byte == [super::operator::OPERATOR_FIRST_BYTE] {
                return Ok(None);
            }
            match descriptor {
                Some(descriptor) => Ok(Some(TrainerListenerArena::Memfd(descriptor))),
                None if got.flags.contains(ReturnFlags::CTRUNC) => {
                    Ok(Some(TrainerListenerArena::Undeliverable))
                }
                None => {
                    let missing = "no file descriptor came with the first byte";
                    Err(io::Error::new(io::ErrorKind::InvalidData, missing))
                }
            }
        });
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received,
        }
    }
}

/// Why there is no connection to a gateway's socket. The arena's descriptor was not sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This user may not connect, or the socket may be a third user's.
    #[error(transparent)]
    Access(#[from] SocketAccessError),
    /// Nothing answers.
    #[error(transparent)]
    NoAnswer(#[from] io::Error),
    /// The other end proves no name of a gateway, or refuses this end's certificate.
    #[error("{0}")]
    Untrusted(String),
}

/// Connects to a gateway's socket, makes sure that a trusted user listens there, and sends the
/// arena's descriptor.
///
/// # Errors
/// Nothing answers at `path`, this user may not connect, or a third user may listen there.
pub async fn connect_to_trainer_listener(
    path: &Path,
    memory: &OwnedFd,
    trusted: TrustedSocketUsers,
) -> Result<UnixStream, ConnectError> {
    let stream =
        retry_trainer_listener_connect(path).await.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => ConnectError::Access(denied_trusted_socket(path)),
            _ => ConnectError::NoAnswer(error),
        })?;
    check_trusted_socket_folder(path, trusted)?;
    check_trusted_socket_peer(path, stream.peer_cred()?.uid(), trusted)?;
    loop {
        stream.writable().await?;
        let sent = stream.try_io(Interest::WRITABLE, || {
            let descriptors = [memory.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            let byte = [IoSlice::new(b"L")];
            let flags = SendFlags::NOSIGNAL;
            Ok(rustix::net::sendmsg(stream.as_fd(), &byte, &mut ancillary, flags)?)
        });
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(stream),
        }
    }
}

/// Connects to a Unix socket, and retries for 10 s while its backlog is full: the gateway runs, but
/// is busy.
async fn retry_trainer_listener_connect(path: &Path) -> io::Result<UnixStream> {
    let mut tries = 0;
    loop {
        match UnixStream::connect(path).await {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && tries < CONNECT_RETRIES_MAX =>
            {
                tries += 1;
                tokio::time::sleep(CONNECT_RETRY_PAUSE.duration()).await;
            }
            connected => return connected,
        }
    }
}

/// The listener inside a process; [`in_process_trainer_listener`] makes it with its connector.
pub struct InProcessTrainerListener {
    pending: Arc<Mutex<mpsc::Receiver<AcceptedConnection>>>,
}

/// Connects to an [`InProcessTrainerListener`].
#[derive(Debug, Clone)]
pub struct TrainerListenerConnector {
    pending: mpsc::Sender<AcceptedConnection>,
}

/// Makes a listener for trainers in this process, and the connector by which they reach it.
pub fn in_process_trainer_listener() -> (InProcessTrainerListener, TrainerListenerConnector) {
    let (sender, pending) = mpsc::channel(PENDING_ACCEPTS_MAX);
    (
        InProcessTrainerListener { pending: Arc::new(Mutex::new(pending)) },
        TrainerListenerConnector { pending: sender },
    )
}

impl TrainerListenerConnector {
    /// Connects to the gateway in this process, and hands over a trainer's arena.
    ///
    /// # Errors
    /// The gateway is gone.
    pub async fn connect(&self, arena: Arc<Arena>) -> io::Result<Box<dyn TrainerStream>> {
        self.connect_with(TrainerListenerArena::InProcess(arena)).await
    }

    /// Connects to the gateway in this process as a trainer on another host does, which sends the
    /// bytes of contributions.
    ///
    /// # Errors
    /// The gateway is gone.
    pub async fn connect_streamed(&self) -> io::Result<Box<dyn TrainerStream>> {
        self.connect_with(TrainerListenerArena::Streamed).await
    }

    /// Connects to the gateway in this process, and hands over this arena.
    async fn connect_with(
        &self,
        memory: TrainerListenerArena,
    ) -> io::Result<Box<dyn TrainerStream>> {
        let (ours, theirs) = tokio::io::duplex(IN_PROCESS_PIPE_BYTES);
        let accepted = AcceptedConnection { stream: Box::new(theirs), memory: Some(memory) };
        let sent = self.pending.send(accepted).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Box::new(ours))
    }
}

impl TrainerListener for InProcessTrainerListener {
    /// Waits for the next connection of a [`TrainerListenerConnector`].
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
        let pending = Arc::clone(&self.pending);
        Box::pin(async move {
            let accepted = pending.lock().await.recv().await;
            let accepted = accepted.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
            let source = ConnectionSource::User(rustix::process::getuid().as_raw());
            Ok(IncomingConnection { source, handshake: Box::pin(async move { Ok(accepted) }) })
        })
    }
}
