//! The region file, such as `east.toml`: the gateways of one region on their hosts, and jobs.

mod file;
pub(super) mod keys;
mod lane_peers;
mod tables;

pub use file::{GatewayChoiceError, RegionFile};
pub use lane_peers::LanePeer;
pub use tables::{GatewayConfig, JobConfig};
