//! Leaves that are not made in time, and are called off.
//!
//! A leave waits for a boundary until its time is over. Then it is overdue: the gateways propose a term
//! without the region if the others can go on, and a term with it if they cannot. Such a term calls the
//! leave off. So all gateways of a term settle an intent alike, and a gateway that was lost meanwhile
//! settles nothing.
//!
//! **Jobs wait at a boundary no longer than that.** If the others part while jobs wait there, the first
//! gateway brings the end of the leave forward, everywhere.
//!
//! **A leave is as good as the memory behind it.** If all regions are reached, and those that stay may not
//! go on since too few of them remember a term, it is called off as well: only a term of all regions can
//! begin. A gateway that was away may know an intent that later ones followed, which all others have
//! forgotten. Regions that remember and are a quorum have a gateway in common with every later term, so
//! that their intents are the last ones.

use super::region_intents::RegionIntentError;
use super::term::Term;
use super::term_agreement::TermAgreement;
use crate::ids::RegionId;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::{Span, TimeNs};

/// 1 s: a leave for which jobs wait at a boundary is called off so long after the other regions
/// parted. It is the shortest time of an intent, which counts whole seconds.
const PARTED_LEAVE_ENDS_AFTER: Span = Span::from_secs(1);

impl TermAgreement {
    /// Returns the regions whose last leave was called off, each with the reason.
    pub fn called_off_leaves(&self) -> Vec<(RegionId, String)> {
        self.intents.called_off()
    }

    /// Returns the regions that are reached, are not in `left` and may have the fabric of the next term. A
    /// gateway of a region in `left` gets the other regions of its term, or none if these are parted.
    pub(super) fn regions_without(&self, left: &BTreeSet<RegionId>) -> BTreeSet<RegionId> {
        if left.contains(&self.fabric.gateway(self.me).region) {
            let members = self.term.as_ref().map(|term| term.regions.clone());
            let staying = &members.unwrap_or_default() - left;
            return match self.check_staying_regions(&staying) {
                Err(RegionIntentError::Unlinked(_)) => BTreeSet::new(),
                _ => staying,
            };
        }
        let count = u16::try_from(self.fabric.ranked_region_count()).unwrap_or(u16::MAX);
        let out = left | &self.regions_without_fabric();
        self.reached_among((0..count).map(RegionId).filter(|id| !out.contains(id)).collect())
    }

    /// Whether this gateway is in no term and in a region that leaves, and the others can go on. It proposes
    /// nothing then: its proposals would be refused, and hold those of the others up.
    pub(super) fn is_left_by_others(&self, left: &BTreeSet<RegionId>) -> bool {
        let is_out = self.term.is_none() && left.contains(&self.fabric.gateway(self.me).region);
        let staying = &(&self.reached_regions() - left) - &self.regions_without_fabric();
        is_out && self.check_staying_regions(&staying).is_ok()
    }

    /// Whether regions can go on without those that leave: they may, and have all others of the term.
    pub(super) fn may_be_next(&self, staying: &BTreeSet<RegionId>) -> bool {
        let left = self.intents.left();
        let has_others = self.term.as_ref().is_none_or(|term| {
            let others = &term.regions - &left;
            staying.is_superset(&others)
        });
        has_others && self.may_go_on(staying)
    }

    /// Returns the regions that this gateway votes for in no term: those that have left. A leave that is
    /// overdue counts only at a gateway that stays, while the others can go on.
    pub(super) fn regions_kept_out(&self) -> BTreeSet<RegionId> {
        let left = self.intents.left();
        let stays = !left.contains(&self.fabric.gateway(self.me).region);
        if stays && self.may_be_next(&self.regions_without(&left)) {
            return left;
        }
        &left - &self.intents.overdue()
    }

    /// Brings the end of leaves forward if this gateway has asked jobs to wait for a term without the
    /// region, and the others have parted since.
    pub(super) fn end_parted_leaves(&mut self, now: TimeNs) {
        let left = self.intents.left();
        let Some(term) = self.term.as_ref().filter(|_| self.pause.is_some()) else { return };
        let leaving = &term.regions & &left;
        let until = now + PARTED_LEAVE_ENDS_AFTER;
        let has_parted = !leaving.is_empty() && !self.may_be_next(&self.regions_without(&left));
        if has_parted && self.intents.bring_forward(&leaving, until) {
            self.tell_all_intents(now);
        }
    }

    /// Settles the intents that a new term meets or calls off, and tells all others. The leader of the
    /// term tells the intents without news, too: what somebody told on a link that broke may be lost, while
    /// others led to the gateway.
    pub(super) fn settle_intents(&mut self, term: &Term, now: TimeNs) {
        let regions = &term.regions;
        let others = regions - &self.intents.overdue();
        let why = match self.check_staying_regions(&others) {
            Ok(()) => "the others formed no term without it in time".to_owned(),
            Err(why) => why.to_string(),
        };
        let has_news = self.intents.note_term(regions) | self.intents.call_off(regions, &why);
        if has_news || term.id.boot == self.boot {
            self.tell_all_intents(now);
        }
    }

    /// Calls all leaves off if all regions are reached, so that they go on together; returns whether that
    /// is so. Called where those that stay are known to remember too little.
    pub(super) fn drop_forgotten_leaves(&mut self, now: TimeNs) -> bool {
        let all = self.regions_without(&BTreeSet::new());
        let is_needed = !self.intents.left().is_empty();
        if !is_needed || all.len() < self.fabric.ranked_region_count() {
            return false;
        }
        self.intents.call_all_off("too few of the others remember what was done without it");
        self.tell_all_intents(now);
        true
    }

    /// Tells all gateways that are reached the intents.
    pub(super) fn tell_all_intents(&mut self, now: TimeNs) {
        let fabric = Arc::clone(&self.fabric);
        fabric.gateway_ids().for_each(|to| self.tell_intents(to, now));
    }
}
