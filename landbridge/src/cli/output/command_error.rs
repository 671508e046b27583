//! The error of a command, with its exit code. Error types lie in the modules that raise them.

use super::exit::Exit;
use crate::bench::BenchError;
use crate::init::InitError;
use crate::quickstart::QuickstartError;
use crate::trace::TraceError;
use gateway::access::{AccountError, SecretFileError, SocketAccessError};
use gateway::certs::CertsError;
use gateway::client::AttachError;
use gateway::config::{ConfigFaults, GatewayChoiceError};
use gateway::daemon::StartError;
use gateway::limits::process_limits::ProcessLimitRemedy;
use gateway::local::operator::OperatorError;
use gateway::local::remote::attach_listener::AttachListenError;
use gateway::local::socket::ListenError;
use gateway::local::token_file::TokenFileError;
use gateway::observe::fetch_status::FetchError;
use gateway::simulate::SimulateError;
use gateway::wan::connect::tls::{CredentialsError, OwnCertificateError};
use std::io::ErrorKind;
use stdio::UnwrittenReport;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// Config files have faults.
    #[error(transparent)]
    Config(#[from] ConfigFaults),
    /// The region file has no such gateway, or several and none was chosen.
    #[error(transparent)]
    Gateway(#[from] GatewayChoiceError),
    /// Certificates could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// No deployment was made.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The gateway's status could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A gateway did not carry out an operator's request.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// A trace cannot be shown.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Arguments contradict each other, a file or the environment.
    #[error("{0}")]
    Usage(String),
    /// A file cannot be used.
    #[error("{}: {source}{}", path.display(), ProcessLimitRemedy(source))]
    Path {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A token file cannot be used.
    #[error(transparent)]
    Token(#[from] TokenFileError),
    /// Others may read a secret file, or it cannot be opened.
    #[error(transparent)]
    SecretFile(#[from] SecretFileError),
    /// This host lacks a user or group of the region file.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The gateway's socket cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} (TCP): {source}; {}", command_error_status_remedy(source))]
    Address {
        /// The address.
        address: std::net::SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// Certificates cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Peers would refuse the gateway's own certificate.
    #[error(transparent)]
    OwnCertificate(#[from] OwnCertificateError),
    /// The gateway did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A benchmark failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A simulation failed.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// A quickstart failed or was interrupted.
    #[error(transparent)]
    Quickstart(#[from] QuickstartError),
    /// The report was not written to stdout, or only a part of it.
    #[error(transparent)]
    Unwritten(#[from] UnwrittenReport),
    /// The system refuses a runtime, a signal handler or a thread.
    #[error("cannot start: {0}{remedy}", remedy = ProcessLimitRemedy(.0))]
    System(#[from] std::io::Error),
}

impl CommandError {
    /// Returns whether the error needs no message: whoever closed the pipe of stdout knows.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::Unwritten(unwritten) if unwritten.is_reader_gone())
    }

    /// Returns the exit code of the process for this error.
    pub(crate) fn exit_code(&self) -> Exit {
        match self {
            // A full disk may have room again.
            Self::Path { source, .. }
            | Self::Certs(CertsError::Io { source, .. })
            | Self::Quickstart(QuickstartError::TemporaryFolder { source, .. })
            | Self::Init(
                InitError::Path { source, .. } | InitError::Certs(CertsError::Io { source, .. }),
            )
            | Self::Listen(ListenError::File { source, .. })
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                Exit::CheckFailed
            }
            Self::Certs(CertsError::Busy { .. }) => Exit::CheckFailed,
            // Another user of this host may run the command.
            Self::Token(TokenFileError::Read { source, .. })
                if source.kind() == ErrorKind::PermissionDenied =>
            {
                Exit::Skipped
            }
            Self::Config(_)
            | Self::Gateway(_)
            | Self::Certs(_)
            | Self::Init(_)
            | Self::Usage(_)
            | Self::Trace(_)
            | Self::Operator(OperatorError::Refused(_))
            | Self::Path { .. }
            | Self::Token(_)
            | Self::SecretFile(_)
            | Self::Account(_)
            | Self::Listen(
                ListenError::Access(_)
                | ListenError::Group { .. }
                | ListenError::ShutFolder { .. }
                | ListenError::File { .. },
            )
            | Self::Quickstart(
                QuickstartError::Fabric(_)
                | QuickstartError::SocketPath { .. }
                | QuickstartError::TemporaryFolder { .. }
                | QuickstartError::Process { exit_code: Some(64), .. },
            )
            | Self::Simulate(SimulateError::TooLarge { .. } | SimulateError::Link(_))
            | Self::Start(
                StartError::Plan(_) | StartError::Attach(AttachListenError::Credentials(_)),
            )
            | Self::Credentials(_) => Exit::Usage,
            Self::OwnCertificate(error) if !error.fault.may_pass() => Exit::Usage,
            Self::Fetch(_) | Self::Operator(OperatorError::NothingAnswers { .. }) => {
                Exit::NothingAnswers
            }
            Self::Bench(BenchError::Attach(AttachError::NoGateway { .. })) => Exit::NothingAnswers,
            Self::Operator(OperatorError::Access(error))
            | Self::Bench(BenchError::Attach(AttachError::Access(error))) => {
                command_error_access_exit(error)
            }
            Self::Quickstart(QuickstartError::Interrupted) => Exit::Interrupted,
            // Another program has the socket or the port.
            Self::Listen(ListenError::Held { .. } | ListenError::Taken { .. })
            | Self::Address { .. }
            | Self::OwnCertificate(_)
            | Self::Start(_)
            | Self::Bench(_)
            | Self::Quickstart(_)
            | Self::Simulate(_)
            | Self::Unwritten(_)
            | Self::System(_) => Exit::CheckFailed,
        }
    }
}

/// Returns what to do about a `status` address at which nobody can listen.
fn command_error_status_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => {
            "end the other program that uses it, or give this gateway another `status` address"
        }
        _ => "give this gateway a `status` address of its own host, such as 127.0.0.1:9400",
    }
}

/// Returns the exit code where a socket is not used: a user without permission cannot run the
/// command, any other error is a failed check.
fn command_error_access_exit(error: &SocketAccessError) -> Exit {
    match error {
        SocketAccessError::Denied { .. } => Exit::Skipped,
        SocketAccessError::ForeignFolder { .. }
        | SocketAccessError::OpenFolder { .. }
        | SocketAccessError::ForeignPeer { .. } => Exit::CheckFailed,
    }
}
