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
