//! Other people's programs on this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns whether a program is there.
pub fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the version of openssl, which has no such option; `None` without it.
pub fn openssl_version() -> Option<String> {
    first_line(Path::new("openssl"), &["version"])
}

/// Returns the first line that a program prints; `None` if it fails.
pub fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().filter(|_| output.status.success()).map(str::to_owned)
}

/// Runs a command without input and output. Returns whether it succeeded.
pub fn succeeds_quietly(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Returns the Python of the virtual environment with torch in `folder`; `None` if it is not there.
pub fn find_torch(folder: &Path) -> Option<PathBuf> {
    let python = folder.join("torch/bin/python");
    let has = succeeds_quietly(Command::new(&python).args(["-c", "import torch.distributed"]));
    has.then_some(python)
}

/// Returns the Python of a virtual environment with torch in `folder`, after an installation from
/// the package index where it is missing; `None` if that fails.
pub fn install_torch(folder: &Path) -> Option<PathBuf> {
    if let Some(python) = find_torch(folder) {
        return Some(python);
    }
    let venv = folder.join("torch");
    eprintln!("installing torch into {}", venv.display());
    let made = succeeds_quietly(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let install = ["-m", "pip", "install", "torch", "numpy"];
    let install = || succeeds_quietly(Command::new(venv.join("bin/python")).args(install));
    (made && install()).then(|| find_torch(folder)).flatten()
}

/// Returns the first line of the version of torch that a Python has.
pub fn torch_version(python: &Path) -> Option<String> {
    first_line(python, &["-c", "import torch; print('torch', torch.__version__)"])
}
