//! This gateway's place in the fabric.

use crate::ids::{GatewayId, RankId};
use crate::topology::{Fabric, Link};
use std::sync::Arc;

/// The fabric and this gateway's number in it, which also name ranks and gateways in texts.
#[derive(Debug)]
pub(super) struct LocalGateway {
    fabric: Arc<Fabric>,
    id: GatewayId,
}

impl LocalGateway {
    /// Creates the place of gateway `id` in its fabric.
    pub fn new(fabric: Arc<Fabric>, id: GatewayId) -> Self {
        Self { fabric, id }
    }

    /// Returns the number of this gateway in the fabric.
    pub fn id(&self) -> GatewayId {
        self.id
    }

    /// Returns the fabric with all regions, gateways and links.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the link between this gateway's region and a peer's; none inside a region.
    pub fn link_to(&self, peer: GatewayId) -> Option<&Link> {
        self.fabric.link(self.fabric.gateway(self.id).region, self.fabric.gateway(peer).region)
    }

    /// Names a rank with its region for texts, such as "rank 3 (us-east)".
    pub fn rank_name(&self, rank: RankId) -> String {
        let region = self.fabric.regions().iter().find(|r| r.ranks.contains(&rank.0));
        let rank = self.fabric.rank_number(rank);
        format!("rank {rank} ({})", region.map_or("no region", |region| &region.name))
    }

    /// Returns a gateway's name in the fabric file.
    pub fn gateway_name(&self, gateway: GatewayId) -> &str {
        &self.fabric.gateway(gateway).name
    }

    /// Names the connection between two gateways for texts: "link us-east-us-west", or both
    /// gateways of one region.
    pub fn connection_name(&self, one: GatewayId, other: GatewayId) -> String {
        let regions = [one, other].map(|id| self.fabric.gateway(id).region);
        if regions[0] == regions[1] {
            let [one, other] = [one, other].map(|id| self.gateway_name(id));
            return format!("the connection between gateways {one} and {other}");
        }
        let [a, b] = [regions[0].min(regions[1]), regions[0].max(regions[1])]
            .map(|region| &*self.fabric.region(region).name);
        format!("link {a}-{b}")
    }

    /// Returns this gateway's name in the fabric file.
    pub fn own_name(&self) -> &str {
        self.gateway_name(self.id)
    }
}
