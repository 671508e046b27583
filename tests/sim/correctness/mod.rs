//! Every rank gets the reference result, whatever the fabric, the seed or the network.
//!
//! Posts that do not match fail on all ranks alike, and equal seeds give equal runs.

mod block_operations;
mod determinism;
mod disagreement_orders;
mod many_regions;
mod mismatched_posts;
mod random_networks;
mod reference_results;
mod unused_segments;
