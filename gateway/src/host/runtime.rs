//! Runtimes of one thread, for lanes, for the engine and for commands.

use crate::limits::process::check_free_descriptors;
use std::io;
use tokio::runtime::{Builder, Runtime};

/// 8 descriptors: a runtime needs up to 6, for its events, its wake-ups and the signals of the
/// process. Tokio panics where it gets none for signals.
const RUNTIME_DESCRIPTORS: usize = 8;

/// Makes a runtime of one thread with timers and sockets.
///
/// # Errors
/// The process may open too few files; the text names the limit.
pub fn current_thread_runtime() -> io::Result<Runtime> {
    check_free_descriptors(RUNTIME_DESCRIPTORS)?;
    Builder::new_current_thread().enable_all().build()
}
