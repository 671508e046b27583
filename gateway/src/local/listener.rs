//! The trainers' door: how a trainer's connection and its memory reach the gateway.
//!
//! In production a Unix socket and a memfd; inside a simulation a pipe in memory and the
//! arena itself.

use crate::host::BoxFuture;
use crate::memory::arena::{Arena, ArenaError};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};
use units::Span;

/// A connection, whatever it is made of.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A trainer at the door, or an operator.
pub struct AcceptedConnection {
    /// What it says and hears, behind the first byte.
    pub stream: Box<dyn Duplex>,
    /// Its memory; `None` for an operator, who has none.
    pub memory: Option<ArenaHandle>,
}

/// A trainer's memory, before it is checked.
pub enum ArenaHandle {
    /// A file descriptor that came with the first byte.
    Memfd(OwnedFd),
    /// ArenaHandle of this process.
    InProcess(Arc<Arena>),
}

impl ArenaHandle {
    /// The arena, if it is fit to be used.
    ///
    /// # Errors
    /// [`ArenaError`] says what is wrong with it.
    pub fn open(self, claimed_bytes: u64) -> Result<Arc<Arena>, ArenaError> {
        match self {
            Self::Memfd(memory) => Arena::from_memfd(&memory, claimed_bytes),
            Self::InProcess(arena) if arena.whole().len() == claimed_bytes => Ok(arena),
            Self::InProcess(arena) => {
                Err(ArenaError::OtherSize { actual: arena.whole().len(), claimed: claimed_bytes })
            }
        }
    }
}

/// Somebody at the door who has said nothing yet.
pub struct IncomingConnection {
    /// The user whose process it is.
    pub user: u32,
    /// What it takes to learn its memory: a visitor who says nothing keeps nobody waiting.
    pub handshake: BoxFuture<io::Result<AcceptedConnection>>,
}

/// Where trainers come in.
pub trait TrainerListener: Send + Sync + 'static {
    /// The next connection.
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>>;
}

/// A Unix socket, removed at the end.
pub struct UnixSocketListener {
    listener: Arc<UnixListener>,
    path: PathBuf,
}

impl UnixSocketListener {
    /// Listens at `path`, for this user only. A socket that nobody answers on any more is
    /// replaced; anything else at the path is left alone.
    ///
    /// # Errors
    /// The path is taken or cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener: Arc::new(listener), path: path.to_owned() })
    }
}

impl Drop for UnixSocketListener {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl TrainerListener for UnixSocketListener {
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
        let listener = Arc::clone(&self.listener);
        Box::pin(async move {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            let handshake = Box::pin(async move {
                let memory = receive_descriptor(&stream).await?;
                Ok(AcceptedConnection {
                    stream: Box::new(stream) as _,
                    memory: memory.map(ArenaHandle::Memfd),
                })
            });
            Ok(IncomingConnection { user, handshake })
        })
    }
}

/// The first byte, and the descriptor that travels with a trainer's.
async fn receive_descriptor(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
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
            // More than one would be closed as it is dropped.
            let descriptor = rights.flatten().next();
            if got.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if byte == [super::operator::FIRST_BYTE] {
                return Ok(None);
            }
            let missing = "no file descriptor came with the first byte";
            let descriptor =
                descriptor.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, missing))?;
            Ok(Some(descriptor))
        });
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received,
        }
    }
}

/// Connects to a gateway's socket and hands over the arena's descriptor.
///
/// # Errors
/// Nothing answers at `path`.
pub async fn connect_unix(path: &Path, memory: &OwnedFd) -> io::Result<UnixStream> {
    let stream = connect_when_there_is_room(path).await?;
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
            Err(error) => return Err(error),
            Ok(_) => return Ok(stream),
        }
    }
}

/// A gateway whose backlog is full is there, but busy.
async fn connect_when_there_is_room(path: &Path) -> io::Result<UnixStream> {
    let mut tries = 0;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_PAUSE.duration()).await;
            }
            connected => return connected,
        }
    }
}

/// How often a full backlog is tried, and how long after each other.
const BUSY_TRIES: usize = 1000;
const BUSY_PAUSE: Span = Span::from_ms(10);

/// A door inside the process, and the knocker that opens it.
pub struct InProcessListener {
    visits: Arc<Mutex<mpsc::Receiver<AcceptedConnection>>>,
}

/// Knocks at an [`InProcessListener`].
#[derive(Debug, Clone)]
pub struct InProcessConnector {
    visits: mpsc::Sender<AcceptedConnection>,
}

/// Visits that may wait at an in-process door.
const VISITS_MAX: usize = 64;
/// Bytes that each direction of an in-process connection holds.
const PIPE_BYTES: usize = 1 << 16;

/// A door and its knocker.
pub fn in_process() -> (InProcessListener, InProcessConnector) {
    let (knock, visits) = mpsc::channel(VISITS_MAX);
    (
        InProcessListener { visits: Arc::new(Mutex::new(visits)) },
        InProcessConnector { visits: knock },
    )
}

impl InProcessConnector {
    /// Connects with an arena of this process.
    ///
    /// # Errors
    /// The gateway is gone.
    pub async fn connect(&self, arena: Arc<Arena>) -> io::Result<Box<dyn Duplex>> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let handshake = AcceptedConnection {
            stream: Box::new(theirs),
            memory: Some(ArenaHandle::InProcess(arena)),
        };
        let sent = self.visits.send(handshake).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Box::new(ours))
    }
}

impl TrainerListener for InProcessListener {
    fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
        let visits = Arc::clone(&self.visits);
        Box::pin(async move {
            let handshake = visits.lock().await.recv().await;
            let handshake = handshake.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
            let user = rustix::process::getuid().as_raw();
            Ok(IncomingConnection { user, handshake: Box::pin(async move { Ok(handshake) }) })
        })
    }
}
