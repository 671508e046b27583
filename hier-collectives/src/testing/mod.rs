//! Fabrics and seeded numbers for tests and benches.
//!
//! It is built for this crate's own tests, and for other crates under the feature `testing`, which
//! only dev-dependencies turn on.

mod fabric_builder;
mod split_mix64;

pub use fabric_builder::{FabricBuilder, lossless_link, mbit, symmetric_port};
pub use split_mix64::SplitMix64;
