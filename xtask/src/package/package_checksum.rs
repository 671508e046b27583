//! Digests, by programs of coreutils.

use crate::child_command::CommandFailure;
use std::io::Write;
use std::process::{Command, Stdio};

/// Returns the SHA-256 digest of bytes in hexadecimal.
pub fn sha256_package_checksum(bytes: &[u8]) -> Result<String, CommandFailure> {
    package_checksum_by("sha256sum", bytes)
}

/// Returns the MD5 digest of bytes in hexadecimal, with which dpkg finds changed files.
pub fn md5_package_checksum(bytes: &[u8]) -> Result<String, CommandFailure> {
    package_checksum_by("md5sum", bytes)
}

/// Runs the checksum program `program` with `bytes` as its input, and returns the digest that it
/// prints.
fn package_checksum_by(program: &str, bytes: &[u8]) -> Result<String, CommandFailure> {
    let failure = |why: &dyn std::fmt::Display| CommandFailure {
        why: format!("{program}: {why}"),
        repeat: "cargo xtask package".to_owned(),
    };
    let mut command = Command::new(program);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| failure(&error))?;
    // It prints nothing before it has read all; its input ends with the handle.
    let written = child.stdin.take().expect("piped").write_all(bytes);
    let output = child.wait_with_output().map_err(|error| failure(&error))?;
    written.map_err(|error| failure(&error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = text.split_whitespace().next().filter(|_| output.status.success());
    digest.map(str::to_owned).ok_or_else(|| failure(&output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standards() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256_package_checksum(b"").ok().as_deref(), Some(empty));
        assert_eq!(
            md5_package_checksum(b"abc").ok().as_deref(),
            Some("900150983cd24fb0d6963f7d28e17f72")
        );
    }
}
