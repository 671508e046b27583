//! Deployments on loopback: free [`port_block`], and the files of [`two_regions`].
//!
//! The quickstart and tests start processes with them. The daemon uses nothing of it.

pub mod port_block;
pub mod two_regions;
