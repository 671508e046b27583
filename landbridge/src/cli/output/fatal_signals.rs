//! Signals that end a process: an abort, as after a failed allocation, and a file that is too large.

#![expect(unsafe_code, reason = "a signal handler writes the limits on memory")]

use super::exit::Exit;
use gateway::limits::memory_limits::describe_memory_limits;
use signal_hook::consts::{SIGABRT, SIGXFSZ};
use signal_hook::low_level;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Makes an abort end the process with exit code 1 instead of a signal and a core dump. Rust aborts
/// after it has printed that an allocation failed; the limits on memory, with the remedy, follow.
pub(crate) fn handle_fatal_abort_signal() -> std::io::Result<()> {
    // Nothing may be allocated any more when the text is needed.
    let limits = describe_memory_limits();
    let text = match &limits[..] {
        "" => String::new(),
        limits => format!("if memory ran out: {limits}; raise the limit that is met\n"),
    };
    // SAFETY: the handler allocates nothing and takes no lock: it makes two system calls.
    let registered = unsafe {
        low_level::register(SIGABRT, move || {
            // Whoever reads the text may be gone.
            let _ = rustix::io::write(std::io::stderr().as_fd(), text.as_bytes());
            low_level::exit(Exit::CheckFailed as i32)
        })
    };
    registered.map(|_| ())
}

/// Makes a write above the limit on the size of files (`ulimit -f`) fail like one on a full disk. The
/// kernel would end the process by SIGXFSZ.
pub(crate) fn ignore_fatal_file_size_signal() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(|_| ())
}
