//! Configuration: the fabric file, which all regions share, and one region file for each region.
//!
//! The commands call it, before any task runs. A file is read once, and every fault is recorded
//! with its line, so that one report names them all. Values are never clamped: a file is used
//! exactly as written, or not at all.

mod config_faults;
mod config_file;
mod config_source;
mod config_value;
mod fabric;
mod former_value;
mod key;
mod membership_value;
mod otlp_value;
mod reached_address_value;
pub mod reference;
mod region;
mod rewritten_file;
mod section;

#[cfg(test)]
mod tests;

pub use config_faults::{ConfigFaults, Fault};
pub use config_file::ConfigFile;
pub use config_value::is_valid_config_name_value;
pub use fabric::FabricFile;
pub(crate) use fabric::sha256_of_fabric;
pub use former_value::Replacement;
pub use reached_address_value::is_valid_host_name_value;
pub use region::{GatewayChoiceError, GatewayConfig, JobConfig, LanePeer, RegionFile};
pub use rewritten_file::RewrittenConfigFile;
