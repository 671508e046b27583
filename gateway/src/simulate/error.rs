//! Why a deployment is not simulated.

use crate::certs::CertsError;
use crate::client::{ArenaFull, AttachError, PostError};
use crate::daemon::StartError;
use crate::wan::connect::tls::CredentialsError;
use hier_collectives::post::Failure;
use units::ByteCount;
use wan_sim::{NoLink, SpecError};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// More than a simulation holds.
    #[error(
        "the simulation would need about {needed} of memory, and takes {limit} at most: simulate a \
         fabric of fewer or shorter links, or of fewer regions"
    )]
    TooLarge {
        /// An estimate.
        needed: ByteCount,
        /// The limit.
        limit: ByteCount,
    },
    /// A rate or RTT that no link can have.
    #[error(transparent)]
    Link(#[from] SpecError),
    /// Counters of a link that was never laid: a bug of ours.
    #[error(transparent)]
    NoLink(#[from] NoLink),
    /// Keys that could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// Keys that could not be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A gateway that does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A rank that is not let in.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A rank whose memory is full.
    #[error(transparent)]
    Full(#[from] ArenaFull),
    /// A gateway that is gone.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A collective that failed.
    #[error("the simulated collective failed: {0}")]
    Failed(#[from] Failure),
    /// The file system or the system.
    #[error("cannot simulate: {0}")]
    System(#[from] std::io::Error),
}
