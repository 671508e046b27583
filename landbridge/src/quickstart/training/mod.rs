//! The training that a quickstart runs, apart from any network.
//!
//! [`digits`] are the samples, and [`mlp`] is the network. [`data_parallel`] is the training as one
//! rank sees it; [`reference_training`] is the same training in one process.

pub(crate) mod data_parallel;
pub(super) mod digits;
mod matrix;
pub(super) mod mlp;
pub(super) mod reference_training;
mod rng;
