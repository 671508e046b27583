//! Signals that end a command which has something to stop or to remove.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io;
use std::os::unix::net::UnixStream;

/// Returns a socket that is readable once the command is interrupted: by SIGINT or SIGTERM, or
/// because its terminal was closed, unless the command shall outlive it.
pub(super) fn watch_interrupts() -> io::Result<UnixStream> {
    let (interrupted, signal) = UnixStream::pair()?;
    for number in [SIGINT, SIGTERM] {
        pipe::register(number, signal.try_clone()?)?;
    }
    if !stdio::is_terminal_hangup_ignored() {
        pipe::register(SIGHUP, signal)?;
    }
    Ok(interrupted)
}
