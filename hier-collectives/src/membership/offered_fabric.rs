//! Fabrics that operators sign, and the agreement on the one in force.
//!
//! A fabric that is signed travels to all gateways as intents do. Each gateway checks it
//! ([`TermAction::CheckFabric`]) and holds the newest that it could put in force. A term names its
//! fabric, and a gateway votes only for a term whose fabric it holds or has in force. Once all gateways
//! of the term's regions hold the newest one, the first of them brings the jobs to a boundary and
//! proposes a term with it. So all gateways of a term have one fabric, or the term never begins.
//!
//! A fabric that some gateway of the term cannot put in force waits, and a newer one replaces it. A gateway
//! that was away, or was started again, hears of the newest by its standing.
//!
//! **A gateway with another fabric takes no part**, as if its region were not reached. Standings tell which
//! fabrics a gateway could enter a term with: the one in force there, and the newest. Whoever leads proposes a
//! term of the regions that have, as far as it knows, the one that it proposes. So a gateway that refuses the
//! fabric of the others, or runs with a file of its own, ends no term, and is taken in once it has theirs. A
//! gateway in no term asks those with other fabrics how they stand, and unknown ones, until it is in one.

use super::fabric_version::{FabricVersion, HeldFabrics, OldFabricError, SignedFabric};
use super::term::Term;
use super::term_agreement::{TermAction, TermAgreement};
use super::term_message::{TermMessage, TermStanding};
use super::term_proposal::proposal_gateways;
use crate::ids::{GatewayId, RegionId};
use crate::mesh::Routes;
use crate::mutant::{self, Mutant};
use crate::topology::Fabric;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::{Span, TimeNs};

