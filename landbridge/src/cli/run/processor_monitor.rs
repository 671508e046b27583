//! Watches whether the system gives a gateway the processor time that it needs.

use crate::cli::output::logging::LOG_TARGET;
use gateway::host::{Host, RealHost};
use gateway::limits::processor_throttle::ProcessorThrottle;
use gateway::observe::readiness::PROCESSOR_REMEDY;
use gateway::warn_if_due;
use gateway::warnings::{WarningCause, Warnings};
use std::convert::Infallible;
use tokio::sync::watch;
use units::Span;

/// 10 s: `run` reads so often for how long a limit held the gateway back. A problem appears and
/// ends at most this time later. The time is chosen.
const READ_INTERVAL: Span = Span::from_secs(10);

/// Sends the limit that holds this process back to `problem` while there is one. Logs a warning
/// when it begins, and a line when it ends.
pub(super) async fn monitor_processor_throttle(
    problem: watch::Sender<Option<String>>,
    warnings: Warnings,
) -> Infallible {
    let mut throttle = ProcessorThrottle::of_process();
    let mut last = RealHost.now();
    loop {
        tokio::time::sleep(READ_INTERVAL.duration()).await;
        let now = RealHost.now();
        let found = throttle.problem_since(now.since(last));
        last = now;
        let was_held_back = problem.borrow().is_some();
        match &found {
            Some(found) if !was_held_back => warn_if_due!(
                warnings.is_due(WarningCause::Limit, "processor", now),
                target: LOG_TARGET,
                "{found}; {PROCESSOR_REMEDY}"
            ),
            None if was_held_back => {
                tracing::info!(
                    target: LOG_TARGET,
                    "no limit on processors holds the gateway back any more"
                );
            }
            _ => {}
        }
        problem.send_replace(found);
    }
}
