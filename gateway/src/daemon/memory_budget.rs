//! Divides a gateway's memory: windows and lanes reserve theirs first, partial results get the
//! rest.

use super::spec::GatewaySpec;
use crate::wan;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::Fabric;
use tracing::warn;
use units::ByteCount;

/// Returns the most bytes that flow-control windows and lanes of a gateway take. The last argument
/// is the number of jobs, and of networks (WAN and LAN) on which the gateway has lanes.
pub fn reserved_bytes(
    plan: &Plan,
    fabric: &Fabric,
    me: GatewayId,
    (jobs, sides): (usize, usize),
) -> ByteCount {
    let windows = plan.memory_bound(fabric, me, ByteCount::default()).window_bytes().get();
    let lanes = u64::from(plan::lane_count(fabric)) * wan::LANE_QUIC_BYTES.get();
    ByteCount::new(jobs as u64 * windows + sides as u64 * lanes)
}

/// Returns the least memory that suffices; `None` if `memory` does. Partials get at least half of
/// the memory, so the reserved bytes must fit the other half.
pub fn memory_needed(memory: ByteCount, reserved: ByteCount) -> Option<ByteCount> {
    (reserved.get() > memory.get() / 2).then(|| ByteCount::new(2 * reserved.get()))
}

/// Returns the most bytes that the receive windows of one network's lanes (WAN or LAN) grow to when
/// RTTs are over four times the configured ones: a quarter of the memory. They fill only while a busy
/// processor delays the reader of a lane.
pub(super) fn receive_windows_max(memory: ByteCount) -> ByteCount {
    ByteCount::new(memory.get() / 4)
}

/// Returns the memory that each job may use for partials. Jobs get equal parts of the memory that
/// is not reserved, but of half of all memory at least, so that no job takes another's.
pub(super) fn partials_per_job(spec: &GatewaySpec, sides: usize) -> ByteCount {
    let (memory, jobs) = (spec.memory.get(), spec.jobs.len());
    let reserved = reserved_bytes(&spec.plan, &spec.fabric, spec.me, (jobs, sides));
    let partials = memory - reserved.get().min(memory / 2);
    if let Some(needed) = memory_needed(spec.memory, reserved) {
        warn!(
            "windows and lanes may take {reserved}, and partials {} more: `memory` of {} is too \
             small to bound that; set at least {needed}",
            ByteCount::new(partials),
            spec.memory
        );
    }
    ByteCount::new(partials / jobs.max(1) as u64)
}
