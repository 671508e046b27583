//! Collectives as ranks see them: posts, agreement, failures, deadlines, and commits.
//!
//! [`collectives::Collectives`] owns the posts and the outcome of each collective, and
//! [`commits::Commits`] the steps that ranks commit. Both read the epoch; neither knows how bytes
//! move.

pub(super) mod check_post;
pub(super) mod collective_failures;
pub(super) mod collectives;
pub(super) mod commits;
pub(super) mod deadlines;
pub(super) mod live_collective;
pub(super) mod local_rank;
mod notifications;
pub(super) mod overreach;
pub(super) mod recent_collectives;
pub(super) mod sequence_ranges;
