//! The fabric: regions, gateways, ranks and links; valid by construction.

mod error;
mod fabric;
mod fabric_spec;
mod group_fabric;
mod link;
mod link_state;
mod patience;
mod quorum;
mod region;
mod send_relays;
mod witness;

pub use error::FabricError;
pub use fabric::Fabric;
pub use fabric_spec::{FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec};
pub use group_fabric::{GroupFabric, GroupFabricError};
pub use link::Link;
pub use link_state::LinkState;
pub use patience::{
    KEEP_ALIVE_INTERVAL, PATIENCE_RULES, Patience, PatienceDeadline, PatienceError, PatienceRule,
    PatienceSource,
};
pub(crate) use patience::{SLOW_ROUND_TRIPS, STALLED_SEGMENTS};
pub use quorum::{Quorum, QuorumSpec};
pub use region::{Gateway, Region, WanPort};
