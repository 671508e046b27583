//! The programs and peers on this machine.

use std::path::PathBuf;
use std::process::Command;

/// The paths of programs and peers.
#[derive(Debug)]
pub struct Tools {
    pub landbridge: PathBuf,
    /// The exchange over quinn alone.
    pub quinn: PathBuf,
    /// Python with torch.
    pub python: Option<PathBuf>,
    /// The compiled all-reduce of MPI.
    pub mpi: Option<PathBuf>,
}

/// Whether a program is there.
pub fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
