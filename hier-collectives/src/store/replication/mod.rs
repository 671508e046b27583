//! The replication of a store: one order of commands, made by the first gateway and held by all.

mod ballot;
mod follower;
mod leader;
mod snapshot_receiver;
mod store_message;
mod store_message_encoding;
mod store_replica;

pub use ballot::{StoreBallot, StoreBallotVersion};
pub use leader::{STORE_LEADER, StoreLeader, StorePromise};
pub use store_message::{StoreMessage, StoreViolation};
pub use store_replica::StoreReplica;
