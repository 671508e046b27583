//! Errors of simulations.

use crate::certs::CertsError;
use crate::client::{ArenaFull, AttachError, PostError};
use crate::daemon::StartError;
use crate::limits::memory_limits::MemoryLimit;
use crate::wan::connect::tls::CredentialsError;
use hier_collectives::post::Failure;
use units::{ByteCount, Span};
use wan_sim::{NoLink, SpecError};

/// Why a fabric was not simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The simulation needs more memory than it may have.
    #[error(
        "the simulation would need about {needed} of memory, and may have {limit}: simulate a fabric \
         with fewer or shorter links, or with fewer regions"
    )]
    TooLarge {
        /// The estimated need.
        needed: ByteCount,
        /// The limit.
        limit: ByteCount,
    },
    /// A limit on this process leaves less memory than the simulation needs.
    #[error(
        "the simulation would need about {needed} of memory: {limit}, or simulate a smaller buffer"
    )]
    ShortMemory {
        /// The estimated need.
        needed: ByteCount,
        /// The limit.
        limit: MemoryLimit,
    },
    /// The gateways did not meet, so that no collective can begin.
    #[error(
        "the simulation cannot begin: the gateways did not meet within {waited} of virtual time \
         over links of up to {rtt}: {problems}; change the fabric"
    )]
    NotMet {
        /// The time that the gateways had.
        waited: Span,
        /// The longest round trip of the fabric.
        rtt: Span,
        /// The lanes that are missing, each with its reason.
        problems: String,
    },
    /// A rate or RTT that `wan-sim` does not support.
    #[error(transparent)]
    Link(#[from] SpecError),
    /// A link that the network does not have: an error in this program.
    #[error(transparent)]
    NoLink(#[from] NoLink),
    /// The keys could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// The keys could not be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A gateway did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A rank could not attach.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The arena of a rank is full.
    #[error(transparent)]
    Full(#[from] ArenaFull),
    /// A collective could not be posted: its gateway is gone.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A collective failed.
    #[error("the simulated collective failed: {0}")]
    Failed(#[from] Failure),
    /// The system refused a file or a runtime.
    #[error("cannot simulate: {0}")]
    System(#[from] std::io::Error),
}
