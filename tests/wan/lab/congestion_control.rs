//! The kernel's list of congestion controls that sites may choose among.

use scenarios::testbed::error::LabError;
use std::fs;
use std::io;

/// Lets sites choose among these congestion controls; the machine's own setting comes back when
/// this is dropped.
pub struct AllowedAlgorithms(String);

/// The algorithms that unprivileged sockets may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// The algorithms that the kernel has.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

impl AllowedAlgorithms {
    /// Allows all algorithms that the kernel has.
    ///
    /// # Errors
    /// The kernel's settings are not ours to change.
    pub fn widen() -> Result<Self, LabError> {
        let widen = || {
            let before = fs::read_to_string(ALLOWED)?.trim().to_owned();
            let available = fs::read_to_string(AVAILABLE)?;
            fs::write(ALLOWED, available.trim())?;
            Ok(Self(before))
        };
        widen().map_err(|error: io::Error| LabError::Unavailable(format!("{ALLOWED}: {error}")))
    }
}

impl Drop for AllowedAlgorithms {
    fn drop(&mut self) {
        let _ = fs::write(ALLOWED, &self.0);
    }
}
