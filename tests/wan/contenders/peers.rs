//! Installation of missing peers: a Python with torch, a program for MPI.

use super::tools::{Tools, is_installed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The all-reduce of MPI.
const ALL_REDUCE: &str = include_str!("all_reduce.c");

/// Installs the peers that are available.
pub fn make(landbridge: &Path, folder: &Path) -> Tools {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let _ = fs::create_dir_all(&folder);
    Tools { python: python(&folder), mpi: mpi(&folder), ..own(landbridge) }
}

/// The versions of the installed peers.
pub fn versions(tools: &Tools) -> Vec<String> {
    let first_line = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().filter(|_| output.status.success()).map(str::to_owned)
    };
    let torch = "import torch; print('torch', torch.__version__)";
    let torch = tools.python.as_deref().and_then(|python| first_line(python, &["-c", torch]));
    let mpi = first_line(Path::new("mpirun"), &["--version"]);
    let iperf = first_line(Path::new("iperf3"), &["--version"]);
    [torch, mpi, iperf].into_iter().flatten().collect()
}

/// The tools that are built with this program.
pub fn own(landbridge: &Path) -> Tools {
    let quinn = std::env::current_exe().unwrap_or_default().with_file_name("bare-quinn");
    Tools { landbridge: landbridge.to_owned(), quinn, python: None, mpi: None }
}

/// A virtual environment with torch, from the package index.
fn python(folder: &Path) -> Option<PathBuf> {
    let venv = folder.join("torch");
    let python = venv.join("bin/python");
    let has_torch = || quietly(Command::new(&python).args(["-c", "import torch.distributed"]));
    if has_torch() {
        return Some(python);
    }
    eprintln!("installing torch into {}", venv.display());
    let made = quietly(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let install =
        || quietly(Command::new(&python).args(["-m", "pip", "install", "torch", "numpy"]));
    (made && install() && has_torch()).then_some(python)
}

/// The compiled all-reduce; where this is a system with apt and we may, Open MPI with it.
fn mpi(folder: &Path) -> Option<PathBuf> {
    if !is_installed("mpicc") || !is_installed("mpirun") {
        eprintln!("installing openmpi-bin and libopenmpi-dev");
        let packages = ["install", "--yes", "openmpi-bin", "libopenmpi-dev"];
        quietly(Command::new("apt-get").args(packages));
    }
    let (source, program) = (folder.join("all_reduce.c"), folder.join("all_reduce"));
    fs::write(&source, ALL_REDUCE).ok()?;
    let compiled = quietly(Command::new("mpicc").arg("-O2").arg("-o").arg(&program).arg(&source));
    compiled.then_some(program)
}

fn quietly(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
