//! What a cross-region collective does, without doing any of it.
//!
//! No socket, clock, thread, environment variable or ambient randomness: time and seeds
//! are arguments, memory is named, not touched (only [`reduce`] reads and writes bytes).

pub mod descriptor;
pub mod ids;
pub mod post;
pub mod topology;
