//! The worlds of a job: its own session of all ranks, and those over the ranks of smaller terms.

use super::group_session::GroupSession;
use crate::engine::job::Job;
use hier_collectives::ids::{GroupId, RankId};
use hier_collectives::post::RankEvent;

impl Job {
    /// Returns the world in force, or the last one.
    pub fn current_world(&self) -> &GroupSession {
        self.terms.current.and_then(|id| self.terms.parts.get(&id)).unwrap_or(&self.world)
    }

    /// Returns whether this id is that of a world of the job, of all ranks or of some.
    pub(super) fn is_world(&self, id: GroupId) -> bool {
        id == self.world.id || self.terms.parts.contains_key(&id)
    }

    /// Tells an attached rank with which ranks the job goes on.
    pub(super) fn tell_world(&self, rank: RankId) {
        let world = self.current_world();
        let fabric = world.session.fabric();
        let ranks = (0..fabric.world_size()).map(|rank| fabric.rank_number(RankId(rank))).collect();
        self.ranks.notify(rank, world.id, RankEvent::WorldChanged { ranks });
    }

    /// Calls `handle` with each world that a rank is in, and with the rank's number there. The
    /// worlds are those that may still go on or have work under way.
    pub(super) fn for_each_world_of_rank(
        &mut self,
        rank: RankId,
        handle: impl Fn(&mut GroupSession, RankId),
    ) {
        self.touched.extend(self.terms.parts.keys().copied());
        for world in self.terms.parts.values_mut().chain([&mut self.world]) {
            if let Some(rank) = world.rank_in_session(rank) {
                handle(world, rank);
            }
        }
    }
}
