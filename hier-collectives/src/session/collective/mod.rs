//! Collectives as ranks see them: posts, agreement, failures, deadlines, and commits.
//!
//! [`table::Collectives`] owns the posts and the outcome of each collective, and
//! [`commits::Commits`] the steps that ranks commit. Both read the epoch; neither knows how bytes
//! move.

pub(super) mod check_post;
pub(super) mod commits;
pub(super) mod deadline;
mod outcomes;
pub(super) mod overreach;
pub(super) mod sequence_ranges;
pub(super) mod state;
pub(super) mod table;
