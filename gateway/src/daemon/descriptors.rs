//! The file descriptors that a gateway may need, and the limit on them.
//!
//! `run` raises the limit at the start, and `doctor` compares the two.

use crate::local::server::PENDING_CONNECTIONS_MAX;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan;
use hier_collectives::topology::Fabric;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// 768: descriptors for 256 connections that have not attached yet, two each, for 128 readers of
/// the status, and 128 for the runtime, the log and files.
const DESCRIPTORS_BESIDE_RANKS: u64 = 768;
/// 264 descriptors where trainers of other hosts are served: 256 for connections that have not attached
/// yet, and 8 for the thread that serves them.
const DESCRIPTORS_OF_ATTACH: u64 = PENDING_CONNECTIONS_MAX as u64 + 8;
/// 2 descriptors for each attached rank: its socket and its arena.
const DESCRIPTORS_PER_RANK: u64 = 2;

/// A gateway may need more descriptors than it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the gateway needs up to {needed} file descriptors, and the hard limit is {limit}: raise it \
     (ulimit -Hn, or LimitNOFILE= of its service)"
)]
pub struct TooFewDescriptors {
    /// The most that it may need.
    pub needed: u64,
    /// The hard limit.
    pub limit: u64,
}

/// Returns the most descriptors that a gateway needs, for a number of jobs, and of networks (WAN and
/// LAN) on which the gateway has lanes. `serves_hosts`: trainers of other hosts may attach.
pub fn descriptors_needed(
    fabric: &Fabric,
    me: GatewayId,
    (jobs, networks): (usize, usize),
    serves_hosts: bool,
) -> u64 {
    let attach = if serves_hosts { DESCRIPTORS_OF_ATTACH } else { 0 };
    let lanes = u64::from(plan::lane_count(fabric)) * networks as u64;
    let ranks = fabric.gateway(me).ranks.len() as u64 * jobs as u64;
    DESCRIPTORS_BESIDE_RANKS + attach + lanes + DESCRIPTORS_PER_RANK * ranks
}

/// Checks that the hard limit on descriptors is at least `needed`.
///
/// # Errors
/// [`TooFewDescriptors`].
pub fn check_descriptor_limit(needed: u64) -> Result<(), TooFewDescriptors> {
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < needed => Err(TooFewDescriptors { needed, limit }),
        _ => Ok(()),
    }
}

/// Raises the soft limit on descriptors to `needed`, or to the hard limit if that is lower.
///
/// # Errors
/// [`TooFewDescriptors`]: the hard limit is lower. The gateway works until it has used them up.
pub fn raise_descriptor_limit(needed: u64) -> Result<(), TooFewDescriptors> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < needed) {
        let raised = maximum.map_or(needed, |hard| hard.min(needed));
        // A system that refuses leaves the limit as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    }
    check_descriptor_limit(needed)
}
