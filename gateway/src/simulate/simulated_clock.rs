//! The virtual clock.

use std::future::Future;

/// Runs a future to its end in virtual time: under a paused clock, which jumps to the next timer as
/// soon as no task can run.
///
/// # Errors
/// The system has no resources for a runtime.
pub fn run_with_simulated_clock<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_time().start_paused(true).build()?.block_on(future))
}
