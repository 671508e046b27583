//! Errors of a quickstart.

use super::rank_task::RankError;
use gateway::access::SOCKET_PATH_BYTES_MAX;
use gateway::certs::CertsError;
use gateway::config::ConfigFaults;
use gateway::limits::process_limits::ProcessLimitRemedy;
use std::io;
use std::path::PathBuf;

/// Why a quickstart ended without a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuickstartError {
    /// The user interrupted the quickstart.
    #[error("interrupted")]
    Interrupted,
    /// The system refused an operation.
    #[error("{action}: {source}{}", ProcessLimitRemedy(source))]
    System {
        /// The failed action, as in "cannot start a process".
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The folder for temporary files takes none.
    #[error(
        "cannot make files in {}: {source}; let the variable TMPDIR name a folder that has room and \
         that you may write to", parent.display()
    )]
    TemporaryFolder {
        /// The folder.
        parent: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Certificates could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// The options make no valid fabric.
    #[error("these options make no valid fabric: {0}")]
    Fabric(#[from] ConfigFaults),
    /// A process ended, or printed an unexpected line.
    #[error("{name}: {problem}\n{log}")]
    Process {
        /// Name of the process.
        name: String,
        /// The problem.
        problem: String,
        /// End of its log.
        log: String,
        /// Its exit code, if it has ended with one.
        exit_code: Option<i32>,
    },
    /// The temporary folder's path is too long for a Unix socket in it. The user's fault.
    #[error(
        "{}: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes, and this one has \
         {}: set TMPDIR to a folder with a shorter path", path.display(), path.as_os_str().len()
    )]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// A rank failed.
    #[error(transparent)]
    Rank(#[from] RankError),
}

impl QuickstartError {
    /// Returns a function for `map_err` that adds the failed `action` to an I/O error.
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
