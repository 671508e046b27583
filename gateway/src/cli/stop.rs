//! What ends the process when the gateway does not end by itself.

use super::Exit;
use std::convert::Infallible;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tracing::error;
use units::Span;

/// From the end of a drain, or from SIGINT, to the end of the process.
const STOP_WITHIN: Duration = Duration::from_secs(4);

/// How long saying so may take: whoever should read it may be what the gateway waits for.
const TELL_WITHIN: Duration = Duration::from_millis(500);

/// From now on SIGTERM ends the process within `drain` and a few seconds, whatever becomes of the
/// gateway; told twice, or by SIGINT, within the few seconds. On a thread of its own, since those of
/// a gateway that is stuck see no signal and no clock.
///
/// # Errors
/// The system refuses a thread or a signal's handler.
pub(super) fn watch(drain: Span) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let interrupt = signal(SignalKind::interrupt())?;
    let terminate = signal(SignalKind::terminate())?;
    drop(inside);
    let body = move || runtime.block_on(end(drain, interrupt, terminate));
    std::thread::Builder::new().name("stop".to_owned()).spawn(body)?;
    Ok(())
}

async fn end(drain: Span, mut interrupt: Signal, mut terminate: Signal) -> Infallible {
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
    sleep(STOP_WITHIN).await;
    let tell = || error!("the gateway did not stop in time, which is a bug; ending all the same");
    std::thread::spawn(tell);
    sleep(TELL_WITHIN).await;
    std::process::exit(exit as i32)
}
