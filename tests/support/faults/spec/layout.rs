//! The regions of a run, their gateways, and the links between them.

use super::place::{GatewayPlace, REGIONS, RegionPair};
use crate::Shape;
use crate::collectives::data::SplitMix64;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, GroupFabric, WanPort,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use units::{BitRate, Span};
use wan_sim::LinkSpec;

/// Regions, their gateways, and the links between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The gateways of each region, the first of which has a port.
    pub regions: Vec<Vec<GatewayLayout>>,
    /// The links.
    pub links: Vec<LinkLayout>,
}

/// A gateway of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayLayout {
    /// The number of its ranks.
    pub ranks: u32,
    /// Whether it has a WAN port.
    pub has_port: bool,
}

/// A link between two regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLayout {
    /// The regions.
    pub regions: RegionPair,
    /// Its rate is the shape's, divided by this number.
    pub slower: u64,
    /// Its round-trip time is the shape's, times this number.
    pub longer: u64,
}

/// 3 ranks: the most at a gateway of a mesh.
const RANKS_OF_GATEWAY_MAX: u64 = 3;

/// 2 times: the most by which links of a mesh differ in rate and round-trip time.
const UNLIKE_LINKS_MAX: u64 = 2;

impl Layout {
    /// Two regions with a gateway each, and these ranks.
    pub fn pair(east: u32, west: u32) -> Self {
        let region = |ranks| vec![GatewayLayout { ranks, has_port: true }];
        let link = LinkLayout { regions: RegionPair::EAST_WEST, slower: 1, longer: 1 };
        Self { regions: vec![region(east), region(west)], links: vec![link] }
    }

    /// Two to four regions with up to two gateways each, in a line, in a ring, each linked with each
    /// other, or with one link missing.
    pub fn mesh(dice: &mut SplitMix64) -> Self {
        let mut pick = |choices: u64| dice.roll() % choices;
        let count = [2, 3, 3, 3, 4, 4][pick(6) as usize];
        let mut region = |number: usize| {
            let is_double = count == 2 && number == 1 || pick(3) == 0;
            let others = is_double
                .then(|| GatewayLayout { ranks: 1 + pick(2) as u32, has_port: pick(2) == 0 });
            let ranks = 1 + pick(RANKS_OF_GATEWAY_MAX) as u32;
            [GatewayLayout { ranks, has_port: true }].into_iter().chain(others).collect()
        };
        let regions: Vec<Vec<GatewayLayout>> = (0..count).map(&mut region).collect();
        let last = count as u8 - 1;
        let all = (0..=last).flat_map(|one| (one + 1..=last).map(move |to| RegionPair(one, to)));
        let all: Vec<RegionPair> = all.collect();
        let missing = all[pick(all.len() as u64) as usize];
        let shape = pick(4);
        let is_there = |pair: &RegionPair| match shape {
            0 => pair.0 + 1 == pair.1,
            1 => pair.0 + 1 == pair.1 || *pair == RegionPair(0, last),
            2 => *pair != missing || count == 2,
            _ => true,
        };
        let mut link = |regions| LinkLayout {
            regions,
            slower: 1 + pick(UNLIKE_LINKS_MAX),
            longer: 1 + pick(UNLIKE_LINKS_MAX),
        };
        let links = all.into_iter().filter(is_there).map(&mut link).collect();
        Self { regions, links }
    }

    /// Whether it is more than two gateways and a link.
    pub fn is_mesh(&self) -> bool {
        self.gateways().count() > 2
    }

