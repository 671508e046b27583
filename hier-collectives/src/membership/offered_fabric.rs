//! Fabrics that operators sign, and the agreement on the one in force.
//!
//! A fabric that is signed travels to all gateways as intents do. Each gateway checks it
//! ([`TermAction::CheckFabric`]) and holds the newest that it could put in force. A term names its
//! fabric, and a gateway votes only for a term whose fabric it holds or has in force. Once all gateways
//! of the term's regions hold the newest one, the first of them brings the jobs to a boundary and
//! proposes a term with it. So all gateways of a term have one fabric, or the term never begins.
//!
//! A fabric that some gateway cannot put in force waits, and a newer one replaces it. A gateway that was
//! away, or was started again, hears of the newest by its standing, and votes for no term until it holds
//! that one.

use super::fabric_version::{FabricVersion, HeldFabrics, OldFabricError, SignedFabric};
use super::term::Term;
use super::term_agreement::{TermAction, TermAgreement};
use super::term_message::TermMessage;
use super::term_proposal::proposal_gateways;
use crate::ids::{GatewayId, RegionId};
use crate::mesh::Routes;
use crate::mutant::{self, Mutant};
use crate::topology::Fabric;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::{Span, TimeNs};

/// Fabrics.
impl TermAgreement {
    /// Returns the version of the fabric in force.
    pub fn fabric_in_force(&self) -> FabricVersion {
        self.fabrics.in_force
    }

    /// Returns the version of the newest fabric that this gateway holds.
    pub fn newest_fabric(&self) -> FabricVersion {
        self.fabrics.newest_version()
    }

    /// Returns the gateways of the term that are not known to hold the newest fabric; none outside a term.
    pub fn gateways_without_newest_fabric(&self) -> Vec<GatewayId> {
        let regions = self.term.as_ref().map(|term| term.regions.clone()).unwrap_or_default();
        let gateways = proposal_gateways(&self.fabric, &regions);
        gateways.filter(|id| !self.knows_to_hold_newest(*id)).collect()
    }

    /// Begins to put a signed fabric in force at all gateways, at a step's boundary, or after `within`
    /// without one. The caller has checked its signature, and that this gateway could put it in force.
    ///
    /// # Errors
    /// [`OldFabricError`]: it is not newer than all that are known here.
    pub fn offer_fabric(
        &mut self,
        fabric: SignedFabric,
        within: Span,
        now: TimeNs,
    ) -> Result<(), OldFabricError> {
        self.check_offered_version(fabric.version)?;
        let asked_until = now + within;
        let in_force = self.fabrics.in_force;
        self.fabrics = HeldFabrics { in_force, newest: Some(fabric), within, asked_until };
        let others = Arc::clone(&self.fabric);
        for to in others.gateway_ids() {
            self.tell_fabric(to);
            if self.is_told_of_fabrics(to) {
                self.send(to, TermMessage::Standing(self.standing()));
            }
        }
        self.advance(now);
        Ok(())
    }

    /// Checks that a version is newer than the newest known one.
    ///
    /// # Errors
    /// [`OldFabricError`]: it is not.
    pub fn check_offered_version(&self, offered: FabricVersion) -> Result<(), OldFabricError> {
        let newest = self.fabrics.newest_version();
        if offered <= newest && !mutant::is_mutant_active(Mutant::TakeOldFabric) {
            return Err(OldFabricError { offered: offered.number, newest: newest.number });
        }
        Ok(())
    }

    /// Handles a fabric of another gateway: asks for a check if it may be taken here.
    pub(super) fn handle_fabric(&mut self, fabric: SignedFabric, within: Span) {
        let newest = self.fabrics.newest_version();
        let is_alike = mutant::is_mutant_active(Mutant::IgnoreFabricDigest)
            && fabric.version.number == newest.number;
        if fabric.version > newest && !is_alike {
            self.actions.push_back(TermAction::CheckFabric { fabric, within });
        }
    }

    /// Whether this gateway may still enter a term with a fabric: the newest one, or that of the term
    /// for which it has voted last.
    pub fn may_need_fabric(&self, version: FabricVersion) -> bool {
        let voted = self.voted.as_ref().map(|term| term.fabric);
        version == self.fabrics.newest_version() || voted == Some(version)
    }

