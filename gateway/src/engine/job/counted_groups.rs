//! Groups that their ranks found by counting, and the epochs of the parent in which they count.
//!
//! Ranks count the groups that they make in each epoch of the parent. After that epoch no rank can
//! make one of them, so those who made it before would wait in vain for the others.

use super::Job;
use super::engine_shared::EngineShared;
use super::groups::group_text;
use crate::events::GroupPlace;
use hier_collectives::ids::{Epoch, GroupId};
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::wire::GroupFacts;
use units::TimeNs;

impl Job {
    /// Returns the failure of a rank that makes a group now whose place was counted in an epoch of
    /// the parent that has ended; `None` for every other group, and for one with a tag.
    pub(super) fn counted_group_failure(&self, facts: &GroupFacts) -> Option<Failure> {
        let parent = if facts.parent == self.world.id {
            &self.world
        } else {
            self.groups.get(&facts.parent).or_else(|| self.terms.parts.get(&facts.parent))?
        };
        let Epoch(epoch) = parent.session.epoch_number();
        // Outside an epoch, ranks count in the next one.
        let counting = if parent.session.plan().is_some() { epoch } else { epoch + 1 };
        GroupPlace(facts.place).is_before(Epoch(counting)).then(|| {
            let text = format!(
                "the epoch of the parent ended before all ranks had made {}; make it again on all \
                 ranks of the parent, or with a tag",
                group_text(facts)
            );
            Failure::new(FailureCode::EpochEnded, text)
        })
    }

    /// Ends the groups that ranks have counted in an epoch of the parent that is over, and that not
    /// all ranks of this gateway have made: nobody can make them any more.
    pub(super) fn end_counted_groups(
        &mut self,
        parent: GroupId,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        let own = self.world.session.fabric().gateway(self.settings.me).ranks.clone();
        let unmade = self.groups.iter().filter_map(|(id, group)| {
            let membership = group.membership.as_ref()?;
            let facts = &membership.facts;
            let is_unmade = facts.parent == parent
                && membership.disbanded().is_none()
                && !membership.is_made_by(&own);
            let failure = is_unmade.then(|| self.counted_group_failure(facts)).flatten()?;
            Some((*id, failure))
        });
        for (id, failure) in unmade.collect::<Vec<_>>() {
            self.disband_group(id, &failure, now);
            self.tell_group(id, shared);
        }
    }
}
