//! Checks the paths to peers whose lanes are missing.

use crate::engine::engine_task::Engine;
use crate::events::Event;
use crate::wan::connect::path_probe::path_check::check_path;
use std::sync::Arc;
use tracing::debug;
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
}
