//! `cargo xtask bench wan-sim`.

use super::Page;
use crate::command::{CommandLine, Failure};
use crate::programs;
use std::path::Path;

/// Each bench of the crate, and what its table shows.
const PARTS: [(&str, &str); 3] = [
    (
        "virtual_time",
        "## Virtual time\n\nQUIC endpoints over the virtual network, on one thread. Each run makes \
         the same trace hash; `tests/virtual_time.rs` compares it between processes.",
    ),
    (
        "relay",
        "## Relay\n\nThree threads of one process: sender, relay, receiver. The direct flow has \
         two of these.",
    ),
    (
        "lab",
        "## Lab\n\nNamespaces with TUN devices; iperf3 and ping run unmodified. A run that its \
         fidelity report voids is made again, up to four times, and the last is shown as it is.",
    ),
];

/// Runs the crate's benches, and takes their tables.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    programs::install();
    let mut text = String::from(
        "Figures are median (least to most). All that is compared alternates within one run, so \
         that a busy spell of the machine meets both; where the machine is busy with other work, \
         so say the fidelity reports.\n",
    );
    for (bench, what) in PARTS {
        let arguments = ["bench", "--package", "wan-sim", "--all-features", "--bench", bench];
        let line = CommandLine::cargo(&arguments);
        let (status, stdout) = line.capture(root)?;
        if !status.success() {
            return Err(line.failed(&status));
        }
        text.push_str(&format!("\n{what}\n\n{}\n", stdout.trim()));
    }
    Ok(Page { title: "wan-sim", text })
}
