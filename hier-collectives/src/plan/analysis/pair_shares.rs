//! The share of each pair of gateways in the ports and links that it uses.
//!
//! A sender does not see who else sends to its receiver, so the shares are fixed by the plan. The
//! gateway's pacers take their rates from here, and so do the forecast and the segment size.

use super::payload_flows::PayloadFlows;
use crate::bound::payload_rate;
use crate::ids::GatewayId;
use crate::plan::plan_data::Plan;
use crate::topology::Fabric;
use std::collections::BTreeMap;
use units::BitRate;

/// 0.02 of the payload rate of a pair of gateways: the sender leaves this part unused, for
/// acknowledgements and so that queues drain.
/// Tested by `a_clean_link_is_filled`.
pub const RATE_RESERVE_FRACTION: f64 = 0.02;

/// 4: a pair of gateways whose share of its ports is below a quarter of an even one gets that one.
/// The factor is chosen.
pub(in crate::plan) const SMALL_PAIR_SHARE_DIVISOR: u64 = 4;

/// Share of one sender and one receiver in their ports and in the link between their regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairShare {
    /// Rate that the sender's port leaves the pair, in IP bytes.
    egress: BitRate,
    /// Rate that the receiver's port leaves the pair, in IP bytes.
    ingress: BitRate,
    /// Payload that the plan sends over the pair; 0 where large buffers send nothing.
    pub(crate) flow: u64,
    /// Payload that the plan sends over all pairs of the link in this direction.
    link_flow: u64,
    /// Part of the link's rate that the pair may take.
    link_part: PairShareRatio,
}

/// The fraction `part / whole` of a rate. A part of 0 means that no share is set: all of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PairShareRatio {
    part: u64,
    whole: u64,
}

/// Shares keyed by (sender, receiver).
pub type PairShares = BTreeMap<(GatewayId, GatewayId), PairShare>;

impl PairShareRatio {
    /// Returns this fraction of `rate`, and at least 1 bit/s; all of `rate` where no share is set.
    fn apply_to(self, rate: BitRate) -> BitRate {
        if self.part == 0 {
            return rate;
        }
        let bits =
            u128::from(rate.bits_per_second()) * u128::from(self.part) / u128::from(self.whole);
        BitRate::from_bits_per_second(u64::try_from(bits.max(1)).unwrap_or(u64::MAX))
    }

    /// Whether this fraction is smaller than `other`.
    fn is_less_than(self, other: Self) -> bool {
        u128::from(self.part) * u128::from(other.whole)
            < u128::from(other.part) * u128::from(self.whole)
    }
}

impl PairShare {
    /// Returns the share of a pair of gateways that shares neither port nor link: all of `rate`.
    pub const fn unshared(rate: BitRate) -> Self {
        let link_part = PairShareRatio { part: 1, whole: 1 };
        Self { egress: rate, ingress: rate, flow: 1, link_flow: 1, link_part }
    }

    /// Returns this share with other rates of the ports, where they are known.
    pub fn with_ports(self, egress: Option<BitRate>, ingress: Option<BitRate>) -> Self {
        let (egress, ingress) = (egress.unwrap_or(self.egress), ingress.unwrap_or(self.ingress));
        Self { egress, ingress, ..self }
    }

    /// Returns the rate of the pair, IP headers counted, over a link that is limited to `link`.
    ///
    /// It is the pair's part of the link, or less where the ports leave less.
    pub fn rate_over(&self, link: BitRate) -> BitRate {
        self.ports().min(self.link_part.apply_to(link))
    }

    /// Returns the link rate that would give this pair `carried` bit/s as its part.
    ///
    /// `None` for a pair over which the plan sends nothing of large buffers, which has no part.
    pub fn link_rate_for(&self, carried: f64) -> Option<f64> {
        (self.flow > 0).then(|| carried * self.link_flow as f64 / self.flow as f64)
    }

