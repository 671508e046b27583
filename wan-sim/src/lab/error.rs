//! The errors of making, entering and removing a lab.

use crate::topology::SITES_MAX;
use std::io;

/// Why there is no lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This process may not, or this machine cannot.
    #[error("{what}: {source}; run as root on a machine with /dev/net/tun and iproute2")]
    Unprivileged {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// More sites than addresses. The caller's fault.
    #[error("{0} sites are more than the {SITES_MAX} that a lab can have")]
    TooManySites(usize),
    /// Namespaces of a killed lab could not be removed.
    #[error("cannot remove the network namespaces {0}: run as root, with `ip` of iproute2")]
    Left(String),
    /// Something else failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// The beginning of the error that users read where the program `ip` of iproute2 cannot be run; the
/// system's error follows.
pub const IP_COMMAND_MISSING: &str = "cannot run `ip` of iproute2";
