//! Rates of a fabric's ports and pairs, by region, in payload bytes per second.

use crate::bound::payload_rate;
use crate::ids::{GatewayId, RegionId};
use crate::topology::{Fabric, WanPort};
use units::BitRate;

/// The direction of ports that limits a kind of tree.
///
/// A tree for partials and results loads both directions alike, so the slower one limits it. A tree
/// for partials alone loads a region's ingress, and one for results its egress, once for each edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortDirection {
    /// The slower direction of each port.
    Both,
    /// The rate into a region.
    Ingress,
    /// The rate out of a region.
    Egress,
}

/// The limits of a plan: rates and delays of ports and pairs of regions.
#[derive(Debug, Clone)]
pub(super) struct FabricCapacity {
    /// Payload rate of each region's ports together, in one direction.
    pub ports: Vec<f64>,
    /// Payload rate of each pair, row by row; zero for a pair without a link.
    pairs: Vec<f64>,
    /// Payload rate of each pair without loss: retransmissions pass ports as well.
    offered: Vec<f64>,
    /// One-way delay of each pair in nanoseconds, row by row.
    delays: Vec<u64>,
}

impl FabricCapacity {
    /// Computes the capacity of all regions and pairs of a fabric, for ports that are limited in
    /// `direction`.
    pub fn of_fabric(fabric: &Fabric, direction: PortDirection) -> Self {
        let regions = fabric.regions().len();
        let port = |region: usize| {
            let wans = fabric.regions()[region].gateways.clone().map(GatewayId);
            let wans = wans.filter_map(|id| fabric.gateway(id).wan);
            let one_way = |wan: WanPort| match direction {
                PortDirection::Both => fabric_capacity_both_ways(wan),
                PortDirection::Ingress => wan.ingress,
                PortDirection::Egress => wan.egress,
            };
            let bits = wans.map(|wan| one_way(wan).bits_per_second()).sum();
            payload_rate(BitRate::from_bits_per_second(bits), fabric.mtu())
        };
        let mut capacity = Self {
            ports: (0..regions).map(port).collect(),
            pairs: vec![0.0; regions * regions],
            offered: vec![0.0; regions * regions],
            delays: vec![0; regions * regions],
        };
        for link in fabric.links() {
            let (a, b) = (usize::from(link.a.0), usize::from(link.b.0));
            let offered = payload_rate(link.rate, fabric.mtu());
            for at in [a * regions + b, b * regions + a] {
                capacity.offered[at] = offered;
                capacity.pairs[at] = offered * (1.0 - link.loss.as_f64());
                capacity.delays[at] = link.rtt.ns() / 2;
            }
        }
        capacity
    }

    /// Returns the number of regions.
    pub fn region_count(&self) -> usize {
        self.ports.len()
    }

    /// Returns the payload rate of the link between regions `a` and `b` in bytes per second; zero
    /// without a link.
    pub fn pair_rate(&self, a: usize, b: usize) -> f64 {
        self.pairs[a * self.region_count() + b]
    }

    /// Returns the one-way delay of the link between regions `a` and `b`, in nanoseconds; zero
    /// without a link.
    pub fn delay_ns(&self, a: usize, b: usize) -> u64 {
        self.delays[a * self.region_count() + b]
    }

    /// Whether every pair of regions has a link.
    pub fn is_complete(&self) -> bool {
        self.missing_pairs() == 0
    }

    /// Counts the pairs of regions without a link.
    pub fn missing_pairs(&self) -> usize {
        self.all_pairs().filter(|(a, b)| self.pair_rate(*a, *b) == 0.0).count()
    }

    /// Returns the pairs of regions whose link is slower than both ports, so that it can be the
    /// bottleneck.
    pub fn narrow_pairs(&self) -> Vec<(usize, usize)> {
        let narrow = |(a, b): &(usize, usize)| {
            let offered = self.offered[a * self.region_count() + b];
            (1e-9..self.ports[*a].min(self.ports[*b])).contains(&offered)
        };
        self.all_pairs().filter(narrow).collect()
    }

    /// Returns the regions whose ports are no faster than their links, so that a port can be the
    /// bottleneck.
    pub fn narrow_ports(&self) -> Vec<usize> {
        (0..self.region_count())
            .filter(|region| self.ports[*region] <= self.link_rate_sum(*region))
            .collect()
    }

    /// Returns the rate that no schedule of partials up and results down exceeds, in payload bytes
    /// per second.
    ///
    /// Every region sends the buffer once, and each byte takes 2(N-1) messages through all ports.
    pub fn rate_upper_bound(&self) -> f64 {
        let through = |region: usize| self.ports[region].min(self.link_rate_sum(region));
        let each = (0..self.region_count()).map(through);
        let all: f64 = each.clone().sum();
        each.fold(f64::INFINITY, f64::min).min(all / (2.0 * (self.region_count() as f64 - 1.0)))
    }

    /// Returns all pairs of regions, the lower region first.
    pub fn all_pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let regions = self.region_count();
        (0..regions).flat_map(move |a| (a + 1..regions).map(move |b| (a, b)))
    }

    /// Returns the payload rate of all links of a region together, in bytes per second.
    fn link_rate_sum(&self, region: usize) -> f64 {
        (0..self.region_count()).map(|other| self.pair_rate(region, other)).sum()
    }
}

/// Returns the rate of a WAN port in its slower direction.
pub(super) fn fabric_capacity_both_ways(wan: WanPort) -> BitRate {
    wan.egress.min(wan.ingress)
}

/// Converts the index of a region to its id.
pub(super) fn fabric_capacity_region(region: usize) -> RegionId {
    RegionId(u16::try_from(region).unwrap_or(u16::MAX))
}
