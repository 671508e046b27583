//! The fabric of a group: the part of a job's fabric that has ranks of the group.
//!
//! A group is a job of its own on that part: its ranks, gateways and regions are numbered from 0 on.
//! The engine makes it when a group is made, and translates numbers at the session's border.

use super::error::FabricError;
use super::fabric::Fabric;
use super::fabric_spec::{FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec};
use super::send_relays::send_relays;
use crate::ids::{GatewayId, RankId};
use std::collections::BTreeSet;

/// The fabric of a group, and the numbers of its ranks and gateways in the whole fabric.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupFabric {
    /// The gateways with ranks of the group, those that only pass its data on, their regions, and the
    /// links between these.
    pub fabric: Fabric,
    /// The number of each gateway in the whole fabric, ascending.
    pub gateways: Vec<GatewayId>,
    /// The number of each rank in the whole fabric, ascending.
    pub ranks: Vec<RankId>,
}

/// Why ranks make no group; always the caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupFabricError {
    /// No rank is named.
    #[error("a group needs at least one rank")]
    NoRank,
    /// The ranks are not in ascending order, or one is named twice.
    #[error("the ranks of a group are not in ascending order at rank {0}")]
    Unsorted(RankId),
    /// The fabric does not have the rank.
    #[error("the fabric has no rank {0}")]
    UnknownRank(RankId),
    /// The gateways with ranks of the group have no way to each other but through others.
    #[error("{0}, among the gateways with ranks of the group")]
    Divided(String),
}

impl GroupFabric {
    /// Makes the fabric of a group from its `ranks` in the fabric `whole`. `ranks` must ascend.
    ///
    /// # Errors
    /// [`GroupFabricError`]: the caller named ranks that make no group.
    pub fn of_ranks(whole: &Fabric, ranks: &[RankId]) -> Result<Self, GroupFabricError> {
        if ranks.is_empty() {
            return Err(GroupFabricError::NoRank);
        }
        if let Some(pair) = ranks.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(GroupFabricError::Unsorted(pair[1]));
        }
        if let Some(rank) = ranks.iter().find(|rank| rank.0 >= whole.world_size()) {
            return Err(GroupFabricError::UnknownRank(*rank));
        }
        Self::with_relays(whole, ranks, &BTreeSet::new())
    }

    /// Makes the fabric of two ranks that send to each other. Where their gateways have no way to
    /// each other but through others, it also has one gateway of each region on the way.
    ///
    /// # Errors
    /// [`GroupFabricError`]: the caller named ranks that make no group.
    pub fn of_send(whole: &Fabric, ranks: &[RankId]) -> Result<Self, GroupFabricError> {
        match Self::of_ranks(whole, ranks) {
            Err(GroupFabricError::Divided(_)) => {
                Self::with_relays(whole, ranks, &send_relays(whole, ranks))
            }
            made => made,
        }
    }

    /// Makes the fabric of a group from its `ranks` and from `relays`, gateways that pass its data
    /// on whether or not they have ranks of it.
    fn with_relays(
        whole: &Fabric,
        ranks: &[RankId],
        relays: &BTreeSet<GatewayId>,
    ) -> Result<Self, GroupFabricError> {
        let (mut regions, mut gateways) = (Vec::new(), Vec::new());
        for region in whole.regions() {
            let mut spec =
                FabricRegionSpec { name: region.name.clone(), speeds: vec![], gateways: vec![] };
            for id in region.gateways.clone().map(GatewayId) {
                let gateway = whole.gateway(id);
                let served = group_fabric_ranks(ranks, &gateway.ranks);
                if served.is_empty() && !relays.contains(&id) {
                    continue;
                }
                let count = u32::try_from(served.len()).unwrap_or(u32::MAX);
                let speed = |rank: &RankId| region.speeds[(rank.0 - region.ranks.start) as usize];
                spec.speeds.extend(served.iter().map(speed));
                spec.gateways.push(FabricGatewaySpec::new(&gateway.name, count, gateway.wan));
                gateways.push(id);
            }
            regions.extend((!spec.gateways.is_empty()).then_some(spec));
        }
        let links = group_fabric_links(whole, &regions);
        let fabric = Fabric::of_regions(whole.name(), whole.mtu(), regions, links, vec![]);
        let fabric = fabric.map_err(|faults| divided_group_fabric_error(&faults))?;
        let fabric = fabric.with_lanes_min(whole.lanes_min()).with_patience(whole.patience());
        let fabric = fabric.with_rank_numbers(ranks.to_vec());
        Ok(Self { fabric, gateways, ranks: ranks.to_vec() })
    }
}

/// Returns the ranks of an ascending list that lie in a range.
fn group_fabric_ranks<'r>(ranks: &'r [RankId], range: &std::ops::Range<u32>) -> &'r [RankId] {
    let [start, end] =
        [range.start, range.end].map(|bound| ranks.partition_point(|rank| rank.0 < bound));
    &ranks[start..end]
}

