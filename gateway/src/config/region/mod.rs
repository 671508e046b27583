//! The region file, such as `east.toml`: the gateways of one region on their hosts, and jobs.

mod bound_addresses;
mod gateway_config;
pub(super) mod keys;
mod lane_peer;
mod region_file;
mod region_tables;

pub use gateway_config::{GatewayConfig, JobConfig};
pub use lane_peer::LanePeer;
pub use region_file::{GatewayChoiceError, RegionFile};
