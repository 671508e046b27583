//! Ends the process when the gateway does not stop by itself.
//!
//! `run` starts this watchdog before the gateway, on a thread of its own: the threads of a stuck
//! gateway handle no signal and no timer.

use crate::cli::output::exit::Exit;
use crate::cli::output::logging::LOG_TARGET;
use gateway::host::current_thread_runtime;
use gateway::limits::thread_limits::spawn_thread_within_limits;
use std::convert::Infallible;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tracing::error;
use units::Span;

/// 4 s: a gateway's process that still runs so long after its drain, or after SIGINT, is ended by
/// force. With a drain of 25 s that is before supervisors commonly kill a process, at 30 s.
/// Tested by `a_stuck_gateway_ends_after_sigterm`.
const STOP_TIMEOUT: Duration = Duration::from_secs(4);

/// Starts the watchdog thread. SIGTERM then ends the process within `drain` plus [`STOP_TIMEOUT`];
/// a second SIGTERM, or SIGINT, within [`STOP_TIMEOUT`] alone.
///
/// # Errors
/// The system refuses a thread or a signal's handler.
pub(super) fn spawn_stop_watchdog(drain: Span) -> io::Result<()> {
    let runtime = current_thread_runtime()?;
    let inside = runtime.enter();
    let interrupt = signal(SignalKind::interrupt())?;
    let terminate = signal(SignalKind::terminate())?;
    drop(inside);
    let body = move || runtime.block_on(exit_after_stop_signal(drain, interrupt, terminate));
    spawn_thread_within_limits("stop", body).map(|_| ())
}

/// Waits for SIGTERM or SIGINT, then for the time that the gateway has to stop, and ends the
/// process. The exit code is [`Exit::Interrupted`] where SIGINT came first, else
/// [`Exit::CheckFailed`].
async fn exit_after_stop_signal(
    drain: Span,
    mut interrupt: Signal,
    mut terminate: Signal,
) -> Infallible {
    let exit = tokio::select! {
        biased;
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => {
            tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = sleep(drain.duration()) => {}
            }
            Exit::CheckFailed
        }
    };
    sleep(STOP_TIMEOUT).await;
    error!(target: LOG_TARGET, "the gateway did not stop in time, which is a bug: ending the process");
    stdio::flush_stderr();
    std::process::exit(exit as i32)
}
