//! How a client reaches a gateway, and hands over the rank's arena.

use super::remote::TlsGateway;
use crate::access::TrustedUsers;
use crate::local::listener::{ConnectError, Duplex, InProcessConnector, Transport, connect_unix};
use crate::memory::arena::{Arena, ArenaError};
use crate::wan::connect::tls::CredentialsError;
use rustls::ClientConfig;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a gateway is reached.
#[derive(Debug, Clone)]
pub enum GatewayAddress {
    /// Its Unix socket.
    Socket(PathBuf),
    /// TLS over TCP, from another host of its site.
    Tls(TlsGateway),
    /// A gateway in this process.
    InProcess(InProcessConnector),
    /// A gateway in this process, with an arena whose pages repeat: for simulations of sizes and
    /// times, which read no values.
    InProcessFolded(InProcessConnector),
    /// A gateway in this process that is sent bytes, as one on another host is: for simulations.
    InProcessStreamed(InProcessConnector),
}

/// Why there is no arena that can be handed to a gateway.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandoverError {
    #[error(transparent)]
    Memory(#[from] ArenaError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// A new arena, and the way by which the gateway gets it.
pub(super) enum ArenaHandover<'a> {
    /// A file descriptor, for a gateway in another process.
    Memfd { socket: &'a Path, arena: Arc<Arena>, memfd: OwnedFd },
    /// The arena itself.
    InProcess { connector: &'a InProcessConnector, arena: Arc<Arena> },
    /// No way: the bytes of contributions are sent instead.
    Tls { gateway: &'a TlsGateway, config: Arc<ClientConfig>, arena: Arc<Arena> },
    /// No way either, to a gateway in this process.
    InProcessStreamed { connector: &'a InProcessConnector, arena: Arc<Arena> },
}

/// A connection to a gateway that has the arena, or is sent its bytes.
pub(super) struct GatewayConnection {
    pub transport: Transport,
    pub arena: Arc<Arena>,
    pub stream: Box<dyn Duplex>,
}

impl<'a> ArenaHandover<'a> {
    /// Makes an arena of `bytes` bytes, of the kind that can be handed to `gateway`.
    pub(super) fn new(gateway: &'a GatewayAddress, bytes: u64) -> Result<Self, HandoverError> {
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
            GatewayAddress::InProcessStreamed(connector) => {
                Ok(Self::InProcessStreamed { connector, arena: Arena::anonymous(bytes)? })
            }
            GatewayAddress::Tls(gateway) => {
                let config = gateway.load()?;
                Ok(Self::Tls { gateway, config, arena: Arena::for_streams(bytes)? })
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
            Self::InProcessStreamed { connector, arena } => {
                (arena, connector.connect_streamed().await?)
            }
            Self::Tls { gateway, config, arena } => {
                (arena, Box::new(gateway.connect(config).await?))
            }
        };
        let transport = match self {
            Self::Memfd { .. } | Self::InProcess { .. } => Transport::Shared,
            Self::Tls { .. } | Self::InProcessStreamed { .. } => Transport::Streamed,
        };
        Ok(GatewayConnection { transport, arena: Arc::clone(arena), stream })
    }

    /// Returns the gateway's address for error texts.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Memfd { socket, .. } => socket.display().to_string(),
            Self::Tls { gateway, .. } => gateway.address.to_string(),
            Self::InProcess { .. } | Self::InProcessStreamed { .. } => {
                "the gateway in this process".to_owned()
            }
        }
    }
}
