//! Installation of missing peers: a Python with torch, a program for MPI.

use scenarios::testbed::controls::bare_quinn;
use scenarios::testbed::programs::{
    first_line, install_torch, is_installed, succeeds_quietly, torch_version,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The paths of programs and peers.
#[derive(Debug)]
pub struct Tools {
    pub landbridge: PathBuf,
    /// The exchange over quinn alone.
    pub quinn: PathBuf,
    /// Python with torch.
    pub python: Option<PathBuf>,
    /// The compiled collectives of MPI.
    pub mpi: Option<PathBuf>,
}

/// The collectives of MPI.
const COLLECTIVES: &str = include_str!("collectives.c");

/// Installs the peers that are available.
pub fn make(landbridge: &Path, folder: &Path) -> Tools {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let _ = fs::create_dir_all(&folder);
    Tools { python: install_torch(&folder), mpi: mpi(&folder), ..own(landbridge) }
}

/// The versions of the installed peers.
pub fn versions(tools: &Tools) -> Vec<String> {
    let torch = tools.python.as_deref().and_then(torch_version);
    let mpi = first_line(Path::new("mpirun"), &["--version"]);
    let iperf = first_line(Path::new("iperf3"), &["--version"]);
    [torch, mpi, iperf].into_iter().flatten().collect()
}

/// The tools that are built with this program.
pub fn own(landbridge: &Path) -> Tools {
    let (landbridge, quinn) = (landbridge.to_owned(), bare_quinn::program());
    Tools { landbridge, quinn, python: None, mpi: None }
}

/// The compiled collectives; where this is a system with apt and we may, Open MPI with it.
fn mpi(folder: &Path) -> Option<PathBuf> {
    if !is_installed("mpicc") || !is_installed("mpirun") {
        eprintln!("installing openmpi-bin and libopenmpi-dev");
        let packages = ["install", "--yes", "openmpi-bin", "libopenmpi-dev"];
        succeeds_quietly(Command::new("apt-get").args(packages));
    }
    let (source, program) = (folder.join("collectives.c"), folder.join("collectives"));
    fs::write(&source, COLLECTIVES).ok()?;
    let compiled =
        succeeds_quietly(Command::new("mpicc").arg("-O2").arg("-o").arg(&program).arg(&source));
    compiled.then_some(program)
}
