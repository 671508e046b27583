//! The limits of the system that a gateway checks before it starts.

use crate::cli::output::exit::CommandError;
use crate::cli::output::logging::LOG_TARGET;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::daemon::{descriptors_needed, raise_descriptor_limit};
use gateway::memory::limits::budget_limit_below;
use tracing::warn;

/// Refuses a `memory` above a limit of the system, by which the kernel would kill the gateway.
/// Raises the limit on descriptors, and warns if it stays too low.
///
/// # Errors
/// The gateway's `memory` exceeds a limit.
pub(super) fn check_system_limits(
    region: &RegionFile,
    config: &GatewayConfig,
) -> Result<(), CommandError> {
    if let Some(limit) = budget_limit_below(config.memory.get()) {
        let GatewayConfig { name, memory, .. } = config;
        return Err(CommandError::Usage(format!(
            "gateway {name}: `memory` of {memory} does not fit: {limit}, or lower `memory`"
        )));
    }
    let networks = region.fabric().count_lane_networks(config.id);
    let of = (region.jobs().count(), networks);
    let needed = descriptors_needed(region.fabric().fabric(), config.id, of);
    if let Err(error) = raise_descriptor_limit(needed) {
        warn!(target: LOG_TARGET, "{error}");
    }
    Ok(())
}