    /// All gateways, in the order of their ids.
    pub fn gateways(&self) -> impl Iterator<Item = GatewayPlace> + '_ {
        (0..).zip(&self.regions).flat_map(|(region, gateways)| {
            (0..gateways.len() as u8).map(move |number| GatewayPlace { region, number })
        })
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.regions.iter().flatten().map(|gateway| gateway.ranks).sum()
    }

    /// The id of a gateway in the fabric.
    ///
    /// # Panics
    /// The layout has no such gateway.
    pub fn id(&self, place: GatewayPlace) -> GatewayId {
        let index = self.gateways().position(|gateway| gateway == place).expect("it is there");
        GatewayId(index as u16)
    }

    /// The gateway with an id.
    ///
    /// # Panics
    /// The layout has no such gateway.
    pub fn place(&self, id: GatewayId) -> GatewayPlace {
        self.gateways().nth(usize::from(id.0)).expect("it is there")
    }

    /// The gateway of a rank.
    ///
    /// # Panics
    /// The layout has no such rank.
    pub fn gateway_of(&self, rank: u32) -> GatewayPlace {
        let mut end = 0;
        let found = self.gateways().find(|place| {
            end += self.gateway(*place).ranks;
            rank < end
        });
        found.expect("it is there")
    }

    /// The link between two regions, if there is one.
    pub fn link(&self, pair: RegionPair) -> Option<LinkLayout> {
        self.links.iter().copied().find(|link| link.regions == pair)
    }

    /// Whether two gateways have a connection.
    pub fn connects(&self, one: GatewayPlace, other: GatewayPlace) -> bool {
        let ports = [one, other].into_iter().all(|place| self.gateway(place).has_port);
        let linked = || self.link(RegionPair::of(one.region, other.region)).is_some();
        one.region == other.region || ports && linked()
    }

    /// Whether the gateways of some ranks reach each other without any other gateway.
    pub fn is_joined(&self, ranks: &[u32]) -> bool {
        let gateways: BTreeSet<GatewayPlace> =
            ranks.iter().map(|rank| self.gateway_of(*rank)).collect();
        let mut open: Vec<GatewayPlace> = gateways.iter().copied().take(1).collect();
        let mut reached: BTreeSet<GatewayPlace> = open.iter().copied().collect();
        while let Some(at) = open.pop() {
            for next in gateways.iter().filter(|next| self.connects(at, **next)) {
                if reached.insert(*next) {
                    open.push(*next);
                }
            }
        }
        reached == gateways
    }

    /// The gateways that take part in a send: those of both ranks, and those that pass it on.
    ///
    /// # Panics
    /// The fabric has no such ranks.
    pub fn gateways_of_send(&self, fabric: &Fabric, from: u32, to: u32) -> Vec<GatewayPlace> {
        let ends = [from, to].map(|rank| self.gateway_of(rank));
        if self.connects(ends[0], ends[1]) {
            return ends.to_vec();
        }
        let ranks = [from.min(to), from.max(to)].map(RankId);
        let part = GroupFabric::of_send(fabric, &ranks).expect("the fabric is connected");
        part.gateways.into_iter().map(|id| self.place(id)).collect()
    }

    /// The number of links on the shortest way from a region to each other one, by way of these
    /// regions alone.
    pub fn hops(&self, from: u8, by: &BTreeSet<u8>) -> BTreeMap<u8, u64> {
        let mut hops = BTreeMap::from([(from, 0)]);
        for far in 0..self.regions.len() as u64 {
            let here: Vec<u8> =
                hops.iter().filter(|(_, at)| **at == far).map(|(r, _)| *r).collect();
            for (at, next) in here.into_iter().flat_map(|at| by.iter().map(move |next| (at, *next)))
            {
                if at != next && self.link(RegionPair::of(at, next)).is_some() {
                    hops.entry(next).or_insert(far + 1);
                }
            }
        }
        hops
    }

    /// The fabric of the layout, with the link of a shape.
    ///
    /// # Panics
    /// The layout is at fault.
    pub fn fabric(&self, shape: &Shape) -> Arc<Fabric> {
        let wan = Some(WanPort { egress: shape.rate, ingress: shape.rate });
        let gateway = |place: GatewayPlace| {
            let GatewayLayout { ranks, has_port } = self.gateway(place);
            FabricGatewaySpec::new(place.to_string(), ranks, wan.filter(|_| has_port))
        };
        let region = |(number, gateways): (u8, &Vec<GatewayLayout>)| FabricRegionSpec {
            name: REGIONS[usize::from(number)].to_owned(),
            speeds: vec![1.0; gateways.iter().map(|gateway| gateway.ranks as usize).sum()],
            gateways: self.gateways().filter(|place| place.region == number).map(gateway).collect(),
        };
        let link = |link: &LinkLayout| {
            let RegionPair(one, other) = link.regions;
            let shape = link.shape(shape);
            let name = |region: u8| REGIONS[usize::from(region)].to_owned();
            let between = (name(one), name(other));
            FabricLinkSpec { between, rate: shape.rate, rtt: shape.rtt, loss: shape.loss }
        };
        let regions = (0..).zip(&self.regions).map(region).collect();
        let links = self.links.iter().map(link).collect();
        let fabric = Fabric::new("sim", shape.mtu, regions, links).expect("a valid fabric");
        Arc::new(fabric.with_lanes_min(shape.lanes))
    }

    fn gateway(&self, place: GatewayPlace) -> GatewayLayout {
        self.regions[usize::from(place.region)][usize::from(place.number)]
    }
}

