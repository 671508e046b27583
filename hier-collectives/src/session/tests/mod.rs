//! Tests of whole sessions, without I/O.

mod blocks;
mod commits;
mod cuts;
mod disagreements;
mod ends;
mod fabrics;
mod hostile_peer;
mod in_doubt;
mod lost_lanes;
mod plan_changes;
mod protocol;
mod results;
mod sends;
mod steps;
mod waiting;
mod world;
