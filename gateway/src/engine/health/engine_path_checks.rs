//! Checks the paths to peers whose lanes are missing, and judges the gateway.

use super::problem_log::ProblemLine;
use crate::engine::engine_task::Engine;
use crate::events::Event;
use crate::observe::readiness::describe_unready_epoch;
use crate::wan::connect::path_probe::path_check::check_path;
use std::sync::Arc;
use tracing::{debug, info, warn};
use units::TimeNs;

impl Engine {
    /// Begins the checks of paths that are due. A task for each sends `Event::PathChecked` at its
    /// end.
    pub(crate) fn check_paths(&mut self, now: TimeNs) {
        for (peer, paths) in self.shared.peers.paths_to_check(now) {
            let (host, events) = (Arc::clone(&self.shared.host), self.shared.events.clone());
            let check = async move {
                let findings = match check_path(&*host, &paths).await {
                    Ok(findings) => Some(findings),
                    Err(error) => {
                        debug!("the path to gateway {peer} cannot be checked: {error}");
                        None
                    }
                };
                let _ = events.send(Event::PathChecked { peer, findings }).await;
            };
            self.shared.host.spawn(Box::pin(check));
        }
    }

    /// Judges the gateway, and tells trainers without an epoch why. Sets the metrics of the
    /// judgement, and logs problems that last and that end.
    pub(crate) fn note_problems(&mut self, now: TimeNs) {
        let report = self.gateway_status_report();
        for job in self.jobs.values_mut() {
            job.tell_awaited_epoch(describe_unready_epoch(&report, &job.name), now);
        }
        self.metrics.follow_report(&report);
        for ((cause, subject), line) in self.problem_log.note_problems(&report.problems, now) {
            let cause = cause.name();
            match line {
                ProblemLine::Lasts(text) => warn!(cause, subject = %subject, "{text}"),
                ProblemLine::LastsStill(text) | ProblemLine::Ended(text) => {
                    info!(cause, subject = %subject, "{text}");
                }
            }
        }
    }
}
