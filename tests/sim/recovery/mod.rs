//! Collectives survive lost lanes, link outages and changed rates, and are soon fast again.
//!
//! Under injected faults no result is wrong and no rank waits longer than docs/failures.md says.

mod cut_links;
mod gateway_restarts;
mod injected_faults;
mod lane_failures;
mod link_outages;
pub(crate) mod lost_regions;
mod plan_changes;
mod rate_changes;
pub(crate) mod regions_that_leave;
mod stores;
mod witness;
