//! The region file, such as `east.toml`: the gateways of one region on their hosts, and jobs.

pub(super) mod keys;
mod lane_peer;
mod region_file;
mod region_tables;

pub use lane_peer::LanePeer;
pub use region_file::{GatewayChoiceError, RegionFile};
pub use region_tables::{GatewayConfig, JobConfig};
