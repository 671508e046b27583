//! Divides a gateway's memory: windows and lanes reserve theirs first, receive windows may grow by an
//! eighth, partial results get the rest.

use super::spec::GatewaySpec;
use crate::limits::memory_limits::MemoryLimitNeeds;
use crate::wan;
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::Fabric;
use units::{ByteCount, TimeNs};

/// 8: QUIC receive windows may grow by an eighth of a gateway's `memory`, a chosen part. They grow
/// by less where they and the reserved memory would together exceed half of `memory`.
/// Tested by `all_parts_fit_the_memory`.
const RECEIVE_WINDOWS_MEMORY_DIVISOR: u64 = 8;

/// Returns the most bytes that flow-control windows and lanes of a gateway take. The last argument
/// is the number of jobs, and of networks (WAN and LAN) on which the gateway has lanes.
pub fn reserved_memory_budget(
    plan: &Plan,
    fabric: &Fabric,
    me: GatewayId,
    (jobs, networks): (usize, usize),
) -> ByteCount {
    let windows = || {
        let fabric = fabric.without_witness();
        let owner_trees = plan.owner_trees(&fabric);
        plan.memory_bound(&fabric, &owner_trees, me, ByteCount::default()).window_bytes().get()
    };
    // A witness has no job, and is in no plan.
    let windows = if jobs == 0 { 0 } else { windows() };
    let lanes = u64::from(plan::plan_lanes_limit(fabric)) * wan::LANE_QUIC_BYTES.get();
    ByteCount::new(jobs as u64 * windows + networks as u64 * lanes)
}

/// Returns the least `memory`, in whole MiB, of a gateway whose windows and lanes take `reserved`
/// bytes ([`reserved_memory_budget`]); `None` if the configured `memory` suffices. Partials get at
/// least half of the memory, so the reserved bytes must fit the other half.
pub fn least_memory_budget(memory: ByteCount, reserved: ByteCount) -> Option<ByteCount> {
    let least = 2 * reserved.get();
    let short = reserved.get() > memory.get() / 2;
    short.then(|| ByteCount::new(least.next_multiple_of(1 << 20)))
}

/// 64 MiB: RAM that a gateway's program, stacks and queues may take, added to `memory`; at rest 16
/// MiB were measured. `run` does not start where the host or a cgroup has less than the sum;
/// `check` and `doctor` report it.
const PROGRAM_RESIDENT_BYTES: u64 = 64 << 20;
/// 128 MiB: private memory that a gateway's program and queues may map, touched or not, added to
/// `memory` and stacks. `run` does not start where `ulimit -d` is below the sum. At rest 90 MiB
/// were measured, of which lanes have a part of `memory`.
const PROGRAM_PRIVATE_BYTES: u64 = 128 << 20;
/// 128 MiB: addresses for files of the program and of libraries, and for short-lived mappings of
/// the allocator. They are a part of all addresses that a gateway may need; `run` does not start
/// where `ulimit -v` allows fewer.
const PROGRAM_MAPPED_BYTES: u64 = 128 << 20;
/// 2 MiB: the stack of a thread, as Rust makes it. All stacks are a part of the memory that a
/// gateway may need. `run` does not start where `ulimit -d` or `ulimit -v` allows less.
const THREAD_STACK_BYTES: u64 = 2 << 20;
/// 64 MiB: addresses that the allocator of the C library reserves for a thread. They are a part of
/// all addresses that a gateway may need; `run` does not start where `ulimit -v` allows fewer.
const THREAD_HEAP_BYTES: u64 = 64 << 20;
/// 8 threads that an estimate of a gateway's memory counts, added to one for each lane and each
/// core. They are the first one, the log, the watchdog, the engine, blocking tasks, and three to
/// spare.
const THREADS_BESIDE_LANES_AND_CORES: u64 = 8;

/// Returns what the process of a gateway may take, of memory and of addresses: `memory` of its own,
/// `arenas` of its jobs. `networks` is the number of networks (WAN and LAN) with lanes.
pub fn process_memory_budget_needs(
    memory: ByteCount,
    arenas: ByteCount,
    fabric: &Fabric,
    networks: usize,
) -> MemoryLimitNeeds {
    let lanes = u64::from(plan::plan_lanes_limit(fabric)) * networks as u64;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let threads = THREADS_BESIDE_LANES_AND_CORES + lanes + cores;
    let private = memory.get().saturating_add(PROGRAM_PRIVATE_BYTES + threads * THREAD_STACK_BYTES);
    let reserved = PROGRAM_MAPPED_BYTES + threads * THREAD_HEAP_BYTES;
    MemoryLimitNeeds {
        resident: memory.get().saturating_add(PROGRAM_RESIDENT_BYTES),
        private,
        address_space: private.saturating_add(reserved).saturating_add(arenas.get()),
    }
}

