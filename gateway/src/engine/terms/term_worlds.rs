//! The worlds of a job: one in force, and those before that have work under way.

use crate::engine::job::group_session::GroupSession;
use hier_collectives::ids::GroupId;
use hier_collectives::session::SessionProgress;
use std::collections::BTreeMap;

/// The worlds of a job beside that of all its ranks.
#[derive(Default)]
pub(in crate::engine) struct TermWorlds {
    /// Those that are in force or have work under way.
    pub parts: BTreeMap<GroupId, GroupSession>,
    /// The part that is in force; `None` while the world of all ranks is, or none.
    pub current: Option<GroupId>,
    /// How far the worlds came that have ended.
    pub progress: SessionProgress,
}

impl TermWorlds {
    /// Returns the world of some ranks with this id.
    pub fn part(&self, id: GroupId) -> Option<&GroupSession> {
        self.parts.get(&id)
    }

    /// Returns the world of some ranks with this id, to change it.
    pub fn part_mut(&mut self, id: GroupId) -> Option<&mut GroupSession> {
        self.parts.get_mut(&id)
    }

    /// Iterates over the worlds of some ranks.
    pub fn parts(&self) -> impl Iterator<Item = &GroupSession> {
        self.parts.values()
    }

    /// Iterates over the worlds of some ranks, to change them.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut GroupSession> {
        self.parts.values_mut()
    }
}
