//! Deployments on loopback: free [`ports`], and the files of [`two_regions`].
//!
//! The quickstart and tests start processes with them. The daemon uses nothing of it.

pub mod ports;
pub mod two_regions;
