//! The cores own no socket, clock or executor: their dependencies show it.

use crate::child_command::{CommandFailure, CommandLine};
use std::path::Path;

/// Packages on which no core package (see [`CORES_AND_SIBLINGS`]) may depend, directly or
/// indirectly: cores have no socket, clock or executor. A dependency fails the stage.
const FORBIDDEN_PACKAGES: [&str; 11] = [
    "tokio",
    "mio",
    "quinn",
    "quinn-proto",
    "quinn-udp",
    "rustls",
    "socket2",
    "rustix",
    "gateway",
    "landbridge",
    "scenarios",
];

/// The core packages, each with another core package on which it must not depend.
const CORES_AND_SIBLINGS: [(&str, &str); 3] = [
    ("hier-collectives", "wan-sim"),
    ("wan-sim", "hier-collectives"),
    ("congestion-model", "wan-sim"),
];

/// Checks that no core depends on a forbidden package.
pub fn check_core_purity(root: &Path) -> Result<(), CommandFailure> {
    for (core, sibling) in CORES_AND_SIBLINGS {
        let tree = CommandLine::cargo(&["tree", "-p", core, "-e", "normal", "--prefix", "none"]);
        let (status, packages) = tree.capture(root)?;
        if !status.success() {
            return Err(tree.failure(&status));
        }
        let found = forbidden_by_core_purity(&packages, sibling);
        if !found.is_empty() {
            let why = format!("{core} must not depend on {}", found.join(", "));
            return Err(tree.failure(&why));
        }
        println!("{core}: {} packages, none of them forbidden", packages.lines().count());
    }
    Ok(())
}

/// Returns the forbidden packages among the lines of `cargo tree --prefix none`, each once.
fn forbidden_by_core_purity<'a>(packages: &'a str, sibling: &str) -> Vec<&'a str> {
    let names = packages.lines().filter_map(|line| line.split(' ').next());
    let hits = names.filter(|name| FORBIDDEN_PACKAGES.contains(name) || *name == sibling);
    let mut found: Vec<&str> = hits.collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::forbidden_by_core_purity;

    #[test]
    fn a_forbidden_crate_is_named_once() {
        let tree = "hier-collectives v0.1.0 (dir)\nhalf v2.0.0\ntokio v1.0.0\ntokio v1.0.0 (*)\n\
                    tokio-macros v2.0.0 (proc-macro)\nwan-sim v0.1.0 (dir)";
        assert_eq!(forbidden_by_core_purity(tree, "wan-sim"), ["tokio", "wan-sim"]);
        assert_eq!(forbidden_by_core_purity("half v2.0.0", "wan-sim"), [""; 0]);
    }
}
