//! Makers of trees: each file makes one kind of tree from a fabric or its capacity.

pub(super) mod asymmetric;
pub mod baseline;
pub(super) mod block_trees;
pub(super) mod direct_exchange;
pub mod express;
pub(super) mod gateway_tree;
pub(super) mod owner_trees;
pub(super) mod packing;
pub(super) mod region_tree;
