//! Calls about the library itself.

use crate::call_status::CallStatus;
use std::ffi::{c_char, c_int};

/// Returns the version of the library as `major * 10000 + minor * 100 + patch`.
#[unsafe(no_mangle)]
pub extern "C" fn landbridge_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or_default();
    let major = part(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000;
    major + part(env!("CARGO_PKG_VERSION_MINOR")) * 100 + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// Returns words for a status, such as "rank lost (cause: peer)"; "unknown status" for other
/// numbers.
#[unsafe(no_mangle)]
pub extern "C" fn landbridge_status_text(status: c_int) -> *const c_char {
    CallStatus::from_code(status).map_or(c"unknown status", CallStatus::words).as_ptr()
}
