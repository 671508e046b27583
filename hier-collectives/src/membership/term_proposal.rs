//! A term that this gateway proposes, and the votes for it.

use super::term::Term;
use crate::ids::{GatewayId, RegionId};
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};

/// A term that this gateway proposes.
#[derive(Debug)]
pub(super) struct TermProposal {
    pub term: Term,
    /// The gateways that have voted, and whether each remembers a term.
    votes: BTreeMap<GatewayId, bool>,
}

impl TermProposal {
    /// Makes the proposal of a term that nobody has voted for.
    pub fn of_term(term: Term) -> Self {
        Self { term, votes: BTreeMap::new() }
    }

    /// Records the vote of a gateway, which says whether it remembers a term.
    pub fn add_vote(&mut self, from: GatewayId, remembers: bool) {
        self.votes.insert(from, remembers);
    }

    /// Whether all gateways have voted whose votes the term needs, and enough of them remember.
    pub fn is_carried(&self, fabric: &Fabric) -> bool {
        let remembers = |id| self.votes.get(&id).copied().unwrap_or(false);
        proposal_gateways(fabric, &self.term.regions).all(|id| self.votes.contains_key(&id))
            && is_proposal_remembered(fabric, &self.term.regions, remembers)
    }
}

/// Returns the gateways of some regions, ascending.
pub(super) fn proposal_gateways<'f>(
    fabric: &'f Fabric,
    regions: &'f BTreeSet<RegionId>,
) -> impl Iterator<Item = GatewayId> + 'f {
    regions.iter().flat_map(|id| fabric.region(*id).gateways.clone().map(GatewayId))
}

/// Whether these regions may go on together: those that remember a term are a quorum, or all regions
/// of the fabric take part. A region remembers if all its gateways do.
pub(super) fn is_proposal_remembered(
    fabric: &Fabric,
    regions: &BTreeSet<RegionId>,
    remembers: impl Fn(GatewayId) -> bool,
) -> bool {
    let of_region = |id: &RegionId| fabric.region(*id).gateways.clone().map(GatewayId);
    let known = regions.iter().filter(|id| of_region(id).all(&remembers)).copied().collect();
    regions.len() == fabric.regions().len() || fabric.is_quorum(&known)
}
