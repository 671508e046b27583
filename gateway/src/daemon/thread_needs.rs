//! The threads that a gateway starts.
//!
//! `doctor` compares them with the limits of the system. `run` starts them all before it is ready.

use hier_collectives::plan;
use hier_collectives::topology::Fabric;
use std::num::NonZero;
use std::thread::available_parallelism;

/// 5 threads that a gateway starts, added to those for lanes, computing and trainers of other
/// hosts. They are the first one, the engine's, and those for the log, for signals and for blocking
/// work. `doctor` reports where a limit of the system allows fewer than all of these threads.
const THREADS_BESIDE_LANES: u64 = 5;

/// Returns the number of threads that a gateway starts, with lanes on a number of `networks` (WAN and
/// LAN). `serves_hosts`: trainers of other hosts may attach.
pub fn threads_needed(fabric: &Fabric, networks: usize, serves_hosts: bool) -> u64 {
    let lanes = u64::from(plan::plan_lanes_limit(fabric)) * networks as u64;
    let cores = available_parallelism().map_or(1, NonZero::get) as u64;
    // The first lane runs on the engine's thread.
    THREADS_BESIDE_LANES + lanes.saturating_sub(1) + cores + u64::from(serves_hosts)
}
