//! Programs that tests and benches run in emulated regions.

use std::process::{Command, Stdio};

/// The programs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 3] =
    [("ip", "iproute2"), ("iperf3", "iperf3"), ("ping", "iputils-ping")];

/// Names the programs that are missing, and installs them by apt where that is allowed. Tests that need
/// one that is still missing report themselves as skipped.
pub fn find(may_install: bool) {
    for (program, package) in PROGRAMS {
        if runs_quietly(Command::new(program).arg("--help")).is_ok() {
            println!("{program}: found");
        } else if !may_install {
            println!(
                "{program}: MISSING, so its tests are skipped (apt-get install {package}, or \
                 cargo xtask test --install)"
            );
        } else {
            let install = ["install", "--yes", "--no-install-recommends", package];
            let status = runs_quietly(Command::new("apt-get").args(install));
            let is_installed = status.is_ok_and(|status| status.success());
            let outcome = if is_installed {
                "installed"
            } else {
                "cannot be installed, so its tests are skipped"
            };
            println!("{program}: {outcome} (apt-get install {package})");
        }
    }
}

fn runs_quietly(command: &mut Command) -> std::io::Result<std::process::ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
}