    /// Replaces the fabric by one with other rates, round trips or losses of links. Regions, gateways,
    /// quorum and votes are the same.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>) {
        self.fabric = fabric;
    }

    /// Puts the fabric of a term in force that this gateway enters.
    pub(super) fn adopt_fabric_of(&mut self, term: &Term) {
        self.fabrics.in_force = term.fabric;
    }

    /// Whether this gateway could enter a term with a fabric: it has that one in force, or holds it.
    pub(super) fn has_fabric(&self, version: FabricVersion) -> bool {
        let fabrics = &self.fabrics;
        fabrics.in_force == version
            || fabrics.newest_version() == version
            || mutant::is_mutant_active(Mutant::AdoptHalfHeld)
    }

    /// Returns the fabric of a term of these regions, which this gateway proposes: the newest, if all
    /// their gateways are known to hold it, else the one in force.
    pub(super) fn fabric_to_propose(&self, regions: &BTreeSet<RegionId>) -> FabricVersion {
        let mut gateways = proposal_gateways(&self.fabric, regions);
        let is_half_held = mutant::is_mutant_active(Mutant::AdoptHalfHeld);
        if is_half_held || gateways.all(|id| self.knows_to_hold_newest(id)) {
            self.fabrics.newest_version()
        } else {
            self.fabrics.in_force
        }
    }

    /// Whether the newest fabric is to be put in force, and all gateways of these regions hold it.
    pub(super) fn is_fabric_ready(&self, regions: &BTreeSet<RegionId>) -> bool {
        self.fabric_to_propose(regions) != self.fabrics.in_force
    }

    /// Returns when a fabric that is ready is put in force without a boundary.
    pub(super) fn fabric_deadline(
        &self,
        regions: &BTreeSet<RegionId>,
        now: TimeNs,
    ) -> Option<TimeNs> {
        self.is_fabric_ready(regions).then(|| now + self.fabrics.within)
    }

    /// Asks the gateways of these regions that do not hold the newest fabric how they stand, from time to
    /// time, while that one waits and its time is not over. Their standing tells what they lack.
    pub(super) fn ask_for_fabric(&mut self, regions: &BTreeSet<RegionId>, now: TimeNs) {
        if self.due.is_some() || !self.asks_for_fabric(regions, now) {
            return;
        }
        self.due = Some(now + self.repeated_after());
        let fabric = Arc::clone(&self.fabric);
        let gateways = proposal_gateways(&fabric, regions);
        let missing: Vec<_> = gateways.filter(|id| !self.knows_to_hold_newest(*id)).collect();
        missing.into_iter().for_each(|to| self.send(to, TermMessage::Ask));
    }

    /// Whether the newest fabric waits for gateways of these regions, and its time is not over.
    pub(super) fn asks_for_fabric(&self, regions: &BTreeSet<RegionId>, now: TimeNs) -> bool {
        let waits = self.fabrics.newest_version() != self.fabrics.in_force;
        waits && now <= self.fabrics.asked_until && !self.is_fabric_ready(regions)
    }

    /// Tells the newest fabric to all gateways that are reached now and were not over the routes before.
    pub(super) fn tell_fabric_to_new(&mut self, before: &Routes) {
        let fabric = Arc::clone(&self.fabric);
        fabric.gateway_ids().filter(|id| !before.reaches(*id)).for_each(|to| self.tell_fabric(to));
    }

    /// Tells a gateway the newest signed fabric if its standing has an older one.
    pub(super) fn answer_fabric_of(&mut self, from: GatewayId, theirs: FabricVersion) {
        if theirs < self.fabrics.newest_version() {
            self.tell_fabric(from);
        }
    }

    /// Sends the newest signed fabric to another gateway with ranks that is reached.
    fn tell_fabric(&mut self, to: GatewayId) {
        if let Some(fabric) = self.fabrics.newest.clone().filter(|_| self.is_told_of_fabrics(to)) {
            let within = self.fabrics.within;
            self.send(to, TermMessage::Fabric { fabric, within });
        }
    }

    /// Whether another gateway has ranks, and is reached.
    fn is_told_of_fabrics(&self, to: GatewayId) -> bool {
        to != self.me && self.fabric.witness() != Some(to) && self.routes.reaches(to)
    }

    /// Whether a gateway is known to hold the newest fabric that this one holds.
    fn knows_to_hold_newest(&self, id: GatewayId) -> bool {
        let newest = self.fabrics.newest_version();
        id == self.me || self.standings.get(&id).is_some_and(|its| its.fabric == newest)
    }
}
