//! Controls between two sites: an exchange over quinn alone, and PyTorch's Gloo.

pub mod bare_quinn;
pub mod gloo;
