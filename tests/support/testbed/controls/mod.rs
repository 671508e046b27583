//! Controls that all-reduce between two sites: quinn alone, and PyTorch's Gloo.

pub mod bare_quinn;
pub mod gloo;
