//! Commits in doubt: those that a lost gateway may have confirmed, and the steps that they name.

pub(super) mod commit_steps;
pub(super) mod epoch_end;
pub(super) mod in_doubt_commits;

pub use in_doubt_commits::InDoubtCommits;