    /// Whether the pair carries the same fraction of what the link carries as with another share.
    pub fn has_same_flow_fraction(&self, other: &Self) -> bool {
        (self.flow == 0) == (other.flow == 0)
            && u128::from(self.flow) * u128::from(other.link_flow)
                == u128::from(other.flow) * u128::from(self.link_flow)
    }

    /// Returns this share, or `even`, what the pair gets if all pairs of its ports and its link get
    /// alike, where this one is far smaller.
    fn or_even(self, even: Self) -> Self {
        if self.flow > 0 && self.is_far_below(even) { self.widened_to(even) } else { self }
    }

    /// Returns the rate that both ports leave the pair, in IP bytes.
    fn ports(&self) -> BitRate {
        self.egress.min(self.ingress)
    }

    /// Whether the ports leave this share less than a quarter of what they leave `other`.
    fn is_far_below(self, other: Self) -> bool {
        self.ports().bits_per_second() < other.ports().bits_per_second() / SMALL_PAIR_SHARE_DIVISOR
    }

    /// Returns this share with the ports' rate of `other`, and with its part of the link if larger.
    fn widened_to(self, other: Self) -> Self {
        let grows = self.link_part.is_less_than(other.link_part);
        let link_part = if grows { other.link_part } else { self.link_part };
        Self { egress: other.egress, ingress: other.ingress, link_part, ..self }
    }
}

impl Plan {
    /// Returns the shares of all pairs of gateways while an all-reduce follows the plan.
    pub fn pair_shares(&self, fabric: &Fabric) -> PairShares {
        pair_shares(std::iter::once(&self.nominal_flows(fabric)), fabric)
    }
}

/// Returns the shares of all pairs of gateways, in proportion to what the operations under way send
/// over each: the sums of `flows`, those of one job each.
///
/// A pair shares the sender's port, the receiver's port and the link between their regions. All
/// that passes a full port or link then ends together. A pair over which the operations send
/// nothing may still have small ones; its limit is the rate that it alone could fill. A pair over
/// which they send next to nothing may still have small operations and sends; it gets an even share.
pub fn pair_shares<'f>(
    flows: impl Iterator<Item = &'f PayloadFlows>,
    fabric: &Fabric,
) -> PairShares {
    let region = |id: GatewayId| fabric.gateway(id).region;
    let mut sums = PayloadFlows::new();
    for ((from, to), bytes) in
        flows.flatten().filter(|((from, to), _)| region(*from) != region(*to))
    {
        *sums.entry((*from, *to)).or_insert(0) += bytes;
    }
    let mut shares = pair_shares_of_flows(&sums, fabric);
    // The little that the operations send over a pair with a far smaller share overloads nothing.
    let even = shares.keys().map(|pair| (*pair, 1)).collect();
    for (pair, even) in pair_shares_of_flows(&even, fabric) {
        shares.entry(pair).and_modify(|share| *share = share.or_even(even));
    }
    shares
}

/// Returns the shares of all pairs of gateways in linked regions, in the ports and links that
/// `flows` pass. A pair without flow has no share set, so its limit is the full rate.
fn pair_shares_of_flows(flows: &PayloadFlows, fabric: &Fabric) -> PairShares {
    let region = |id: GatewayId| fabric.gateway(id).region;
    let (mut outs, mut ins, mut links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for ((from, to), flow) in flows {
        *outs.entry(*from).or_insert(0) += flow;
        *ins.entry(*to).or_insert(0) += flow;
        *links.entry((region(*from), region(*to))).or_insert(0) += flow;
    }
    let mut shares = PairShares::new();
    for from in fabric.gateway_ids() {
        for to in fabric.gateway_ids().filter(|to| region(*to) != region(from)) {
            let ports = (fabric.gateway(from).wan, fabric.gateway(to).wan);
            let linked = fabric.link(region(from), region(to)).is_some();
            let ((Some(sender), Some(receiver)), true) = (ports, linked) else { continue };
            let flow = flows.get(&(from, to)).copied().unwrap_or(0);
            let part_of =
                |all: Option<&u64>| PairShareRatio { part: flow, whole: all.map_or(1, |all| *all) };
            let egress = part_of(outs.get(&from)).apply_to(sender.egress);
            let ingress = part_of(ins.get(&to)).apply_to(receiver.ingress);
            let link_flow = links.get(&(region(from), region(to))).copied().unwrap_or(0);
            let link_part = PairShareRatio { part: flow, whole: link_flow };
            let share = PairShare { egress, ingress, flow, link_flow, link_part };
            shares.insert((from, to), share);
        }
    }
    shares
}

/// The rates of one gateway's port for each of its peers, by what moves over it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortRates {
    /// The rate that the port leaves each receiver.
    pub egress: BTreeMap<GatewayId, BitRate>,
    /// The rate that the port leaves each sender.
    pub ingress: BTreeMap<GatewayId, BitRate>,
}

