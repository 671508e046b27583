//! How a command ends.

use crate::bench::BenchError;
use crate::certs::CertsError;
use crate::client::AttachError;
use crate::config::{Faults, GatewayChoiceError};
use crate::daemon::StartError;
use crate::local::operator::OperatorError;
use crate::observe::server::FetchError;
use crate::quickstart::QuickstartError;
use crate::simulate::SimulateError;
use std::process::{ExitCode, Termination};

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Good = 0,
    /// A check failed.
    CheckFailed = 1,
    /// A wrong command line or config.
    Usage = 64,
    /// Nothing answers where a gateway should.
    NothingAnswers = 69,
    /// Cannot run here, and said so.
    Skipped = 77,
    /// Stopped by the user.
    Interrupted = 130,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Config files at fault.
    #[error(transparent)]
    Config(#[from] Faults),
    /// No gateway chosen, or one that is not there.
    #[error(transparent)]
    Gateway(#[from] GatewayChoiceError),
    /// Certificates that could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// No status to be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A wish that a gateway did not meet.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// A wrong command line that only its context shows.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be used.
    #[error("{}: {source}", path.display())]
    Path {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A token file that holds none.
    #[error("{}: not a job token: 64 hexadecimal digits; make one with `landbridge certs`", .0.display())]
    Token(std::path::PathBuf),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// The address.
        address: std::net::SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// Certificates that cannot be used.
    #[error(transparent)]
    Credentials(#[from] crate::wan::connect::tls::CredentialsError),
    /// A gateway that does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A benchmark that measured nothing.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A deployment that is not simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// A quickstart that did not get to its end.
    #[error(transparent)]
    Quickstart(#[from] QuickstartError),
    /// The system refuses what every run needs.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl CommandError {
    /// The exit code that says whose fault it is.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(_)
            | Self::Gateway(_)
            | Self::Certs(_)
            | Self::Usage(_)
            | Self::Operator(OperatorError::Refused(_))
            | Self::Path { .. }
            | Self::Token(_)
            | Self::Quickstart(QuickstartError::Fabric(_))
            | Self::Simulate(SimulateError::TooLarge { .. } | SimulateError::Link(_))
            | Self::Start(StartError::Plan(_))
            | Self::Credentials(_) => Exit::Usage,
            Self::Fetch(_) | Self::Operator(OperatorError::NothingAnswers { .. }) => {
                Exit::NothingAnswers
            }
            Self::Bench(BenchError::Attach(AttachError::NoGateway { .. })) => Exit::NothingAnswers,
            Self::Quickstart(QuickstartError::Interrupted) => Exit::Interrupted,
            Self::Address { .. }
            | Self::Start(_)
            | Self::Bench(_)
            | Self::Quickstart(_)
            | Self::Simulate(_)
            | Self::System(_) => Exit::CheckFailed,
        }
    }
}
