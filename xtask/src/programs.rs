//! Programs that tests and benches run at emulated sites.

use std::process::{Command, Stdio};

/// Gets what is missing, where this is a system with apt and we may. Without them, whatever
/// needs them says that it is skipped.
pub fn install() {
    for (program, package) in [("ip", "iproute2"), ("iperf3", "iperf3"), ("ping", "iputils-ping")] {
        let quiet = |command: &mut Command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
        };
        if quiet(Command::new(program).arg("--help")).is_ok() {
            println!("{program}: found");
            continue;
        }
        let install = ["install", "--yes", "--no-install-recommends", package];
        let installed = quiet(Command::new("apt-get").args(install));
        let done = installed.is_ok_and(|status| status.success());
        let outcome = if done { "installed" } else { "cannot be installed; tests are skipped" };
        println!("{program}: {outcome} (apt-get install {package})");
    }
}