/// Parts of a gateway's memory that are not reserved for windows and lanes. All parts and the
/// reserved bytes are together at most the memory, unless the reserved bytes are over half of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryParts {
    /// Memory that each job may use for partials. Jobs get equal parts, so that no job takes
    /// another's. Partials of all jobs get half of the memory at least.
    pub partials_per_job: ByteCount,
    /// Most bytes that the receive windows of one network's lanes (WAN or LAN) grow to when RTTs are
    /// over four times the configured ones. They fill only while a busy processor delays the reader
    /// of a lane.
    pub receive_windows_per_network: ByteCount,
}

/// Divides the memory of a gateway that has lanes on `networks` networks. Warns if the memory is too
/// small to bound what the gateway uses.
pub(super) fn divide_memory_budget(
    spec: &GatewaySpec,
    networks: usize,
    (warnings, now): (&Warnings, TimeNs),
) -> MemoryParts {
    let reserved =
        reserved_memory_budget(&spec.plan, &spec.fabric, spec.me, (spec.jobs.len(), networks));
    let parts = memory_budget_parts(spec.memory, reserved, (spec.jobs.len(), networks));
    if let Some(needed) = least_memory_budget(spec.memory, reserved) {
        warn_if_due!(
            warnings.is_due(WarningCause::Limit, "memory", now),
            "windows and lanes may take {}, and partials of each job {} more: `memory` of {} is \
             too small to bound that; set at least {needed}",
            reserved.rounded(),
            parts.partials_per_job.rounded(),
            spec.memory
        );
    }
    parts
}

/// Returns the bytes that each job has for partials, out of a gateway's `memory`. `of` is the
/// number of jobs, and of networks (WAN and LAN) with lanes.
pub(super) fn partials_memory_budget(
    memory: ByteCount,
    plan: &Plan,
    fabric: &Fabric,
    me: GatewayId,
    of: (usize, usize),
) -> ByteCount {
    memory_budget_parts(memory, reserved_memory_budget(plan, fabric, me, of), of).partials_per_job
}

/// Divides `memory` into partials for each of `jobs` jobs and receive windows for each of `networks`
/// networks, and leaves `reserved` bytes for everything else.
fn memory_budget_parts(
    memory: ByteCount,
    reserved: ByteCount,
    (jobs, networks): (usize, usize),
) -> MemoryParts {
    let memory = memory.get();
    let reserved = reserved.get().min(memory / 2);
    let receive_windows = (memory / RECEIVE_WINDOWS_MEMORY_DIVISOR).min(memory / 2 - reserved);
    let part = |bytes: u64, of: usize| ByteCount::new(bytes / of.max(1) as u64);
    MemoryParts {
        partials_per_job: part(memory - reserved - receive_windows, jobs),
        receive_windows_per_network: part(receive_windows, networks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn needed_memory_is_advised_in_whole_mebibytes() {
        let needed = least_memory_budget(ByteCount::new(40 << 20), ByteCount::new(28_158_288));
        assert_eq!(needed.map(|needed| needed.to_string()), Some("54 MiB".to_owned()));
        assert_eq!(least_memory_budget(ByteCount::new(54 << 20), ByteCount::new(28_158_288)), None);
    }

    proptest! {
        #[test]
        fn all_parts_fit_the_memory(
            memory in 1u64..1 << 40,
            reserved in 0u64..1 << 40,
            jobs in 0usize..5,
            networks in 0usize..3,
        ) {
            let of = (jobs, networks);
            let parts = memory_budget_parts(ByteCount::new(memory), ByteCount::new(reserved), of);
            let partials = parts.partials_per_job.get() * jobs.max(1) as u64;
            let windows = parts.receive_windows_per_network.get() * networks.max(1) as u64;
            prop_assert!(partials + windows + reserved.min(memory / 2) <= memory);
            prop_assert!(partials + 8 >= memory / 2, "partials get half");
            prop_assert!(windows <= memory / 8);
        }
    }
}