impl LinkLayout {
    /// The link of a shape as it is between these regions.
    pub fn shape(&self, shape: &Shape) -> Shape {
        let rate = BitRate::from_bits_per_second(shape.rate.bits_per_second() / self.slower);
        let rtt = Span::from_ns(shape.rtt.ns() * self.longer);
        Shape { rate, rtt, ..shape.clone() }
    }

    /// One direction of the link.
    pub fn spec(&self, shape: &Shape) -> LinkSpec {
        self.shape(shape).link()
    }
}

impl fmt::Display for Layout {
    /// Prints the ranks of each gateway and the links: `east 2, west 3 + 1 (no port) ranks; links
    /// east-west`, and which links are slower or longer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = |gateway: &GatewayLayout| {
            let port = if gateway.has_port { "" } else { " (no port)" };
            format!("{}{port}", gateway.ranks)
        };
        let region = |(gateways, name): (&Vec<GatewayLayout>, &str)| {
            let gateways: Vec<String> = gateways.iter().map(gateway).collect();
            format!("{name} {}", gateways.join(" + "))
        };
        let link = |LinkLayout { regions: RegionPair(one, other), slower, longer }: &LinkLayout| {
            let mut text =
                format!("{}-{}", REGIONS[usize::from(*one)], REGIONS[usize::from(*other)]);
            if *slower > 1 {
                text += &format!(" (rate / {slower})");
            }
            if *longer > 1 {
                text += &format!(" (RTT * {longer})");
            }
            text
        };
        let regions: Vec<String> = self.regions.iter().zip(REGIONS).map(region).collect();
        let links: Vec<String> = self.links.iter().map(link).collect();
        write!(f, "{} ranks; links {}", regions.join(", "), links.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_draw_lines_rings_and_missing_links() {
        let shape = Shape::new(1, 1);
        let mut kinds = BTreeSet::new();
        let mut relayed = 0;
        for seed in 0..300 {
            let layout = Layout::mesh(&mut SplitMix64(seed));
            let fabric = layout.fabric(&shape);
            assert_eq!(fabric.world_size(), layout.world());
            let ids: Vec<GatewayPlace> = fabric.gateway_ids().map(|id| layout.place(id)).collect();
            assert!(ids.iter().copied().eq(layout.gateways()));
            for rank in 0..layout.world() {
                let id = fabric.gateway_of(RankId(rank)).expect("served");
                assert_eq!(layout.gateway_of(rank), layout.place(id));
            }
            for one in fabric.gateway_ids() {
                for other in fabric.gateway_ids().filter(|other| one != *other) {
                    let [here, there] = [one, other].map(|id| layout.place(id));
                    assert_eq!(fabric.connects(one, other), layout.connects(here, there));
                }
            }
            let last = layout.world() - 1;
            let ends: Vec<RankId> = [0, last].map(RankId).to_vec();
            assert_eq!(GroupFabric::of_ranks(&fabric, &ends).is_ok(), layout.is_joined(&[0, last]));
            relayed += u32::from(layout.gateways_of_send(&fabric, 0, last).len() > 2);
            kinds.insert((layout.regions.len(), layout.links.len()));
        }
        assert_eq!(kinds, [(2, 1), (3, 2), (3, 3), (4, 3), (4, 4), (4, 5), (4, 6)].into());
        assert!(relayed > 60, "{relayed}");
    }

    #[test]
    fn hops_count_links_on_the_shortest_way() {
        let mut layout = Layout::pair(1, 1);
        layout.regions.extend(Layout::pair(1, 1).regions);
        layout.links = [(0, 1), (1, 2), (2, 3), (0, 3)]
            .map(|(one, other)| LinkLayout {
                regions: RegionPair(one, other),
                slower: 1,
                longer: 1,
            })
            .to_vec();
        assert_eq!(layout.hops(0, &[0, 1, 2, 3].into()), [(0, 0), (1, 1), (2, 2), (3, 1)].into());
        assert_eq!(layout.hops(0, &[0, 1, 2].into()), [(0, 0), (1, 1), (2, 2)].into());
        assert_eq!(layout.hops(0, &[0, 2].into()), [(0, 0)].into());
    }
}
