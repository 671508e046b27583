//! The witness's part in the agreement on terms.
//!
//! A witness is in no term: it leads nobody, and nothing waits for it while a term lasts. It votes
//! where the regions that meet are a quorum with it alone. It keeps the *possible terms*: the last
//! term that began everywhere, and those that it has voted for since. A term gets its vote only if
//! it has, for each possible term, a region that was in that one and remembers. That region has left
//! the possible term, which then cannot go on, and knows what was done in it. So the witness never
//! helps two parts that have no region in common.
//!
//! A witness that was started again knows no possible term, and does not vote until all gateways of
//! a term have told it that an epoch of this term has begun there.

use super::fabric_version::FabricVersion;
use super::term::{Term, TermId};
use super::term_message::{TermMessage, TermStanding};
use super::term_proposal::{is_quorum_with_witness, proposal_gateways};
use crate::ids::{BootId, GatewayId, RegionId};
use crate::mesh::{MeshGraph, Routes};
use crate::mutant::{self, Mutant};
use crate::session::PeerError;
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// 256 sets of regions of possible terms: a witness that keeps so many votes for no further one until
/// a term begins everywhere. So no gateway can fill its memory. The number is chosen.
const POSSIBLE_TERMS_MAX: usize = 256;

/// The agreement on terms, as the witness takes part in it.
#[derive(Debug)]
pub struct TermWitness {
    fabric: Arc<Fabric>,
    me: GatewayId,
    boot: BootId,
    routes: Routes,
    /// The greatest number of a term that the witness knows of.
    latest: u64,
    /// The regions of terms that may have gone on last, each with its latest term; none while the
    /// witness does not remember.
    possible: BTreeMap<BTreeSet<RegionId>, TermId>,
    /// The latest term of which each gateway has said that an epoch has begun there.
    begun: BTreeMap<GatewayId, TermId>,
    /// The latest term that has begun at all its gateways.
    begun_everywhere: TermId,
}

impl TermWitness {
    /// Makes the part of a witness that has just started: it reaches nobody, and remembers nothing.
    pub fn new(fabric: Arc<Fabric>, me: GatewayId, boot: BootId) -> Self {
        Self {
            fabric,
            me,
            boot,
            routes: Routes::none(),
            latest: 0,
            possible: BTreeMap::new(),
            begun: BTreeMap::new(),
            begun_everywhere: TermId::default(),
        }
    }

    /// Adopts the connections between all gateways; returns those that are reached now and were not
    /// before. They get the witness's [`TermWitness::standing`], since it may be another start.
    pub fn handle_connections(&mut self, graph: &MeshGraph) -> Vec<GatewayId> {
        let routes = Routes::from_gateway(graph, self.me);
        let before = std::mem::replace(&mut self.routes, routes);
        let is_new =
            |id: &GatewayId| *id != self.me && self.routes.reaches(*id) && !before.reaches(*id);
        self.fabric.gateway_ids().filter(is_new).collect()
    }

    /// Returns what the witness says about itself.
    pub fn standing(&self) -> TermMessage {
        self.standing_after(TermId::default())
    }

    /// Handles a message of another gateway; returns the answer, if there is one.
    ///
    /// # Errors
    /// [`PeerError`]: the gateway may not send it.
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: TermMessage,
    ) -> Result<Option<TermMessage>, PeerError> {
        match message {
            TermMessage::Ask => Ok(Some(self.standing())),
            TermMessage::ProposeToWitness { term, to, remembering } => {
                self.handle_proposal(from, term, to, &remembering).map(Some)
            }
            TermMessage::Begun { term, to } => self.handle_begun(from, term, to).map(Some),
            TermMessage::Standing(_) => Ok(None),
            _ => Err(PeerError::NotYours("a message about terms that is not for a witness")),
        }
    }

    /// Votes for a term whose regions need it, or refuses.
    fn handle_proposal(
        &mut self,
        from: GatewayId,
        term: Term,
        to: BootId,
        remembering: &BTreeSet<RegionId>,
    ) -> Result<TermMessage, PeerError> {
        self.check_sender(from, &term)?;
        if !remembering.is_subset(&term.regions) {
            return Err(PeerError::NotYours("a term in which others remember"));
        }
        if to != self.boot {
            return Ok(self.standing());
        }
        let is_later = term.id.number > self.latest;
        self.latest = self.latest.max(term.id.number);
        let knows_all = self.possible.keys().all(|regions| !regions.is_disjoint(remembering))
            || mutant::is_mutant_active(Mutant::VoteForBoth);
        let is_carried = self.remembers() && is_quorum_with_witness(&self.fabric, remembering);
        let has_room =
            self.possible.len() < POSSIBLE_TERMS_MAX || self.possible.contains_key(&term.regions);
        if !is_later || !knows_all || !is_carried || !has_room {
            return Ok(TermMessage::Refuse { term: term.id, latest: self.latest });
        }
        self.possible.insert(term.regions, term.id);
        Ok(TermMessage::Vote { term: term.id, boot: self.boot, remembers: true })
    }

    /// Notes that an epoch of a term has begun at a gateway. Once all gateways of the term have said
    /// so, no earlier term matters: whoever is in this one knows what was done before.
    fn handle_begun(
        &mut self,
        from: GatewayId,
        term: Term,
        to: BootId,
    ) -> Result<TermMessage, PeerError> {
        self.check_sender(from, &term)?;
        if to != self.boot {
            return Ok(self.standing());
        }
        self.latest = self.latest.max(term.id.number);
        let last = self.begun.entry(from).or_default();
        *last = term.id.max(*last);
        let has_begun = |id| self.begun.get(&id) == Some(&term.id);
        let is_everywhere = proposal_gateways(&self.fabric, &term.regions).all(has_begun);
        if is_everywhere && term.id > self.begun_everywhere {
            self.begun_everywhere = term.id;
            self.possible.retain(|_, id| *id > term.id);
            self.possible.entry(term.regions).or_insert(term.id);
        }
        Ok(self.standing_after(term.id))
    }

    /// Checks that a term is one of the fabric's, and that the sender is in it.
    fn check_sender(&self, from: GatewayId, term: &Term) -> Result<(), PeerError> {
        let ranked = self.fabric.ranked_region_count();
        let is_known = term.regions.iter().all(|id| usize::from(id.0) < ranked);
        let is_in_it = term.regions.contains(&self.fabric.gateway(from).region);
        if is_known && is_in_it && is_quorum_with_witness(&self.fabric, &term.regions) {
            Ok(())
        } else {
            Err(PeerError::NotYours("a term without a quorum, or without its gateway"))
        }
    }

    /// Whether the witness knows which terms may have gone on.
    pub fn remembers(&self) -> bool {
        !self.possible.is_empty()
    }

    /// Returns what the witness says about itself after word of a term.
    fn standing_after(&self, voted: TermId) -> TermMessage {
        TermMessage::Standing(TermStanding {
            boot: self.boot,
            latest: self.latest,
            voted,
            is_in_term: false,
            remembers: self.remembers(),
            in_force: FabricVersion::default(),
            newest: FabricVersion::default(),
            refused: FabricVersion::default(),
        })
    }
}
