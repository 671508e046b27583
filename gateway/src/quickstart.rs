//! `landbridge quickstart`: trains a small network data-parallel across two regions.
//!
//! What the trainers compute is here, apart from any network: [`digits`] > [`mlp`] >
//! [`training`], the one-process [`reference`](mod@reference) beside it, and the [`report`]
//! on both.

pub mod digits;
pub mod mlp;
pub mod reference;
pub mod report;
pub mod training;

mod binomial;
mod matmul;
mod rng;
