//! Checks of limits by which a gateway would not start, or end later: processor time, files, threads.
//!
//! The doctor's own limits are the gateway's only if both run alike.

use super::finding::Finding;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::daemon::threads_needed;
use gateway::limits::process_limits::{ProcessTimeLimit, process_file_limit};
use gateway::limits::thread_limits::thread_limits_below;
use std::os::unix::net::UnixStream;

/// Returns the findings on the limits of a process. Without a limit there is one finding that says so.
pub(super) fn limit_findings(region: &RegionFile, gateway: &GatewayConfig) -> Vec<Finding> {
    let checks = [
        limit_finding_of_time(),
        limit_finding_of_files(region, gateway),
        limit_finding_of_threads(region, gateway),
    ];
    let found: Vec<Finding> = checks.into_iter().flatten().collect();
    if !found.is_empty() {
        return found;
    }
    let found = "time, files and threads suffice";
    vec![Finding::ok("process limits", "ulimit -t, -f, -u; cgroups", found)]
}

/// Finds a limit on processor time.
fn limit_finding_of_time() -> Option<Finding> {
    let limit = ProcessTimeLimit::of_process()?;
    let finding = Finding::ok("process limits", "ulimit -t", limit);
    let advice = "remove the limit: ulimit -t unlimited, or LimitCPU=infinity of the service";
    Some(match limit.is_too_low() {
        true => finding.into_failure(advice),
        false => finding.into_warning(advice),
    })
}

/// Finds a limit on the size of files below that of the arenas. A gateway makes those of trainers of
/// other hosts itself, and writes its lock file in any case.
fn limit_finding_of_files(region: &RegionFile, gateway: &GatewayConfig) -> Option<Finding> {
    let arenas = region.arenas_memory();
    let limit = process_file_limit().filter(|limit| *limit < arenas)?;
    let found = format!("files have at most {limit}, and the arenas of all jobs {arenas}");
    let finding = Finding::ok("process limits", "ulimit -f", found);
    let advice = "raise the limit: ulimit -f unlimited, or LimitFSIZE=infinity of the service";
    Some(match limit.get() == 0 || gateway.attach.is_some() {
        true => finding.into_failure(advice),
        false => finding.into_warning(advice),
    })
}

/// Finds limits on threads that leave too few for a gateway. Returns `None` if they are enough, or if
/// the gateway runs already.
fn limit_finding_of_threads(region: &RegionFile, gateway: &GatewayConfig) -> Option<Finding> {
    if UnixStream::connect(&gateway.socket).is_ok() {
        return None;
    }
    let file = region.fabric();
    let networks = file.count_lane_networks(gateway.id);
    let needed = threads_needed(file.fabric(), networks, gateway.attach.is_some());
    let limits = thread_limits_below(needed);
    if limits.is_empty() {
        return None;
    }
    let found = format!("a gateway needs {needed} threads; {}", limits.join("; "));
    let finding = Finding::ok("process limits", "ulimit -u, pids.max", found);
    Some(finding.into_failure("raise the limit that is named"))
}