/// Returns the links whose ends are both among these regions.
fn group_fabric_links(whole: &Fabric, regions: &[FabricRegionSpec]) -> Vec<FabricLinkSpec> {
    let is_kept = |name: &str| regions.iter().any(|region| region.name == name);
    let links = whole.links().iter().filter_map(|link| {
        let [a, b] = [link.a, link.b].map(|region| &whole.region(region).name);
        (is_kept(a) && is_kept(b)).then(|| FabricLinkSpec {
            between: (a.clone(), b.clone()),
            rate: link.rate,
            rtt: link.rtt,
            loss: link.loss,
        })
    });
    links.collect()
}

/// Converts the faults of a part of a valid fabric, which can only be divided.
fn divided_group_fabric_error(faults: &[FabricError]) -> GroupFabricError {
    let text = faults.first().map_or_else(String::new, FabricError::to_string);
    GroupFabricError::Divided(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};

    /// Three regions in a chain; the second has a gateway without a port.
    fn chain() -> Fabric {
        let wan = Some(symmetric_port(mbit(1)));
        let builder = FabricBuilder::default().region("a", [(2, wan)]);
        let builder = builder.region("b", [(1, wan), (2, None)]).region("c", [(1, wan)]);
        let link = lossless_link(mbit(1), 2);
        builder.link("a", "b", link).link("b", "c", link).build()
    }

    fn group(ranks: &[u32]) -> Result<GroupFabric, GroupFabricError> {
        let ranks: Vec<RankId> = ranks.iter().copied().map(RankId).collect();
        GroupFabric::of_ranks(&chain(), &ranks)
    }

    #[test]
    fn a_group_keeps_gateways_with_its_ranks() {
        let GroupFabric { fabric, gateways, .. } = group(&[1, 2, 5]).expect("a chain");
        assert_eq!(gateways, [0, 1, 3].map(GatewayId));
        let served: Vec<_> = fabric.gateways().iter().map(|at| at.ranks.clone()).collect();
        assert_eq!(served, [0..1, 1..2, 2..3]);
        assert_eq!((fabric.regions().len(), fabric.links().len()), (3, 2));
        assert_eq!(fabric.rank_number(RankId(2)), RankId(5));
        let near = group(&[3, 4]).expect("one gateway without a port").fabric;
        assert_eq!((near.world_size(), near.links().len()), (2, 0));
        let all = group(&[0, 1, 2, 3, 4, 5]).expect("all");
        assert_eq!(all.fabric.links(), chain().links());
        assert_eq!(all.fabric.gateways(), chain().gateways());
    }

    #[test]
    fn ranks_that_make_no_group_are_named() {
        assert_eq!(group(&[]), Err(GroupFabricError::NoRank));
        assert_eq!(group(&[2, 2]), Err(GroupFabricError::Unsorted(RankId(2))));
        assert_eq!(group(&[1, 0]), Err(GroupFabricError::Unsorted(RankId(0))));
        assert_eq!(group(&[0, 6]), Err(GroupFabricError::UnknownRank(RankId(6))));
        let apart = group(&[0, 5]).expect_err("no link joins a and c").to_string();
        assert!(apart.starts_with("region `c` cannot be reached from region `a`"), "{apart}");
        let portless = group(&[0, 3]).expect_err("its gateway has no port").to_string();
        assert!(portless.contains("region `b` has no gateway with a WAN port"), "{portless}");
    }

    #[test]
    fn a_send_has_gateways_on_the_way() {
        let send = |ranks: [u32; 2]| GroupFabric::of_send(&chain(), &ranks.map(RankId));
        for (ranks, gateways, served) in [
            ([0, 2], &[0, 1][..], &[0..1, 1..2][..]),
            ([0, 5], &[0, 1, 3], &[0..1, 1..1, 1..2]),
            // A gateway without a port goes by one of its region.
            ([0, 3], &[0, 1, 2], &[0..1, 1..1, 1..2]),
            ([3, 5], &[1, 2, 3], &[0..0, 0..1, 1..2]),
            ([2, 4], &[1, 2], &[0..1, 1..2]),
        ] {
            let part = send(ranks).expect("a connected fabric");
            let ids: Vec<u16> = part.gateways.iter().map(|id| id.0).collect();
            assert_eq!(ids, gateways, "{ranks:?}");
            let ranges: Vec<_> = part.fabric.gateways().iter().map(|at| at.ranks.clone()).collect();
            assert_eq!(ranges, served, "{ranks:?}");
            assert_eq!(part.fabric.world_size(), 2);
            assert!(part.fabric.is_connected());
        }
        assert_eq!(send([0, 6]), Err(GroupFabricError::UnknownRank(RankId(6))));
        assert_eq!(send([1, 1]), Err(GroupFabricError::Unsorted(RankId(1))));
    }
}
