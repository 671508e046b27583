//! Checks the paths to peers whose lanes are missing.

use crate::engine::engine_task::Engine;
use crate::events::Event;
use crate::host::Host;
use crate::wan::PeerLink;
use crate::wan::connect::path_probe::path_check::{PathCheckFindings, check_path};
use hier_collectives::topology::Fabric;
use std::sync::Arc;
use tracing::debug;
use units::TimeNs;

impl Engine {
    /// Begins the checks of paths that are due. A task for each sends `Event::PathChecked` at its
    /// end.
    pub(crate) fn check_paths(&mut self, now: TimeNs) {
        for (peer, link) in self.shared.peers.paths_to_check(now) {
            let (host, events) = (Arc::clone(&self.shared.host), self.shared.events.clone());
            let fabric = Arc::clone(&self.fabric);
            let check = async move {
                let findings = check_path_to_peer(&*host, &link, &fabric).await;
                let _ = events.send(Event::PathChecked { peer, findings }).await;
            };
            self.shared.host.spawn(Box::pin(check));
        }
    }
}

/// Resolves the host names of a peer, if it has any, and checks the path to it; `None` if that is not
/// possible.
async fn check_path_to_peer(
    host: &dyn Host,
    link: &PeerLink,
    fabric: &Fabric,
) -> Option<PathCheckFindings> {
    link.addresses.as_ref()?.refresh(host, link.local.first().ip()).await;
    match check_path(host, &link.lane_paths(fabric)?).await {
        Ok(findings) => Some(findings),
        Err(error) => {
            debug!("the path to gateway {} cannot be checked: {error}", link.id);
            None
        }
    }
}
