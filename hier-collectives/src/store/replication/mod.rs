//! The replication of a store: one order of commands, made by the first gateway and held by all.

mod ballot;
mod follower;
mod leader;
mod message;
mod message_encoding;
mod replica;
mod snapshot_receiver;

pub use ballot::{StoreBallot, StoreVersion};
pub use leader::{STORE_LEADER, StoreLeader, StorePromise};
pub use message::{StoreMessage, StoreViolation};
pub use replica::StoreReplica;
