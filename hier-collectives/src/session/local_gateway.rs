//! This gateway's place in the fabric.

use crate::ids::{GatewayId, RankId};
use crate::topology::{Fabric, Link};
use std::sync::Arc;

/// The fabric and this gateway's number in it. It also names ranks and gateways in texts.
#[derive(Debug)]
pub(super) struct LocalGateway {
    fabric: Arc<Fabric>,
    id: GatewayId,
}

impl LocalGateway {
    pub fn new(fabric: Arc<Fabric>, id: GatewayId) -> Self {
        Self { fabric, id }
    }

    pub fn id(&self) -> GatewayId {
        self.id
    }

    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The link between our region and a peer's; none inside a region.
    pub fn link_to(&self, peer: GatewayId) -> Option<&Link> {
        self.fabric.link(self.fabric.gateway(self.id).region, self.fabric.gateway(peer).region)
    }

    /// A rank with its region, for texts: "rank 3 (us-east)".
    pub fn rank_name(&self, rank: RankId) -> String {
        let region = self.fabric.regions().iter().find(|r| r.ranks.contains(&rank.0));
        format!("rank {rank} ({})", region.map_or("no region", |region| &region.name))
    }

    pub fn gateway_name(&self, gateway: GatewayId) -> &str {
        &self.fabric.gateway(gateway).name
    }

    pub fn own_name(&self) -> &str {
        self.gateway_name(self.id)
    }
}
