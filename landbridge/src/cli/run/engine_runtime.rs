//! The runtime of a gateway: the first thread waits for signals and serves the status, the thread
//! `engine` runs the engine, the trainers' tasks and all timers.
//!
//! `run` calls it. Tokio's own runtime of several threads panics where the system gives no thread.

use gateway::host::current_thread_runtime;
use gateway::limits::thread_limits::spawn_thread_within_limits;
use std::io;
use tokio::sync::oneshot;

/// Runs `future` on the calling thread, and the tasks that it spawns on the thread `engine`. Tasks
/// that have not ended by then are dropped at the end.
///
/// # Errors
/// The system gives no thread or no descriptors.
pub(super) fn block_on_with_engine_runtime<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = current_thread_runtime()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let engine = spawn_thread_within_limits("engine", move || {
        // The sender never sends: it is dropped.
        let _ = runtime.block_on(stopped);
    })?;
    let output = handle.block_on(future);
    drop(stop);
    // The panic of a task ends no thread; one of the runtime itself is logged.
    let _ = engine.join();
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn tasks_and_timers_run_beside_the_future() {
        let output = block_on_with_engine_runtime(async {
            let here = std::thread::current().id();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let there = tokio::spawn(async { std::thread::current().id() }).await;
            (here, std::thread::current().id(), there.expect("no panic"))
        });
        let (before, after, task) = output.expect("a thread");
        assert_eq!(before, after);
        assert_ne!(before, task);
    }
}
