//! The fabric, and the checks that make it valid.
//!
//! Config files and tests build it; everything that plans or routes reads it.

use super::error::FabricError;
use super::fabric_spec::{FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec};
use super::link::{LOSS_BOUND_PPB, Link, RTT_MAX};
use super::patience::{Patience, PatienceDeadline};
use super::quorum::{Quorum, QuorumSpec};
use super::region::{Gateway, RATE_MIN_BITS_PER_SECOND, Region};
use crate::ids::{GatewayId, RankId, RegionId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use units::{ByteCount, Span};

/// 1,280 to 65,507 bytes: accepted IP MTUs of paths between gateways; a fabric with another MTU is
/// refused. The limits are the least MTU of IPv6 and the longest UDP payload.
const MTU_RANGE_BYTES: RangeInclusive<u16> = 1280..=65_507;

/// The deployment on which all gateways agree.
///
/// Regions and gateways are in name order, a witness last. Ranks are numbered through the regions,
/// and within a region through its gateways.
#[derive(Debug, Clone, PartialEq)]
pub struct Fabric {
    name: String,
    mtu: u16,
    /// The fewest QUIC connections between two gateways.
    lanes_min: u16,
    silence: Option<Span>,
    patience: Patience,
    regions: Vec<Region>,
    gateways: Vec<Gateway>,
    links: Vec<Link>,
    quorum: Quorum,
    /// The gateway of the last region, if that is a witness.
    witness: Option<GatewayId>,
    /// The numbers by which people know the ranks, where they are not those of this fabric.
    rank_numbers: Option<Vec<RankId>>,
}

impl Fabric {
    /// Builds a fabric: numbers regions, gateways and ranks, and checks names, ranks, speeds,
    /// ports, links and the MTU. If they are right, checks that paths of links join all regions.
    ///
    /// # Errors
    /// All faults of the first check, or else all of the second, so that a config can be corrected
    /// in few passes.
    pub fn new(
        name: &str,
        mtu: u16,
        regions: Vec<FabricRegionSpec>,
        links: Vec<FabricLinkSpec>,
    ) -> Result<Self, Vec<FabricError>> {
        let is_without_rank = |region: &&FabricRegionSpec| region.speeds.is_empty();
        let without_rank = regions.iter().filter(is_without_rank);
        let faults = without_rank.map(|region| FabricError::NoRank(region.name.clone())).collect();
        Self::of_regions(name, mtu, regions, links, faults)
    }

    /// Builds a fabric like [`Fabric::new`], except that regions may have no rank: they only pass
    /// data on. `faults` are those that were found before.
    ///
    /// # Errors
    /// These faults and all others, as from [`Fabric::new`].
    pub(super) fn of_regions(
        name: &str,
        mtu: u16,
        mut regions: Vec<FabricRegionSpec>,
        links: Vec<FabricLinkSpec>,
        mut faults: Vec<FabricError>,
    ) -> Result<Self, Vec<FabricError>> {
        regions.sort_by(|left, right| left.name.cmp(&right.name));
        if regions.is_empty() {
            faults.push(FabricError::NoRegion);
        }
        if !MTU_RANGE_BYTES.contains(&mtu) {
            let accepted = format!("{} to {}", MTU_RANGE_BYTES.start(), MTU_RANGE_BYTES.end());
            let problem = format!("mtu {mtu} is outside {accepted}");
            faults.push(FabricError::BadValue { problem, accepted });
        }
        let mut fabric = Self {
            name: name.to_owned(),
            mtu,
            lanes_min: 1,
            silence: None,
            patience: Patience::default(),
            regions: vec![],
            gateways: vec![],
            links: vec![],
            quorum: Quorum::All,
            witness: None,
            rank_numbers: None,
        };
        let several = regions.len() > 1;
        for region in regions {
            check_region_of_new_fabric(&region, several, &mut faults);
            fabric.add_region(region);
        }
        let mut names: Vec<&str> = fabric.gateways.iter().map(|g| g.name.as_str()).collect();
        names.sort_unstable();
        let regions = fabric.regions.windows(2).map(|pair| (&*pair[0].name, &*pair[1].name));
        let twice = names.windows(2).map(|pair| (pair[0], pair[1])).chain(regions);
        let twice: Vec<String> = twice.filter(|(a, b)| a == b).map(|(a, _)| a.to_owned()).collect();
        faults.extend(twice.into_iter().map(FabricError::NameTwice));
        for link in links {
            fabric.add_link(link, &mut faults);
        }
        if faults.is_empty() {
            fabric.check_connected(&mut faults);
        }
        if faults.is_empty() { Ok(fabric) } else { Err(faults) }
    }

    /// Returns the name of the fabric.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Returns the IP MTU of every long-haul path, in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }
    /// Returns the fewest lanes (QUIC connections) between two gateways: 1 unless
    /// [`Fabric::with_lanes_min`] has set another number.
    pub fn lanes_min(&self) -> u16 {
        self.lanes_min
    }
    /// Returns the silence after which a gateway counts as lost; `None` unless
    /// [`Fabric::with_silence`] has set one.
    pub fn silence(&self) -> Option<Span> {
        self.silence
    }
    /// Returns how long a silence is borne: 15 s unless [`Fabric::with_patience`] has set another time.
    pub fn patience(&self) -> Patience {
        self.patience
    }
    /// Returns all regions, in name order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
    /// Returns all gateways, in (region name, gateway name) order.
    pub fn gateways(&self) -> &[Gateway] {
        &self.gateways
    }
    /// Returns all links, in the order of their regions.
    pub fn links(&self) -> &[Link] {
        &self.links
    }
    /// Returns the number of ranks in all regions.
    pub fn world_size(&self) -> u32 {
        self.regions.last().map_or(0, |region| region.ranks.end)
    }
    /// Returns the region with number `id`.
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[usize::from(id.0)]
    }
    /// Returns the gateway with number `id`.
    pub fn gateway(&self, id: GatewayId) -> &Gateway {
        &self.gateways[usize::from(id.0)]
    }
    /// Returns the number of the gateway called `name`; `None` without such a gateway.
    pub fn gateway_named(&self, name: &str) -> Option<GatewayId> {
        let index = self.gateways.iter().position(|gateway| gateway.name == name)?;
        u16::try_from(index).ok().map(GatewayId)
    }
    /// Returns the number of the gateway that serves `rank`; `None` for a rank that is not in the
    /// fabric.
    pub fn gateway_of(&self, rank: RankId) -> Option<GatewayId> {
        let index = self.gateways.iter().position(|gateway| gateway.ranks.contains(&rank.0))?;
        u16::try_from(index).ok().map(GatewayId)
    }
    /// Returns the link between two regions, if there is one.
    pub fn link(&self, one: RegionId, other: RegionId) -> Option<&Link> {
        let index = self.link_index((one.min(other), one.max(other))).ok()?;
        self.links.get(index)
    }
    /// Whether two gateways have a direct connection: over the LAN of their region, or from port to
    /// port over the link between their regions.
    pub fn connects(&self, one: GatewayId, other: GatewayId) -> bool {
        let (one, other) = (self.gateway(one), self.gateway(other));
        let ports = one.wan.is_some() && other.wan.is_some();
        one.region == other.region || (ports && self.link(one.region, other.region).is_some())
    }
    /// Returns a copy of the fabric that has `links` as its links; those between regions that it
    /// does not link are left out.
    pub fn with_links(&self, links: Vec<Link>) -> Self {
        let known = |link: &Link| self.link_index((link.a, link.b)).is_ok();
        Self { links: links.into_iter().filter(known).collect(), ..self.clone() }
    }
    /// Sets the fewest lanes (QUIC connections) between two gateways, at least 1.
    pub fn with_lanes_min(self, lanes_min: u16) -> Self {
        Self { lanes_min: lanes_min.max(1), ..self }
    }
    /// Sets the silence after which a gateway counts as lost.
    pub fn with_silence(self, silence: Option<Span>) -> Self {
        Self { silence, ..self }
    }
    /// Sets how long a silence is borne.
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }
    /// Returns all deadlines that follow from the patience where each is longest. A plan has segments of
    /// this length, and the job has the links alone.
    pub fn patience_deadlines(&self, segment: ByteCount) -> [PatienceDeadline; 4] {
        self.patience.deadlines(self.silence, &self.links, segment)
    }
    /// Checks a patience that the fabric's author states.
    ///
    /// # Errors
    /// All faults: a link too long for the patience, a `silence` above it.
    pub fn check_patience(&self) -> Result<(), Vec<FabricError>> {
        self.patience.check(self.silence, &self.links, |region| &*self.region(region).name)
    }
    /// Sets which regions go on without the others: all of them unless this has set another quorum.
    ///
    /// # Errors
    /// [`FabricError::BadQuorum`]: two parts of a partition could both have it, or no part could.
    pub fn with_quorum(self, spec: &QuorumSpec) -> Result<Self, FabricError> {
        self.with_weighted_quorum(spec, &BTreeMap::new())
    }
    /// Sets which regions go on without the others, by the votes of regions. A region that has none here
    /// has one vote.
    ///
    /// # Errors
    /// [`FabricError::BadQuorum`]: two parts of a partition could both have it, or no part could.
    pub fn with_weighted_quorum(
        self,
        spec: &QuorumSpec,
        votes: &BTreeMap<String, u16>,
    ) -> Result<Self, FabricError> {
        let has_witness = self.witness.is_some();
        let quorum = Quorum::of_regions(spec, &self.regions, has_witness, votes)?;
        Ok(Self { quorum, ..self })
    }
    /// Returns which regions go on without the others.
    pub fn quorum(&self) -> &Quorum {
        &self.quorum
    }
    /// Whether these regions go on without the others.
    pub fn is_quorum(&self, regions: &BTreeSet<RegionId>) -> bool {
        self.quorum.is_met_by(regions, self.regions.len())
    }
    /// Returns how many of these regions, whichever they are, can be lost so that those that are left
    /// go on; `None` if these regions are no quorum.
    pub fn losses_survived(&self, regions: &BTreeSet<RegionId>) -> Option<u32> {
        let mut left = regions.clone();
        let mut losses = None;
        while self.is_quorum(&left) {
            losses = Some(losses.map_or(0, |losses: u32| losses + 1));
            let Some(worst) = self.quorum.worst_loss_of(&left) else { break };
            left.remove(&worst);
        }
        losses
    }
    /// Returns the gateway that is the witness: it counts in the quorum, and has no ranks.
    pub fn witness(&self) -> Option<GatewayId> {
        self.witness
    }
    /// Returns the number of regions with ranks, whose numbers are the first.
    pub fn ranked_region_count(&self) -> usize {
        self.regions.len() - usize::from(self.witness.is_some())
    }
    /// Returns the fabric of the regions with ranks, whose numbers stay: data, plans and epochs know
    /// no witness.
    pub fn without_witness(&self) -> Self {
        let mut fabric = Self { witness: None, ..self.clone() };
        if let Some(gateway) = self.witness {
            let region = self.gateway(gateway).region;
            fabric.gateways.pop();
            fabric.regions.pop();
            fabric.links.retain(|link| link.b != region);
            fabric.quorum = Quorum::All;
        }
        fabric
    }
    /// Whether paths of links join all regions, so that data can go from each to each.
    pub fn is_connected(&self) -> bool {
        self.regions_reached_from_first().into_iter().all(|reached| reached)
    }
    /// Sets the number of each rank by which people know it, in rank order.
    pub(super) fn with_rank_numbers(self, numbers: Vec<RankId>) -> Self {
        Self { rank_numbers: Some(numbers), ..self }
    }
    /// Returns the number by which people know a rank: its number in the job, also in the fabric of
    /// a group.
    pub fn rank_number(&self, rank: RankId) -> RankId {
        let numbers = self.rank_numbers.as_ref();
        numbers.and_then(|numbers| numbers.get(rank.0 as usize)).copied().unwrap_or(rank)
    }
    /// Returns the rank that people know by a number; `None` if it is not in the fabric.
    pub fn rank_numbered(&self, number: RankId) -> Option<RankId> {
        let Some(numbers) = &self.rank_numbers else {
            return (number.0 < self.world_size()).then_some(number);
        };
        let index = numbers.binary_search(&number).ok()?;
        u32::try_from(index).ok().map(RankId)
    }
    /// Returns the numbers of all gateways, ascending.
    pub fn gateway_ids(&self) -> impl Iterator<Item = GatewayId> + use<> {
        (0..u16::try_from(self.gateways.len()).unwrap_or(u16::MAX)).map(GatewayId)
    }

    /// Appends a region, its gateways and its ranks to the fabric.
    fn add_region(&mut self, mut region: FabricRegionSpec) {
        let id = RegionId(u16::try_from(self.regions.len()).unwrap_or(u16::MAX));
        let first_gateway = u16::try_from(self.gateways.len()).unwrap_or(u16::MAX);
        let first_rank = self.world_size();
        region.gateways.sort_by(|left, right| left.name.cmp(&right.name));
        let mut rank = first_rank;
        for FabricGatewaySpec { name, ranks, wan } in region.gateways {
            let served = rank..rank + ranks;
            rank = served.end;
            self.gateways.push(Gateway { name, region: id, ranks: served, wan });
        }
        let last_gateway = u16::try_from(self.gateways.len()).unwrap_or(u16::MAX);
        self.regions.push(Region {
            name: region.name,
            gateways: first_gateway..last_gateway,
            ranks: first_rank..rank,
            speeds: region.speeds,
        });
    }

    /// Appends a witness and its links, which are checked; adds what is wrong with them to `faults`.
    pub(super) fn append_witness(
        &mut self,
        witness: FabricRegionSpec,
        links: Vec<FabricLinkSpec>,
        faults: &mut Vec<FabricError>,
    ) {
        self.witness = u16::try_from(self.gateways.len()).ok().map(GatewayId);
        self.add_region(witness);
        links.into_iter().for_each(|link| self.add_link(link, faults));
    }

    /// Inserts a link in the order of its regions; adds what is wrong with it to `faults`.
    fn add_link(&mut self, link: FabricLinkSpec, faults: &mut Vec<FabricError>) {
        let find = |name: &str| {
            let index = self.regions.iter().position(|region| region.name == name);
            index.and_then(|index| u16::try_from(index).ok()).map(RegionId)
        };
        let (one, other) = link.between;
        let (Some(from), Some(to)) = (find(&one), find(&other)) else {
            return faults.push(FabricError::BadLink(one, other));
        };
        if from == to {
            return faults.push(FabricError::BadLink(one, other));
        }
        if self.link(from, to).is_some() {
            return faults.push(FabricError::LinkTwice(one, other));
        }
        if link.rate.bits_per_second() < RATE_MIN_BITS_PER_SECOND {
            let problem = format!("link `{one}-{other}`: rate {} is below 8 kbit/s", link.rate);
            let accepted = "8 kbit/s or more".to_owned();
            faults.push(FabricError::BadValue { problem, accepted });
        }
        if link.loss.ppb() >= LOSS_BOUND_PPB {
            let problem = format!("link `{one}-{other}`: loss {} is not below 50 %", link.loss);
            let accepted = "0 % to less than 50 %".to_owned();
            faults.push(FabricError::BadValue { problem, accepted });
        }
        if link.rtt > RTT_MAX {
            let problem = format!("link `{one}-{other}`: rtt {} is above 60 s", link.rtt);
            let accepted = "at most 60 s".to_owned();
            faults.push(FabricError::BadValue { problem, accepted });
        }
        let (rate, rtt, loss) = (link.rate, link.rtt, link.loss);
        let (a, b) = (from.min(to), from.max(to));
        if let Err(index) = self.link_index((a, b)) {
            self.links.insert(index, Link { a, b, rate, rtt, loss });
        }
    }

    /// Finds the index of the link between two regions, or the index at which it would be inserted.
    fn link_index(&self, ends: (RegionId, RegionId)) -> Result<usize, usize> {
        self.links.binary_search_by_key(&ends, |link| (link.a, link.b))
    }

    /// Adds a fault for each region that no path of links reaches from the first region.
    fn check_connected(&self, faults: &mut Vec<FabricError>) {
        for (region, reached) in self.regions.iter().zip(self.regions_reached_from_first()) {
            if !reached {
                let first = self.regions[0].name.clone();
                faults.push(FabricError::Unreachable(region.name.clone(), first));
            }
        }
    }

    /// Returns whether a path of links leads from the first region to each region, in their order.
    fn regions_reached_from_first(&self) -> Vec<bool> {
        let mut reached = vec![false; self.regions.len()];
        reached[0] = true;
        for _ in 0..self.regions.len() {
            for link in &self.links {
                let (a, b) = (usize::from(link.a.0), usize::from(link.b.0));
                let either = reached[a] || reached[b];
                (reached[a], reached[b]) = (either, either);
            }
        }
        reached
    }
}

