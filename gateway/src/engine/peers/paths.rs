//! Has the paths to peers with missing lanes checked, and tells why lanes are missing.

use super::{Peer, Peers};
use crate::wan::connect::path_probe::path_check::{
    CheckedPaths, PathCheckFault, PathCheckFindings,
};
use hier_collectives::ids::GatewayId;
use units::TimeNs;

impl Peers {
    /// Returns the paths whose check has to begin, since lanes in use are missing at `now`.
    pub fn paths_to_check(&mut self, now: TimeNs) -> Vec<(GatewayId, CheckedPaths)> {
        let mut due = Vec::new();
        for (id, peer) in &mut self.peers {
            let missing = peer.lanes_up() < peer.number.in_use();
            let Some(paths) = peer.link.lane_paths(&self.fabric) else { continue };
            if peer.path.note_lanes(missing, now) {
                due.push((*id, paths));
            }
        }
        due
    }

    /// Stores the results of a check of the path to a peer; `None` if it was not possible.
    pub fn handle_path_checked(&mut self, id: GatewayId, findings: Option<PathCheckFindings>) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.path.note_findings(findings);
        }
    }
}

impl Peer {
    /// Returns why lanes are missing: the faults of the path, or else the last error of a lane.
    pub(super) fn shown_path_problem(&self) -> Option<String> {
        let faults = self.shown_path_faults();
        if faults.is_empty() {
            return self.lane_problem().map(|problem| problem.why.clone());
        }
        Some(faults.iter().map(PathCheckFault::to_string).collect::<Vec<_>>().join("; "))
    }

    /// Returns the action that makes missing lanes come up, if the problem shown is one of the
    /// path.
    pub(super) fn shown_path_remedy(&self) -> Option<String> {
        let remedies: Vec<String> =
            self.shown_path_faults().iter().map(PathCheckFault::remedy).collect();
        (!remedies.is_empty()).then(|| remedies.join("; "))
    }

    /// Returns the faults of the path, as last checked. A path on which nothing answers says less
    /// than the error of a peer that has answered.
    fn shown_path_faults(&self) -> Vec<PathCheckFault> {
        let mut faults = self.path.faults(self.lanes.len(), self.link.pinned_mtu);
        if self.lane_problem().is_some_and(|problem| !problem.is_unanswered) {
            faults.retain(|fault| !matches!(fault, PathCheckFault::Silent { .. }));
        }
        faults
    }
}
