//! The facts by which a gateway divides its port among its peers.

use crate::wan::link::link_message::LinkPortRateMessage;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::{PairShares, PayloadFlows, PortRates};
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;

/// The bytes that gateways send each other, as far as this one knows, and the rates that they told.
#[derive(Debug, Default)]
pub(super) struct PortFlows {
    /// The bytes that operations of all ranks of each job send between gateways.
    pub jobs: BTreeMap<GroupId, PayloadFlows>,
    /// The shares of pairs by these.
    pub planned: PairShares,
    /// The bytes of large operations under way, of each job, group and pair of ranks that send.
    pub moving: BTreeMap<GroupId, PayloadFlows>,
    /// The last rate that each peer was told, with the number of the message.
    pub told: BTreeMap<GatewayId, LinkPortRateMessage>,
    /// The last rate that each peer told.
    pub heard: BTreeMap<GatewayId, LinkPortRateMessage>,
}

impl PortFlows {
    /// Returns the rates of this gateway's port by what moves; none while plans tell all of it.
    pub fn moving_rates(&self, fabric: &Fabric, me: GatewayId) -> PortRates {
        if self.moving.keys().all(|group| self.jobs.contains_key(group)) {
            return PortRates::default();
        }
        PortRates::of_flows(self.moving.values(), fabric, me)
    }
}