/// 10 min, as `fabric apply` awaits by default: for how long other gateways wait for a boundary before they
/// put a fabric in force with which this gateway was started.
const FILE_FABRIC_WITHIN: Span = Span::from_secs(600);

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

    /// Holds the fabric of its file with the signature, so that others can get it. Call it at the start.
    pub fn hold_fabric_of_file(&mut self, signed: SignedFabric) {
        if signed.version == self.fabrics.in_force {
            self.fabrics.newest = Some(signed);
            self.fabrics.within = FILE_FABRIC_WITHIN;
        }
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
        let HeldFabrics { in_force, compared_again, .. } = self.fabrics;
        let (newest, refused) = (Some(fabric), None);
        self.fabrics =
            HeldFabrics { in_force, newest, within, asked_until, refused, compared_again };
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
        let is_refused = self.fabrics.refused == Some(fabric.version);
        if fabric.version > newest && !is_alike && !is_refused {
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

    /// Returns the fabric of the next term, as far as this gateway decides: the newest, if a term with it
    /// has begun, or if all hold it that may take part with the one in force; else the one in force.
    pub(super) fn next_fabric(&self) -> FabricVersion {
        let (in_force, newest) = (self.fabrics.in_force, self.fabrics.newest_version());
        let has_entered = |its: &TermStanding| its.in_force == newest && its.has_fabric_of_term();
        let is_decided = self.term.is_none() && self.standings.values().any(has_entered);
        let away = self.intents.made_leaves();
        let takes_part = |id: &GatewayId| {
            !away.contains(&self.fabric.gateway(*id).region) && !self.lacks_fabric(*id, in_force)
        };
        let is_half_held = mutant::is_mutant_active(Mutant::AdoptHalfHeld);
        let mut others = self.other_gateways_reached().filter(takes_part);
        if is_decided || is_half_held || others.all(|id| self.knows_to_hold_newest(id)) {
            newest
        } else {
            in_force
        }
    }

    /// Whether the newest fabric is to be put in force, and all that take part hold it.
    pub(super) fn is_fabric_ready(&self) -> bool {
        self.next_fabric() != self.fabrics.in_force
    }

    /// Returns when a fabric that is ready is put in force without a boundary.
    pub(super) fn fabric_deadline(&self, now: TimeNs) -> Option<TimeNs> {
        self.is_fabric_ready().then(|| now + self.fabrics.within)
    }

    /// Returns the regions that cannot take part in a term with the next fabric: a gateway of theirs that
    /// is reached is known to lack it.
    pub(super) fn regions_without_fabric(&self) -> BTreeSet<RegionId> {
        let region = |(id, _): (GatewayId, _)| self.fabric.gateway(id).region;
        self.gateways_apart().into_iter().map(region).collect()
    }

    /// Tells the gateways that are reached and not known to have the next fabric, and the newest, how this
    /// one stands, and asks them, from time to time while it is in no term. In a term it asks nobody.
    pub(super) fn compare_fabrics(&mut self, now: TimeNs) {
        let (next, newest) = (self.next_fabric(), self.fabrics.newest_version());
        let is_alike = |id: &GatewayId| {
            let its = self.standings.get(id);
            its.is_some_and(|its| its.has_fabric(next) && its.has_fabric(newest))
        };
        let others = self.other_gateways_reached().filter(|_| self.term.is_none());
        let unlike: Vec<GatewayId> = others.filter(|id| !is_alike(id)).collect();
        if unlike.is_empty() {
            self.fabrics.compared_again = None;
        } else if self.fabrics.compared_again.is_none_or(|due| due <= now) {
            self.fabrics.compared_again = Some(now + self.repeated_after());
            unlike.into_iter().for_each(|to| self.ask(to));
        }
    }

    /// Asks a gateway how it stands. One in no term says so first, as others may not know of its start.
    pub(super) fn ask(&mut self, to: GatewayId) {
        if self.term.is_none() {
            self.send(to, TermMessage::Standing(self.standing()));
        }
        self.send(to, TermMessage::Ask);
    }

    /// Whether a gateway is known to lack a fabric. Those of this gateway's term have that of the term.
    fn lacks_fabric(&self, id: GatewayId, version: FabricVersion) -> bool {
        if mutant::is_mutant_active(Mutant::AdoptHalfHeld) {
            return false;
        }
        let region = self.fabric.gateway(id).region;
        let of_term = self.term.as_ref().filter(|term| term.regions.contains(&region));
        of_term.is_none_or(|term| term.fabric != version)
            && self.standings.get(&id).is_some_and(|its| !its.has_fabric(version))
    }

    /// Returns the other gateways with ranks that are reached.
    fn other_gateways_reached(&self) -> impl Iterator<Item = GatewayId> {
        self.fabric.gateway_ids().filter(|id| self.is_told_of_fabrics(*id))
    }

    /// Asks the gateways of these regions that do not hold the newest fabric how they stand, from time to
    /// time, while that one waits and its time is not over. Their standing tells what they lack.
    pub(super) fn ask_for_fabric(&mut self, regions: &BTreeSet<RegionId>, now: TimeNs) {
        if self.due.is_some() || !self.asks_for_fabric(now) {
            return;
        }
        self.due = Some(now + self.repeated_after());
        let fabric = Arc::clone(&self.fabric);
        let gateways = proposal_gateways(&fabric, regions);
        let missing: Vec<_> = gateways.filter(|id| !self.knows_to_hold_newest(*id)).collect();
        missing.into_iter().for_each(|to| self.send(to, TermMessage::Ask));
    }

    /// Whether the newest fabric waits for gateways that take part, and its time is not over.
    pub(super) fn asks_for_fabric(&self, now: TimeNs) -> bool {
        let waits = self.fabrics.newest_version() != self.fabrics.in_force;
        waits && now <= self.fabrics.asked_until && !self.is_fabric_ready()
    }

    /// Tells the newest fabric to all gateways that are reached now and were not over the routes before.
    pub(super) fn tell_fabric_to_new(&mut self, before: &Routes) {
        let fabric = Arc::clone(&self.fabric);
        fabric.gateway_ids().filter(|id| !before.reaches(*id)).for_each(|to| self.tell_fabric(to));
    }

    /// Tells a gateway the newest signed fabric if its newest one is older, and it has not refused that.
    pub(super) fn answer_fabric_of(&mut self, from: GatewayId, theirs: FabricVersion) {
        let newest = self.fabrics.newest_version();
        let has_refused = self.standings.get(&from).is_some_and(|its| its.refused == newest);
        if theirs < newest && !has_refused {
            self.tell_fabric(from);
        }
    }

    /// Notes that this gateway cannot put a fabric in force whose signature and version are good, so that
    /// nobody sends it again.
    pub fn refuse_fabric(&mut self, version: FabricVersion) {
        self.fabrics.refused = Some(version);
    }

    /// Forgets which fabric was refused, since the cause may have passed, and lets others send theirs again.
    pub fn reconsider_fabrics(&mut self) {
        self.fabrics.refused = None;
        let others: Vec<GatewayId> = self.other_gateways_reached().collect();
        others.into_iter().for_each(|to| self.send(to, TermMessage::Standing(self.standing())));
    }

    /// Returns the gateways that are reached and known to lack the fabric of the next term, so that their
    /// regions take no part in it; each with the version in force there.
    pub fn gateways_apart(&self) -> Vec<(GatewayId, FabricVersion)> {
        let next = self.next_fabric();
        let others = self.other_gateways_reached().filter(|id| self.lacks_fabric(*id, next));
        others.filter_map(|id| Some((id, self.standings.get(&id)?.in_force))).collect()
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
        id == self.me || self.standings.get(&id).is_some_and(|its| its.newest == newest)
    }
}
