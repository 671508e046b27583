//! Counters and fidelity reports as JSON.

use crate::{FateCounters, FidelityReport};
use serde_json::{Value, json};

/// 1: the value of the key `version` in reports in JSON. It grows when a key goes away or gets
/// another meaning; docs/schemas/wan-sim has a schema for each report.
pub(super) const JSON_VERSION: u32 = 1;

/// Returns a fidelity report as JSON, times in nanoseconds.
pub(super) fn fidelity_json(report: &FidelityReport) -> Value {
    json!({
        "deliveries": report.deliveries,
        "lateness_ns": {
            "p50": report.lateness_p50.ns(),
            "p999": report.lateness_p999.ns(),
            "max": report.lateness_max.ns(),
        },
        "own_drops": report.own_drops,
        "late_reads": report.late_reads,
        "stalled_ns": { "all": report.stalled.ns(), "max": report.stall_max.ns() },
        "cpu_permille": report.cpu_permille,
        "machine_permille": report.machine_permille,
        "void": report.void,
    })
}

/// Returns the counters of one direction of a link as JSON.
pub(super) fn counters_json(seen: &FateCounters) -> Value {
    json!({
        "packets": seen.packets,
        "ip_bytes": seen.ip_bytes,
        "drops_loss": seen.drops_loss,
        "drops_burst": seen.drops_burst,
        "drops_script": seen.drops_script,
        "drops_queue": seen.drops_queue,
        "drops_codel": seen.drops_codel,
        "drops_red": seen.drops_red,
        "drops_policer": seen.drops_policer,
        "drops_limit": seen.drops_limit,
        "drops_blackhole": seen.drops_blackhole,
        "marked_loss": seen.marked_loss,
        "marked_queue": seen.marked_queue,
        "marked_codel": seen.marked_codel,
        "marked_red": seen.marked_red,
        "duplicated": seen.duplicated,
        "corrupted": seen.corrupted,
    })
}
