//! The core of a cross-region collective, without I/O (sans-IO).
//!
//! It plans trees, runs the session of a job, encodes messages and reduces buffers. It uses no
//! socket, clock, thread, environment variable or ambient randomness: time and seeds are arguments,
//! and memory is named, not touched. The gateway carries out what it decides.

pub mod batch;
pub mod bound;
pub mod buffer_part;
pub mod codec;
pub mod descriptor;
mod group_id;
pub mod ids;
pub mod membership;
pub mod mesh;
pub mod mutant;
pub mod operation;
pub mod parts;
pub mod plan;
pub mod post;
pub mod reduce;
pub mod sequence;
pub mod session;
pub mod size_class;
pub mod store;
pub mod stragglers;
pub mod tail_fec;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod topology;
pub mod wire;
