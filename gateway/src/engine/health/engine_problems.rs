//! Judges the gateway, and logs problems that last.

use super::problem_log::ProblemLine;
use crate::engine::Engine;
use crate::observe::readiness::describe_unready_epoch;
use tracing::{info, warn};
use units::TimeNs;

impl Engine {
    /// Judges the gateway, and tells trainers without an epoch why. Sets the metrics of the
    /// judgement, and logs problems that last and that end.
    pub(crate) fn note_problems(&mut self, now: TimeNs) {
        let report = self.gateway_status_report();
        for job in self.jobs.values_mut() {
            job.tell_why_job_waits(describe_unready_epoch(&report, &job.name), now);
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
