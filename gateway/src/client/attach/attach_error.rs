//! Why a rank is not attached.

use crate::access::SocketAccessError;
use crate::local::refusal::Refusal;
use crate::local::trainer_listener::ConnectError;
use crate::memory::arena::ArenaError;
use crate::wan::connect::tls::CredentialsError;
use std::fmt;
use std::io;
use units::Span;

/// Why a rank is not attached.
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
    /// This user may not connect, or a third user may listen there. No token was sent.
    #[error(transparent)]
    Access(#[from] SocketAccessError),
    /// A file of CA, certificate or key cannot be used. The caller's fault.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The program that answers proves no gateway's name, or refuses this trainer's certificate. No
    /// token was sent to another program than a gateway of the CA.
    #[error("no trust: {0}")]
    Untrusted(String),
    /// The gateway refused the rank, for good or until
    /// [`AttachOptions::gateway_timeout`](super::AttachOptions::gateway_timeout).
    #[error("the gateway refused: {0}")]
    Refused(Refusal),
    /// The gateway closed the connection before the first epoch.
    #[error("the gateway went away: {0}")]
    Lost(String),
    /// The system has no memory for the arena, or no descriptor for it or the connection.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The gateways did not meet in time.
    #[error("{0}")]
    NoEpoch(AttachEpochTimeout),
}

/// An attached rank whose first epoch did not begin in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachEpochTimeout {
    /// How long the rank waited.
    pub timeout: Span,
    /// The reason in the words of the gateway; `None` if it did not say.
    pub why: Option<String>,
}

impl fmt::Display for AttachEpochTimeout {
    /// Prints the time that the rank waited and what its gateway waited for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.as_deref().unwrap_or("some gateway is missing");
        let timeout = self.timeout;
        write!(f, "attached, but no epoch began within {timeout}: {why}; see `landbridge status`")
    }
}

impl AttachError {
    /// Converts the error of a connection to the gateway at `address`.
    pub(super) fn of_connect(error: ConnectError, address: impl Fn() -> String) -> Self {
        match error {
            ConnectError::Access(error) => Self::Access(error),
            ConnectError::Untrusted(why) => Self::Untrusted(why),
            ConnectError::NoAnswer(source) => match ArenaError::without_descriptor(&source) {
                Some(limit) => Self::Memory(limit),
                None => Self::NoGateway { address: address(), source },
            },
        }
    }
}
