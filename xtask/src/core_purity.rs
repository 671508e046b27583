//! The cores own no socket, clock or executor: their dependencies show it.

use crate::command::{CommandLine, Failure};
use std::path::Path;

/// Crates that no core may depend on, whatever stands between. The cores do not know each
/// other or the shell either.
const FORBIDDEN: [&str; 11] = [
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

/// Each core with its default features, and the sibling it must not know.
const CORES: [(&str, &str); 2] = [("hier-collectives", "wan-sim"), ("wan-sim", "hier-collectives")];

/// Checks both cores.
pub fn check(root: &Path) -> Result<(), Failure> {
    for (core, sibling) in CORES {
        let tree = CommandLine::cargo(&["tree", "-p", core, "-e", "normal", "--prefix", "none"]);
        let (status, packages) = tree.capture(root)?;
        if !status.success() {
            return Err(tree.failed(&status));
        }
        let found = forbidden(&packages, sibling);
        if !found.is_empty() {
            let why = format!("{core} must not depend on {}", found.join(", "));
            return Err(tree.failed(&why));
        }
        println!("{core}: {} packages, none of them forbidden", packages.lines().count());
    }
    Ok(())
}

/// The forbidden crates among the lines of `cargo tree --prefix none`.
fn forbidden<'a>(packages: &'a str, sibling: &str) -> Vec<&'a str> {
    let names = packages.lines().filter_map(|line| line.split(' ').next());
    let hits = names.filter(|name| FORBIDDEN.contains(name) || *name == sibling);
    let mut found: Vec<&str> = hits.collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::forbidden;

    #[test]
    fn a_forbidden_crate_is_named_once() {
        let tree = "hier-collectives v0.1.0 (dir)\nhalf v2.0.0\ntokio v1.0.0\ntokio v1.0.0 (*)\n\
                    tokio-macros v2.0.0 (proc-macro)\nwan-sim v0.1.0 (dir)";
        assert_eq!(forbidden(tree, "wan-sim"), ["tokio", "wan-sim"]);
        assert_eq!(forbidden("half v2.0.0", "wan-sim"), [""; 0]);
    }
}
