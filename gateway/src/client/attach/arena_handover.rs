//! How a client reaches a gateway, and hands over the rank's arena.

use super::tls_gateway::AttachTlsGateway;
use crate::access::TrustedSocketUsers;
use crate::local::trainer_listener::{
    ConnectError, TrainerListenerConnector, TrainerStream, Transport, connect_to_trainer_listener,
};
use crate::memory::arena::{Arena, ArenaError};
use crate::wan::connect::tls::CredentialsError;
use rustls::ClientConfig;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// How a gateway is reached.
#[derive(Debug, Clone)]
pub enum GatewayAddress {
    /// Its Unix socket.
    Socket(PathBuf),
    /// TLS over TCP, from another host of its site.
    Tls(AttachTlsGateway),
    /// A gateway in this process.
    InProcess(TrainerListenerConnector),
    /// A gateway in this process, with an arena whose pages repeat: for simulations of sizes and
    /// times, which read no values.
    InProcessFolded(TrainerListenerConnector),
    /// A gateway in this process that is sent bytes, as one on another host is: for simulations.
    InProcessStreamed(TrainerListenerConnector),
}

/// Why there is no arena that can be handed to a gateway.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum HandoverError {
    #[error(transparent)]
    Memory(#[from] ArenaError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// An arena, and the way by which a gateway gets it. A rank that attaches again hands over the same
/// one.
pub(in crate::client) enum ArenaHandover {
    /// A file descriptor, for a gateway in another process.
    Memfd { socket: PathBuf, arena: Arc<Arena>, memfd: OwnedFd },
    /// The arena itself.
    InProcess { connector: TrainerListenerConnector, arena: Arc<Arena> },
    /// No way: the bytes of contributions are sent instead.
    Tls { gateway: AttachTlsGateway, config: Arc<ClientConfig>, arena: Arc<Arena> },
    /// No way either, to a gateway in this process.
    InProcessStreamed { connector: TrainerListenerConnector, arena: Arc<Arena> },
}

impl ArenaHandover {
    /// Makes an arena of `bytes` bytes, of the kind that can be handed to `gateway`.
    pub(in crate::client) fn new(
        gateway: &GatewayAddress,
        bytes: u64,
    ) -> Result<Self, HandoverError> {
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
            GatewayAddress::InProcessStreamed(connector) => Ok(Self::InProcessStreamed {
                connector: connector.clone(),
                arena: Arena::anonymous(bytes)?,
            }),
            GatewayAddress::Tls(gateway) => {
                let config = gateway.load()?;
                let gateway = gateway.clone();
                Ok(Self::Tls { gateway, config, arena: Arena::for_streams(bytes)? })
            }
        }
    }

    /// Returns the arena that the gateway gets.
    pub(in crate::client) fn arena(&self) -> &Arc<Arena> {
        match self {
            Self::Memfd { arena, .. }
            | Self::InProcess { arena, .. }
            | Self::Tls { arena, .. }
            | Self::InProcessStreamed { arena, .. } => arena,
        }
    }

    /// Returns whether the gateway shares the arena's memory, or exchanges its bytes over the
    /// connection.
    pub(in crate::client) fn transport(&self) -> Transport {
        match self {
            Self::Memfd { .. } | Self::InProcess { .. } => Transport::Shared,
            Self::Tls { .. } | Self::InProcessStreamed { .. } => Transport::Streamed,
        }
    }

    /// Connects to the gateway once, and hands over the arena if it takes one and a trusted user
    /// listens there.
    pub(in crate::client) async fn connect(
        &self,
        trusted: TrustedSocketUsers,
    ) -> Result<Box<dyn TrainerStream>, ConnectError> {
        match self {
            Self::Memfd { socket, memfd, .. } => {
                Ok(Box::new(connect_to_trainer_listener(socket, memfd, trusted).await?))
            }
            Self::InProcess { connector, arena } => {
                Ok(connector.connect(Arc::clone(arena)).await?)
            }
            Self::InProcessStreamed { connector, .. } => Ok(connector.connect_streamed().await?),
            Self::Tls { gateway, config, .. } => Ok(Box::new(gateway.connect(config).await?)),
        }
    }

    /// Returns the gateway's address for error texts.
    pub(in crate::client) fn address(&self) -> String {
        match self {
            Self::Memfd { socket, .. } => socket.display().to_string(),
            Self::Tls { gateway, .. } => gateway.address.to_string(),
            Self::InProcess { .. } | Self::InProcessStreamed { .. } => {
                "the gateway in this process".to_owned()
            }
        }
    }
}
