//! Has the paths to peers with missing lanes checked, and tells why lanes are missing.

use super::{Peer, Peers};
use crate::wan::PeerLink;
use crate::wan::connect::path_probe::path_check::{PathCheckFault, PathCheckFindings};
use crate::wan::connect::peer_addresses::UNRESOLVED_NAME_REMEDY;
use hier_collectives::ids::GatewayId;
use std::sync::Arc;
use units::TimeNs;

impl Peers {
    /// Returns the peers to which the check of the path has to begin, since lanes in use are missing at
    /// `now`. Peers that cannot be dialled are left out.
    pub fn paths_to_check(&mut self, now: TimeNs) -> Vec<(GatewayId, Arc<PeerLink>)> {
        let mut due = Vec::new();
        for (id, peer) in &mut self.peers {
            let missing = peer.lanes_up() < peer.number.in_use();
            if peer.link.addresses.is_some() && peer.path.note_lanes(missing, now) {
                due.push((*id, Arc::clone(&peer.link)));
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
    /// Returns why lanes are missing: a host name that is not resolved, the faults of the path, or else
    /// the last error of a lane.
    pub(super) fn shown_path_problem(&self) -> Option<String> {
        let faults = self.shown_path_faults();
        let unresolved = self.shown_unresolved_name();
        if faults.is_empty() && unresolved.is_none() {
            return self.lane_problem().map(|problem| problem.why.clone());
        }
        let faults = faults.iter().map(PathCheckFault::to_string);
        Some(unresolved.into_iter().chain(faults).collect::<Vec<_>>().join("; "))
    }

    /// Returns the action that makes missing lanes come up, if the problem shown is one of the
    /// path or of the peer's host name.
    pub(super) fn shown_path_remedy(&self) -> Option<String> {
        let unresolved = self.shown_unresolved_name().map(|_| UNRESOLVED_NAME_REMEDY.to_owned());
        let remedies = self.shown_path_faults();
        let remedies = remedies.iter().map(PathCheckFault::remedy);
        let remedies: Vec<String> = unresolved.into_iter().chain(remedies).collect();
        (!remedies.is_empty()).then(|| remedies.join("; "))
    }

    /// Returns why a host name of the peer cannot be resolved, while lanes to it are missing.
    fn shown_unresolved_name(&self) -> Option<String> {
        let problem = self.link.addresses.as_ref()?.problem()?;
        (self.lanes_up() < self.number.in_use()).then_some(problem)
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
