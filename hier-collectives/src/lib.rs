//! What a cross-region collective does, without doing any of it.
//!
//! No socket, clock, thread, environment variable or ambient randomness: time and seeds
//! are arguments, memory is named, not touched.

pub mod batch;
pub mod bound;
pub mod codec;
pub mod descriptor;
pub mod fec;
pub mod ids;
pub mod mutant;
pub mod operation;
pub mod pace;
pub mod plan;
pub mod post;
pub mod reduce;
pub mod routes;
pub mod session;
pub mod shard;
pub mod size_class;
pub mod topology;
pub mod wire;
