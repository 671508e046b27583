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

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::topology::{
        FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
    };
    use units::{BitRate, Fraction, Span};

    const PORT: BitRate = BitRate::from_bits_per_second(600_000_000);

    /// Three regions with a gateway each, all linked.
    fn fabric() -> Fabric {
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(
                format!("{name}-0"),
                1,
                Some(WanPort { egress: PORT, ingress: PORT }),
            )],
        };
        let link = |one: &str, other: &str| FabricLinkSpec {
            between: (one.to_owned(), other.to_owned()),
            rate: PORT,
            rtt: Span::from_ms(20),
            loss: Fraction::default(),
        };
        let links = vec![link("a", "b"), link("a", "c"), link("b", "c")];
        Fabric::new("three", 1500, ["a", "b", "c"].map(region).to_vec(), links).expect("valid")
    }

    /// The operations of a job alone follow its plan. Once a group moves, they have their part by bytes
    /// as the group has.
    #[test]
    fn a_port_goes_by_what_moves_beside_a_group() {
        let (fabric, [a, b, c]) = (fabric(), [0, 1, 2].map(GatewayId));
        let (job, group) = (GroupId::of_job("train"), GroupId(7));
        let mut flows = PortFlows::default();
        flows.jobs.insert(job, [((a, b), 5), ((a, c), 5)].into());
        flows.moving.insert(job, [((a, b), 200), ((c, a), 10)].into());
        assert_eq!(flows.moving_rates(&fabric, a), PortRates::default(), "the plan tells all");
        flows.moving.insert(group, [((a, c), 100)].into());
        let rate = |mbit: u64| BitRate::from_bits_per_second(mbit * 1_000_000);
        let rates = flows.moving_rates(&fabric, a);
        assert_eq!(rates.egress, [(b, rate(400)), (c, rate(200))].into());
        assert_eq!(rates.ingress, [(c, PORT)].into());
        // The group alone has the whole port.
        flows.moving.remove(&job);
        let rates = flows.moving_rates(&fabric, a);
        assert_eq!((rates.egress, rates.ingress), ([(c, PORT)].into(), [].into()));
        flows.moving.clear();
        assert_eq!(flows.moving_rates(&fabric, a), PortRates::default());
    }
}
