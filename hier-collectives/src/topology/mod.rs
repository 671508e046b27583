//! The fabric: regions, gateways, ranks and links; valid by construction.

mod error;
mod fabric;
mod group_fabric;
mod link;
mod region;
mod spec;

pub use error::FabricError;
pub use fabric::Fabric;
pub use group_fabric::{GroupFabric, GroupFabricError};
pub use link::{Link, LinkState};
pub use region::{Gateway, Region, WanPort};
pub use spec::{LinkSpec, RegionGateway, RegionSpec};
