//! Checks the paths to peers whose lanes are missing, and judges the gateway.

use super::problem_log::ProblemLine;
use crate::engine::event_loop::Engine;
use crate::events::Event;
use crate::observe::readiness::is_ready;
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

    /// Judges the gateway, sets the metric of its readiness, and logs problems that last and that
    /// end.
    pub(crate) fn note_problems(&mut self, now: TimeNs) {
        let problems = self.gateway_report().problems;
        self.metrics.ready.set(i64::from(is_ready(&problems)));
        for line in self.problem_log.note_problems(&problems, now) {
            match line {
                ProblemLine::Lasts(text) => warn!("{text}"),
                ProblemLine::LastsStill(text) | ProblemLine::Ended(text) => info!("{text}"),
            }
        }
    }
}
