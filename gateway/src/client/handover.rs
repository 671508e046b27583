//! How a client reaches a gateway, and hands over the rank's arena.

use crate::access::TrustedUsers;
use crate::local::listener::{ConnectError, Duplex, InProcessConnector, connect_unix};
use crate::memory::arena::{Arena, ArenaError};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// How a gateway is reached.
#[derive(Debug, Clone)]
pub enum GatewayAddress {
    /// Its Unix socket.
    Socket(PathBuf),
    /// A gateway in this process.
    InProcess(InProcessConnector),
    /// A gateway in this process, with an arena whose pages repeat: for simulations of sizes and
    /// times, which read no values.
    InProcessFolded(InProcessConnector),
}

/// An arena, and the way by which a gateway gets it. A rank that attaches again hands over the same
/// one.
pub(super) enum ArenaHandover {
    /// A file descriptor, for a gateway in another process.
    Memfd { socket: PathBuf, arena: Arc<Arena>, memfd: OwnedFd },
    /// The arena itself.
    InProcess { connector: InProcessConnector, arena: Arc<Arena> },
}

impl ArenaHandover {
    /// Makes an arena of `bytes` bytes, of the kind that can be handed to `gateway`.
    pub(super) fn new(gateway: &GatewayAddress, bytes: u64) -> Result<Self, ArenaError> {
        match gateway {
            GatewayAddress::Socket(socket) => {
                let (arena, memfd) = Arena::create_memfd(bytes)?;
                Ok(Self::Memfd { socket: socket.clone(), arena, memfd })
            }
            GatewayAddress::InProcess(connector) => Ok(Self::InProcess {
                connector: connector.clone(),
                arena: Arena::anonymous(bytes)?,
            }),
            GatewayAddress::InProcessFolded(connector) => {
                Ok(Self::InProcess { connector: connector.clone(), arena: Arena::folded(bytes)? })
            }
        }
    }

    /// Returns the arena.
    pub(super) fn arena(&self) -> &Arc<Arena> {
        match self {
            Self::Memfd { arena, .. } | Self::InProcess { arena, .. } => arena,
        }
    }

    /// Connects to the gateway once, and hands over the arena if a trusted user listens there.
    pub(super) async fn connect(
        &self,
        trusted: TrustedUsers,
    ) -> Result<Box<dyn Duplex>, ConnectError> {
        match self {
            Self::Memfd { socket, memfd, .. } => {
                Ok(Box::new(connect_unix(socket, memfd, trusted).await?))
            }
            Self::InProcess { connector, arena } => {
                Ok(connector.connect(Arc::clone(arena)).await?)
            }
        }
    }

    /// Returns the gateway's address for error texts.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Memfd { socket, .. } => socket.display().to_string(),
            Self::InProcess { .. } => "the gateway in this process".to_owned(),
        }
    }
}