impl PortRates {
    /// Divides the port of gateway `me` among the peers that `flows` send to or get from, in proportion.
    /// A peer with far less than an even part has that one, for small operations; without flow it has no
    /// rate.
    pub fn of_flows<'f>(
        flows: impl Iterator<Item = &'f PayloadFlows>,
        fabric: &Fabric,
        me: GatewayId,
    ) -> Self {
        let region = |id: GatewayId| fabric.gateway(id).region;
        let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
        let beyond = |(from, to): (GatewayId, GatewayId)| region(from) != region(to);
        for ((from, to), bytes) in flows.flatten().filter(|(pair, _)| beyond(**pair)) {
            if *from == me {
                *sent.entry(*to).or_insert(0u64) += bytes;
            } else if *to == me {
                *received.entry(*from).or_insert(0u64) += bytes;
            }
        }
        let Some(port) = fabric.gateway(me).wan else { return Self::default() };
        let divided = |flows: BTreeMap<GatewayId, u64>, rate: BitRate| {
            let used: Vec<_> = flows.into_iter().filter(|(_, flow)| *flow > 0).collect();
            let whole = used.iter().map(|(_, flow)| *flow).sum();
            let even = PairShareRatio { part: 1, whole: used.len().max(1) as u64 }.apply_to(rate);
            let part = |(peer, part): (GatewayId, u64)| {
                let own = PairShareRatio { part, whole }.apply_to(rate);
                let is_small =
                    own.bits_per_second() < even.bits_per_second() / SMALL_PAIR_SHARE_DIVISOR;
                (peer, if is_small { even } else { own })
            };
            used.into_iter().map(part).collect()
        };
        Self { egress: divided(sent, port.egress), ingress: divided(received, port.ingress) }
    }
}

