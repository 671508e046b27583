//! Makers of trees: each takes a fabric, or what its ports and pairs carry.

pub(super) mod asymmetric;
pub mod baseline;
pub(super) mod direct;
pub mod express;
pub(super) mod gateway_tree;
pub(super) mod packing;
pub(super) mod region_tree;
