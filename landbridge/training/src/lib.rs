//! The training that a quickstart runs, apart from any network.
//!
//! [`digits`] are the samples, and [`mlp`] is the network. [`data_parallel`] is the training as one
//! rank sees it; [`reference_training`] is the same training in one process. The crate is one of its
//! own since its loops are optimised where the rest of the program need not be.

pub mod data_parallel;
pub mod digits;
mod matrix;
pub mod mlp;
pub mod reference_training;
mod rng;