/// Returns the first-sent payload bytes per second that a pair of gateways may send at `rate`.
///
/// It is the payload rate without what is lost, less [`RATE_RESERVE_FRACTION`].
pub fn pair_share_payload_rate(rate: BitRate, loss: f64, mtu: u16) -> f64 {
    payload_rate(rate, mtu) * (1.0 - loss) * (1.0 - RATE_RESERVE_FRACTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};

    /// Two gateways in each of two regions, with ports of 600 Mbit/s and a link of 1000.
    fn fabric() -> Fabric {
        let gateways = [(1, Some(symmetric_port(mbit(600)))); 2];
        let builder = FabricBuilder::default().region("east", gateways).region("west", gateways);
        builder.all_pairs(lossless_link(mbit(1000), 80)).build()
    }

    /// One job follows the fabric's plan, another a plan that sends half of a pair's bytes
    /// elsewhere.
    #[test]
    fn plans_followed_at_once_count_alike() {
        let fabric = fabric();
        let plan = plan::make_plan(&fabric).expect("a plan");
        let mut other = plan.clone();
        other.trees.truncate(1);
        let of = |plans: [&Plan; 2]| {
            let flows = plans.map(|plan| plan.nominal_flows(&fabric));
            pair_shares(flows.iter(), &fabric)
        };
        let [one, two] = [[&plan, &other], [&other, &plan]].map(of);
        assert_eq!(one, two);
        assert_ne!(one, plan.pair_shares(&fabric));
        assert_ne!(one, other.pair_shares(&fabric));
        let same = of([&plan, &plan]);
        let over = |rates: &PairShares| -> Vec<BitRate> {
            rates.values().map(|rate| rate.rate_over(mbit(100))).collect()
        };
        assert_eq!(over(&same), over(&plan.pair_shares(&fabric)));
    }

    #[test]
    fn a_far_smaller_share_gives_way_to_an_even_one() {
        let rate = |ports, flow, link_flow| PairShare {
            egress: mbit(ports),
            ingress: mbit(500),
            flow,
            link_flow,
            link_part: PairShareRatio { part: flow, whole: link_flow },
        };
        let (sliver, bulk, none) = (rate(10, 2, 100), rate(490, 98, 100), rate(500, 0, 0));
        let even = rate(250, 1, 2);
        let widened = PairShare {
            egress: mbit(250),
            link_part: PairShareRatio { part: 1, whole: 2 },
            ..sliver
        };
        // Nothing limits a pair without flow but its ports.
        assert_eq!([sliver, bulk, none].map(|share| share.or_even(even)), [widened, bulk, none]);
        // The wide pair had the larger part of the link.
        let wide = rate(10, 3, 4);
        assert_eq!(wide.or_even(even), PairShare { egress: mbit(250), ..wide });
        assert_eq!(widened.link_rate_for(20.0), sliver.link_rate_for(20.0));
    }

    /// A gateway sends 1, 30 and 60 bytes to three others, of which one is in its own region.
    #[test]
    fn a_port_is_divided_and_small_parts_grow() {
        let gateways = || [(1, Some(symmetric_port(mbit(600))))];
        let names = ["a", "b", "c", "d"];
        let builder = names
            .iter()
            .fold(FabricBuilder::default(), |builder, name| builder.region(name, gateways()));
        let fabric = builder.all_pairs(lossless_link(mbit(1000), 80)).build();
        let id = GatewayId;
        let sent: PayloadFlows =
            [((id(0), id(1)), 1), ((id(0), id(2)), 30), ((id(0), id(3)), 0)].into();
        let more: PayloadFlows = [((id(0), id(2)), 69), ((id(3), id(0)), 5)].into();
        let rates = PortRates::of_flows([&sent, &more].into_iter(), &fabric, id(0));
        assert_eq!(rates.egress, [(id(1), mbit(300)), (id(2), mbit(594))].into());
        assert_eq!(rates.ingress, [(id(3), mbit(600))].into());
        let none = PortRates::of_flows(std::iter::empty(), &fabric, id(0));
        assert_eq!(none, PortRates::default());
    }

    #[test]
    fn pairs_of_a_link_share_its_rate_limit() {
        let fabric = fabric();
        let rates = plan::make_plan(&fabric).expect("a plan").pair_shares(&fabric);
        let west = |id: GatewayId| fabric.gateway(id).region.0 == 1;
        let out = rates.iter().filter(|((_, to), rate)| west(*to) && rate.flow > 0);
        let out: Vec<&PairShare> = out.map(|(_, rate)| rate).collect();
        assert!(out.len() > 1, "{rates:?}");
        for held in [1000, 400, 30] {
            let sum: u64 =
                out.iter().map(|rate| rate.rate_over(mbit(held)).bits_per_second()).sum();
            let whole = mbit(held).bits_per_second();
            assert!(sum <= whole && sum > whole - 4, "{sum} bit/s of {held} Mbit/s: {out:?}");
        }
        let alone = PairShare::unshared(mbit(50));
        assert_eq!([alone.rate_over(mbit(1000)), alone.rate_over(mbit(20))], [mbit(50), mbit(20)]);
    }
}
