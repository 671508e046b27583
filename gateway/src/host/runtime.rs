//! Runtimes of one thread, for lanes, for the engine and for commands.

use crate::limits::descriptor_limit::check_descriptors_within_limit;
use std::future::Future;
use std::io;
use tokio::runtime::{Builder, Runtime};

/// 8 descriptors: a runtime is made only if the process can open 8 more, else the call fails with
/// an error. A runtime needs up to 6, for its events, its wake-ups and the signals of the process;
/// Tokio panics where it gets none for signals.
const RUNTIME_DESCRIPTORS: usize = 8;

/// Makes a runtime of one thread with timers and sockets.
///
/// # Errors
/// The process may open too few files; the text names the limit.
pub fn current_thread_runtime() -> io::Result<Runtime> {
    check_descriptors_within_limit(RUNTIME_DESCRIPTORS)?;
    Builder::new_current_thread().enable_all().build()
}

/// A runtime that a thread of another runtime makes for a new thread. Tokio panics when a thread that
/// runs tasks drops a [`Runtime`], which happens where the system gives no new thread.
#[derive(Debug)]
pub(super) struct HandedOverRuntime(Option<Runtime>);

impl HandedOverRuntime {
    /// Makes a runtime of one thread, which may end inside another runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Some(current_thread_runtime()?)))
    }

    /// Runs a future to its end in the calling thread.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.as_ref().expect("held until the drop").block_on(future)
    }
}

impl Drop for HandedOverRuntime {
    /// Ends the runtime without a wait for its blocking tasks.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
