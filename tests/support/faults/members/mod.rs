//! Regions that leave, join and are lost while ranks train, drawn from a seed.
//!
//! The scenario is called [`MEMBERS`]. Ranks run steps of two averages and a commit, in whatever world
//! they are told, and go on with the state of those that have done most. Operators take regions out and
//! in. In a quarter of the seeds nothing else happens; in another one gateways and links are cut; in the
//! others the network parts in every way, links flap or pass one way alone, and gateways are killed, also
//! as the others agree on who goes on. In half of those, at last, the leader begins an epoch alone, and is back
//! as another gateway falls silent. In a third of the seeds operators apply fabrics too.
//!
//! Everybody's sums must be right: over the ranks of their epoch, of equal states. No result may come
//! after one of a later epoch, and no step may be confirmed in two epochs. Changes that operators ask for
//! must fall between two steps where nothing else happens. In the end all regions that have not left must
//! make headway.

mod event_schedule;
mod fabric_changes;
mod final_world;
mod members_deployment;
mod members_judge;
mod members_play;
mod members_run;
mod members_shape;
mod step_history;
mod stepping_rank;
mod stranded_leader;

pub use members_play::play_members;

/// The name of the scenario whose members change.
pub const MEMBERS: &str = "members";
