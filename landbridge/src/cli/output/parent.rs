//! The tie of a child process to its parent.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io;

/// Ends this process when its parent ends, however that happens.
///
/// # Errors
/// The system refuses, or the parent has ended already.
pub(crate) fn exit_with_parent() -> io::Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have ended before the signal was set.
    if getppid() == parent { Ok(()) } else { Err(io::Error::other("the parent process has ended")) }
}
