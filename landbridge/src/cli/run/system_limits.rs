//! The limits of the system that a gateway checks before it starts.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::logging::LOG_TARGET;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::daemon::{descriptor_needs, process_memory_budget_needs};
use gateway::host::{Host, RealHost};
use gateway::limits::descriptor_limit::raise_descriptor_limit;
use gateway::limits::memory_limits::memory_limit_below_needs;
use gateway::limits::process_limits::ProcessTimeLimit;
use gateway::warn_if_due;
use gateway::warnings::{WarningCause, Warnings};

/// Refuses a `memory` above a limit of the system, by which the kernel would kill the gateway.
/// Raises the limit on descriptors, and warns if it stays too low. Warns of a limit on processor
/// time.
///
/// # Errors
/// The gateway's `memory` exceeds a limit, or hardly any processor time is left.
pub(super) fn check_system_limits(
    region: &RegionFile,
    config: &GatewayConfig,
    warnings: &Warnings,
) -> Result<(), CommandError> {
    let networks = region.fabric().count_lane_networks(config.id);
    let fabric = region.fabric().fabric();
    let needs =
        process_memory_budget_needs(config.memory, region.arenas_memory(), fabric, networks);
    if let Some(short) = memory_limit_below_needs(&needs) {
        let GatewayConfig { name, memory, .. } = config;
        let remedy = short.remedy_for(*memory);
        return Err(CommandError::Usage(format!(
            "gateway {name}: `memory` of {memory} does not fit: {short}; {remedy}"
        )));
    }
    let of = (region.jobs().count(), networks);
    let needed = descriptor_needs(fabric, config.id, of, config.attach.is_some());
    if let Err(error) = raise_descriptor_limit(needed) {
        warn_if_due!(
            warnings.is_due(WarningCause::Limit, "descriptors", RealHost.now()),
            target: LOG_TARGET,
            "{error}"
        );
    }
    if let Some(limit) = ProcessTimeLimit::of_process() {
        if limit.is_too_low() {
            return Err(CommandError::Usage(limit.to_string()));
        }
        limit.reserve_process_time_limit();
        warn_if_due!(
            warnings.is_due(WarningCause::Limit, "processor time", RealHost.now()),
            target: LOG_TARGET,
            "{limit}"
        );
    }
    Ok(())
}
