//! A term that this gateway proposes, and the votes for it; and the pause before it, in which gateways
//! bring their jobs to a boundary.

use super::term::Term;
use crate::ids::{GatewayId, RegionId};
use crate::mutant::{self, Mutant};
use crate::post::Failure;
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};
use units::TimeNs;

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
        let support = ProposalSupport::of_regions(fabric, &self.term.regions, remembers);
        proposal_gateways(fabric, &self.term.regions).all(|id| self.votes.contains_key(&id))
            && match support {
                ProposalSupport::Enough => true,
                ProposalSupport::WithWitness(_) => fabric.witness().is_some_and(remembers),
                ProposalSupport::TooLittle => false,
            }
    }
}

/// Whether some regions may go on together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProposalSupport {
    /// They may: those of them that remember a term are a quorum, or all regions with ranks take
    /// part.
    Enough,
    /// They may if the witness votes for it: these regions, which remember, are a quorum with it.
    WithWitness(BTreeSet<RegionId>),
    /// They may not.
    TooLittle,
}

impl ProposalSupport {
    /// Judges the regions of a proposal. A region remembers if all its gateways do.
    pub fn of_regions(
        fabric: &Fabric,
        regions: &BTreeSet<RegionId>,
        remembers: impl Fn(GatewayId) -> bool,
    ) -> Self {
        let of_region = |id: &RegionId| fabric.region(*id).gateways.clone().map(GatewayId);
        let trusts_all = mutant::is_mutant_active(Mutant::LeadStale);
        let is_known = |id: &&RegionId| trusts_all || of_region(id).all(&remembers);
        let known: BTreeSet<RegionId> = regions.iter().filter(is_known).copied().collect();
        if regions.len() == fabric.ranked_region_count() || fabric.is_quorum(&known) {
            Self::Enough
        } else if !known.is_empty() && is_quorum_with_witness(fabric, &known) {
            Self::WithWitness(known)
        } else {
            Self::TooLittle
        }
    }
}

/// Returns the gateways of some regions, ascending.
pub(super) fn proposal_gateways<'f>(
    fabric: &'f Fabric,
    regions: &'f BTreeSet<RegionId>,
) -> impl Iterator<Item = GatewayId> + 'f {
    regions.iter().flat_map(|id| fabric.region(*id).gateways.clone().map(GatewayId))
}

/// Whether these regions are a quorum, if need be with the witness.
pub(super) fn is_quorum_with_witness(fabric: &Fabric, regions: &BTreeSet<RegionId>) -> bool {
    let witness = fabric.witness().map(|id| fabric.gateway(id).region);
    fabric.is_quorum(&regions.iter().copied().chain(witness).collect())
}

/// The pause of the jobs of a term that this gateway is about to replace.
#[derive(Debug)]
pub(super) struct TermPause {
    /// The failure that ranks hear at the boundary.
    pub failure: Failure,
    /// When the term is replaced whether or not the jobs are at a boundary.
    pub until: TimeNs,
    /// The gateways whose jobs have come to the boundary.
    pub paused: BTreeSet<GatewayId>,
    /// Whether the next term is being proposed.
    pub is_over: bool,
}

/// The pause that a gateway of the term has asked for.
#[derive(Debug)]
pub(super) struct AskedPause {
    /// The failure that ranks hear at the boundary.
    pub failure: Failure,
    /// The gateway that replaces the term.
    pub from: GatewayId,
    /// When the time of the leave is over for which it asked first; `None` if it asked for no leave.
    pub until: Option<TimeNs>,
    /// Whether all jobs here are at a boundary.
    pub is_reached: bool,
}
