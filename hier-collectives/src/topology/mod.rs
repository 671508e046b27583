//! The fabric: regions, gateways, ranks and links; valid by construction.

mod error;
mod fabric;
mod link;
mod region;
mod spec;

pub use error::FabricError;
pub use fabric::Fabric;
pub use link::{Link, LinkState};
pub use region::{Gateway, Region, WanPort};
pub use spec::{LinkSpec, RegionGateway, RegionSpec};
