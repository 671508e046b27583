//! Regions that leave, join and are cut off while ranks train, drawn from a seed.
//!
//! The scenario is called [`MEMBERS`]. Ranks run steps of two averages and a commit, in whatever world
//! they are told. Operators take regions out and in; in half of the seeds a gateway is also cut off now
//! and then. Everybody's sums must be right, changes that operators ask for must fall between two steps
//! where nothing is cut, and in the end the regions that the last requests say must make headway.

mod event_schedule;
mod members_judge;
mod members_run;
mod stepping_rank;

pub use members_run::play_members;

/// The name of the scenario whose members change.
pub const MEMBERS: &str = "members";
