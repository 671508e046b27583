//! How a client reaches a gateway, and hands over the rank's arena.

use crate::access::TrustedUsers;
use crate::local::listener::{ConnectError, Duplex, InProcessConnector, connect_unix};
use crate::memory::arena::{Arena, ArenaError};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
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

/// A new arena, and the way by which the gateway gets it.
pub(super) enum ArenaHandover<'a> {
    /// A file descriptor, for a gateway in another process.
    Memfd { socket: &'a Path, arena: Arc<Arena>, memfd: OwnedFd },
    /// The arena itself.
    InProcess { connector: &'a InProcessConnector, arena: Arc<Arena> },
}

/// A connection to a gateway that has the arena.
pub(super) struct GatewayConnection {
    pub arena: Arc<Arena>,
    pub stream: Box<dyn Duplex>,
}

impl<'a> ArenaHandover<'a> {
    /// Makes an arena of `bytes` bytes, of the kind that can be handed to `gateway`.
    pub(super) fn new(gateway: &'a GatewayAddress, bytes: u64) -> Result<Self, ArenaError> {
        match gateway {
            GatewayAddress::Socket(socket) => {
                let (arena, memfd) = Arena::create_memfd(bytes)?;
                Ok(Self::Memfd { socket, arena, memfd })
            }
            GatewayAddress::InProcess(connector) => {
                Ok(Self::InProcess { connector, arena: Arena::anonymous(bytes)? })
            }
            GatewayAddress::InProcessFolded(connector) => {
                Ok(Self::InProcess { connector, arena: Arena::folded(bytes)? })
            }
        }
    }

    /// Connects to the gateway once, and hands over the arena if a trusted user listens there.
    pub(super) async fn connect(
        &self,
        trusted: TrustedUsers,
    ) -> Result<GatewayConnection, ConnectError> {
        let (arena, stream): (_, Box<dyn Duplex>) = match self {
            Self::Memfd { socket, arena, memfd } => {
                (arena, Box::new(connect_unix(socket, memfd, trusted).await?))
            }
            Self::InProcess { connector, arena } => {
                (arena, connector.connect(Arc::clone(arena)).await?)
            }
        };
        Ok(GatewayConnection { arena: Arc::clone(arena), stream })
    }

    /// Returns the gateway's address for error texts.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Memfd { socket, .. } => socket.display().to_string(),
            Self::InProcess { .. } => "the gateway in this process".to_owned(),
        }
    }
}
