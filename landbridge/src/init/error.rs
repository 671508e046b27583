//! Errors of `landbridge init`.

use gateway::certs::CertsError;
use gateway::config::{ConfigFaults, Fault};
use hier_collectives::plan::PlanError;
use std::io;
use std::path::{Path, PathBuf};

/// Why no deployment was made. Nothing was written then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    /// Options are missing or contradict each other.
    #[error("{0}")]
    Options(String),
    /// The deployment's folder has files in it.
    #[error(
        "{} has files already, which stay as they are: name another folder, or change the \
         deployment there by hand (docs/deployment.md, \"Adding a region, a rank or a job\")",
        folder.display()
    )]
    UsedFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A file or folder cannot be used.
    #[error("{}: {source}", path.display())]
    Path {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The answers make no valid files.
    #[error("these answers make no valid files, so nothing was written: {0}")]
    ConfigFaults(#[from] ConfigFaults),
    /// The fabric has no plan.
    #[error("these answers make no plan, so nothing was written: {0}")]
    Plan(#[from] PlanError),
    /// Certificates could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// No answer came from the terminal.
    #[error("the answers ended before the last question; nothing was written")]
    AnswersEnded,
}

impl InitError {
    /// Returns a function for `map_err` that makes the error of the file or folder `path` from an
    /// I/O error.
    pub(super) fn path(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Path { path, source }
    }

    /// Returns the error with the final folder `out` in place of the draft's.
    pub(super) fn with_folder(self, draft: &Path, out: &Path) -> Self {
        let renamed = |path: PathBuf| match path.strip_prefix(draft) {
            Ok(rest) => out.join(rest),
            Err(_) => path,
        };
        match self {
            Self::Path { path, source } => Self::Path { path: renamed(path), source },
            Self::ConfigFaults(faults) => {
                let all = faults.iter().cloned();
                let all = all.map(|fault| Fault { file: renamed(fault.file), ..fault });
                Self::ConfigFaults(ConfigFaults::collect(all).unwrap_or(faults))
            }
            other => other,
        }
    }
}