/// Adds what is wrong with a region to `faults`; `several` says whether the fabric has other
/// regions.
fn check_region_of_new_fabric(
    region: &FabricRegionSpec,
    several: bool,
    faults: &mut Vec<FabricError>,
) {
    let name = || region.name.clone();
    let ranks = u32::try_from(region.speeds.len()).unwrap_or(u32::MAX);
    let served = region.gateways.iter().map(|gateway| gateway.ranks).sum();
    if ranks != served {
        faults.push(FabricError::RanksUnserved { region: name(), ranks, served });
    }
    if region.speeds.iter().any(|speed| !(speed.is_finite() && *speed > 0.0)) {
        faults.push(FabricError::BadSpeed(name()));
    }
    if several && region.gateways.iter().all(|gateway| gateway.wan.is_none()) {
        faults.push(FabricError::NoPort(name()));
    }
    for FabricGatewaySpec { name, wan, .. } in &region.gateways {
        let Some(wan) = wan else { continue };
        if wan.egress.min(wan.ingress).bits_per_second() < RATE_MIN_BITS_PER_SECOND {
            let problem = format!("gateway `{name}`: a port below 8 kbit/s");
            let accepted = "8 kbit/s or more".to_owned();
            faults.push(FabricError::BadValue { problem, accepted });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::WanPort;
    use units::{BitRate, Fraction};

    fn region(name: &str, ranks: u32) -> FabricRegionSpec {
        let port = BitRate::from_bits_per_second(500_000_000);
        let wan = Some(WanPort { egress: port, ingress: port });
        let speeds = vec![1.0; usize::try_from(ranks).expect("small")];
        FabricRegionSpec {
            name: name.to_owned(),
            speeds,
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), ranks, wan)],
        }
    }

    fn link(one: &str, other: &str) -> FabricLinkSpec {
        FabricLinkSpec {
            between: (one.to_owned(), other.to_owned()),
            rate: BitRate::from_bits_per_second(500_000_000),
            rtt: Span::from_ms(80),
            loss: Fraction::default(),
        }
    }

    #[test]
    fn ranks_are_numbered_through_regions_in_name_order() {
        let regions = vec![region("west", 1), region("east", 3)];
        let fabric = Fabric::new("two", 1500, regions, vec![link("west", "east")]).expect("valid");
        assert_eq!(fabric.regions()[0].name, "east");
        assert_eq!(fabric.region(RegionId(0)).ranks, 0..3);
        assert_eq!(fabric.region(RegionId(1)).ranks, 3..4);
        assert_eq!(fabric.gateway_of(RankId(3)), fabric.gateway_named("west-0"));
        assert_eq!(fabric.gateway_of(RankId(4)), None);
        assert!(fabric.link(RegionId(1), RegionId(0)).is_some());
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let regions = vec![region("east", 1), region("east", 0)];
        let faults =
            Fabric::new("bad", 100, regions, vec![link("east", "south")]).expect_err("four faults");
        assert!(faults.contains(&FabricError::NameTwice("east".to_owned())));
        assert!(faults.contains(&FabricError::NoRank("east".to_owned())));
        assert!(faults.contains(&FabricError::BadLink("east".to_owned(), "south".to_owned())));
        assert!(faults.iter().any(|fault| matches!(fault, FabricError::BadValue { .. })));
    }

    #[test]
    fn quorums_that_two_parts_could_have_are_refused() {
        let fabric = |names: &[&str]| {
            let regions = names.iter().map(|name| region(name, 1)).collect();
            let links = names[1..].iter().map(|name| link(names[0], name)).collect();
            Fabric::new("some", 1500, regions, links).expect("valid")
        };
        let four = fabric(&["a", "b", "c", "d"]);
        let named = |names: &[&str]| {
            QuorumSpec::Named(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let set = |ids: &[u16]| ids.iter().copied().map(RegionId).collect::<BTreeSet<_>>();
        for (spec, goes_on, stops) in [
            (QuorumSpec::All, set(&[0, 1, 2, 3]), set(&[0, 1, 2])),
            (QuorumSpec::Majority, set(&[0, 1, 3]), set(&[2, 3])),
            (QuorumSpec::Count(3), set(&[1, 2, 3]), set(&[0, 1])),
            (QuorumSpec::Count(4), set(&[0, 1, 2, 3]), set(&[0, 1, 2])),
            (named(&["b"]), set(&[1]), set(&[0, 2, 3])),
            (named(&["b", "a"]), set(&[0, 1, 2]), set(&[1, 2, 3])),
        ] {
            let fabric = four.clone().with_quorum(&spec).expect("valid");
            assert!(fabric.is_quorum(&goes_on) && !fabric.is_quorum(&stops), "{spec:?}");
        }
        let refused = [
            (QuorumSpec::Count(2), "at least 3 are needed"),
            (QuorumSpec::Count(0), "at least 3 are needed"),
            (QuorumSpec::Count(5), "more than the 4"),
            (named(&[]), "no region is named"),
            (named(&["a", "a"]), "named twice"),
            (named(&["e"]), "no region `e`"),
        ];
        for (spec, text) in refused {
            let error = four.clone().with_quorum(&spec).expect_err("refused").to_string();
            assert!(error.contains(text), "{error}");
        }
        let two = fabric(&["a", "b"]).with_quorum(&QuorumSpec::Majority).expect_err("no majority");
        assert!(two.to_string().contains("[\"a\"] or [\"b\"], or add a third"), "{two}");
    }

    #[test]
    fn a_region_without_a_path_is_refused() {
        let regions = vec![region("a", 1), region("b", 1), region("c", 1)];
        let faults = Fabric::new("gap", 1500, regions, vec![link("a", "b")]).expect_err("c");
        assert_eq!(faults, [FabricError::Unreachable("c".to_owned(), "a".to_owned())]);
    }
}
