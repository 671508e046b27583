//! Programs that tests and benches run, mostly in emulated regions.

use std::process::{Command, Stdio};

/// The system's programs that tests run, each with the Debian package that has it. Tests whose
/// program is missing are skipped.
const PROGRAM_PACKAGES: [(&str, &str); 4] = [
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("ping", "iputils-ping"),
    ("promtool", "prometheus"),
];

/// Prints which programs are there, and installs missing ones by apt if `may_install`. Tests that
/// need a missing program report themselves as skipped.
pub fn find_installed_programs(may_install: bool) {
    for (program, package) in PROGRAM_PACKAGES {
        if run_installed_program_quietly(Command::new(program).arg("--help")).is_ok() {
            println!("{program}: found");
        } else if !may_install {
            println!(
                "{program}: MISSING, so its tests are skipped (apt-get install {package}, or \
                 cargo xtask test --install)"
            );
        } else {
            let install = ["install", "--yes", "--no-install-recommends", package];
            let status = run_installed_program_quietly(Command::new("apt-get").args(install));
            let is_program_installed = status.is_ok_and(|status| status.success());
            let outcome = if is_program_installed {
                "installed"
            } else {
                "cannot be installed, so its tests are skipped"
            };
            println!("{program}: {outcome} (apt-get install {package})");
        }
    }
}

/// Returns whether a program is in the PATH.
pub fn is_program_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs a command without input and output, and returns its status.
fn run_installed_program_quietly(
    command: &mut Command,
) -> std::io::Result<std::process::ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
}
