//! The file descriptors that a gateway may need.
//!
//! `run` raises the limit at the start, and `doctor` compares the two.

use crate::local::local_server::PENDING_CONNECTIONS_MAX;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan;
use hier_collectives::topology::Fabric;
/// 768 descriptors that every gateway needs: 512 for 256 connections that have not attached yet,
/// 128 for readers of the status, 128 for the runtime, the log and files. `run` warns and `doctor`
/// reports where the hard limit is below all that a gateway needs.
const DESCRIPTORS_BASE: u64 = 768;
/// 264 descriptors that a gateway needs in addition where it serves trainers of other hosts.
/// Connections that have not attached yet take 256, and the thread that serves them takes 8.
const DESCRIPTORS_OF_ATTACH: u64 = PENDING_CONNECTIONS_MAX as u64 + 8;
/// 2 descriptors that a gateway needs for each rank of each job: the rank's socket and its arena.
const DESCRIPTORS_PER_RANK: u64 = 2;

/// Returns the most descriptors that a gateway needs, for a number of jobs, and of networks (WAN
/// and LAN) on which it has lanes. Each lane that may be in use on a network takes two descriptors: the
/// socket that listens, and the one that dials. `serves_hosts` says that trainers of other hosts may
/// attach.
pub fn descriptor_needs(
    fabric: &Fabric,
    me: GatewayId,
    (jobs, networks): (usize, usize),
    serves_hosts: bool,
) -> u64 {
    let attach = if serves_hosts { DESCRIPTORS_OF_ATTACH } else { 0 };
    let lanes = 2 * u64::from(plan::plan_lanes_limit(fabric)) * networks as u64;
    let ranks = fabric.gateway(me).ranks.len() as u64 * jobs as u64;
    DESCRIPTORS_BASE + attach + lanes + DESCRIPTORS_PER_RANK * ranks
}
