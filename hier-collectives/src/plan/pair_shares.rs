//! How fast each gateway may send to each other one, so that no port and no link is overrun.

use super::flows::Flows;
use super::tree::Plan;
use crate::bound::payload_rate;
use crate::ids::GatewayId;
use crate::operation::Operation;
use crate::shard;
use crate::topology::Fabric;
use std::collections::BTreeMap;
use units::BitRate;

/// What one pair may send, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairShare {
    /// Its part of both ports, in IP bytes.
    ports: BitRate,
    /// What the plan sends over it,
    pub(super) flow: u64,
    /// and over all pairs of its link that way.
    of_link: u64,
    /// The part of the link that it is held to: so many of so many.
    part: (u64, u64),
}

/// What each pair may send.
pub type PairShares = BTreeMap<(GatewayId, GatewayId), PairShare>;

impl PairShare {
    /// Of a pair that shares neither port nor link.
    pub const fn unshared(rate: BitRate) -> Self {
        Self { ports: rate, flow: 1, of_link: 1, part: (1, 1) }
    }

    /// In IP bytes, over a link that is held to a rate: its part of that, unless the ports have
    /// less.
    pub fn rate_over(&self, link: BitRate) -> BitRate {
        self.ports.min(part(link, self.part.0, Some(&self.part.1)))
    }

    /// At least `turned`, where this is far less.
    fn or(self, turned: Self) -> Self {
        let far_less = self.ports.bits_per_second() < turned.ports.bits_per_second() / FAR_LESS;
        if turned.flow == 0 || self.flow > 0 && !far_less {
            return self;
        }
        let [mine, theirs] = [self.part, turned.part];
        let less = |one: (u64, u64), other: (u64, u64)| {
            u128::from(one.0) * u128::from(other.1) < u128::from(other.0) * u128::from(one.1)
        };
        let part = if self.flow == 0 || less(mine, theirs) { theirs } else { mine };
        Self { ports: turned.ports, part, ..self }
    }

    /// What the link carries for this pair to have `carried` bits per second as its part; `None`
    /// of a pair without bulk, which has no part.
    pub fn link_rate_for(&self, carried: f64) -> Option<f64> {
        (self.flow > 0).then(|| carried * self.of_link as f64 / self.flow as f64)
    }
}

impl Plan {
    /// Each pair's part of what it shares with others, in proportion to what the plan sends over
    /// it: of the sender's port, of the receiver's, and of the link between their regions. A
    /// sender cannot see the others at the receiver's port, so the parts are fixed; all that is
    /// to pass a full port or link then ends together. A pair that the plan gives no bulk, which
    /// may still have small buffers, is held to what it alone could fill.
    pub fn pair_shares(&self, fabric: &Fabric) -> PairShares {
        pair_shares(std::iter::once(self), fabric)
    }
}

/// As [`Plan::pair_shares`], where several plans are followed at once, each as much as another.
pub fn pair_shares<'p>(plans: impl Iterator<Item = &'p Plan>, fabric: &Fabric) -> PairShares {
    let region = |id: GatewayId| fabric.gateway(id).region;
    let mut flows = Flows::new();
    let mut apart = false;
    for plan in plans {
        apart |= plan.has_separate_trees();
        for (pair, flow) in plan.flows(Operation::AllReduce, &shard::parts(plan, NOMINAL_BYTES)) {
            *flows.entry(pair).or_insert(0) += flow;
        }
    }
    flows.retain(|(from, to), _| region(*from) != region(*to));
    let rates = parts_of(&flows, fabric);
    if !apart {
        return rates;
    }
    // Held elsewhere, for a reduction or a broadcast, a tree for partials or results alone loads the
    // other direction of some of its edges. A pair that has next to nothing in an all-reduce is held
    // to its part of that, about, and overruns nothing for the little that it has otherwise.
    let both = flows.iter().map(|((from, to), flow)| {
        let back = flows.get(&(*to, *from)).copied().unwrap_or(0);
        [((*from, *to), *flow.max(&back)), ((*to, *from), *flow.max(&back))]
    });
    let turned = parts_of(&both.flatten().collect(), fabric);
    rates.into_iter().map(|(pair, rate)| (pair, rate.or(turned[&pair]))).collect()
}

/// A pair has far less than it needs when it has less than one part in so many.
const FAR_LESS: u64 = 4;

/// Each pair's part of ports and links that these flows pass.
fn parts_of(flows: &Flows, fabric: &Fabric) -> PairShares {
    let region = |id: GatewayId| fabric.gateway(id).region;
    let (mut outs, mut ins, mut links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for ((from, to), flow) in flows {
        *outs.entry(*from).or_insert(0) += flow;
        *ins.entry(*to).or_insert(0) += flow;
        *links.entry((region(*from), region(*to))).or_insert(0) += flow;
    }
    let mut rates = PairShares::new();
    for from in fabric.gateway_ids() {
        for to in fabric.gateway_ids().filter(|to| region(*to) != region(from)) {
            let ports = (fabric.gateway(from).wan, fabric.gateway(to).wan);
            let linked = fabric.link(region(from), region(to)).is_some();
            let ((Some(out), Some(inward)), true) = (ports, linked) else { continue };
            let flow = flows.get(&(from, to)).copied().unwrap_or(0);
            let of_out = part(out.egress, flow, outs.get(&from));
            let of_in = part(inward.ingress, flow, ins.get(&to));
            let of_link = links.get(&(region(from), region(to))).copied().unwrap_or(0);
            let part = (flow, of_link);
            let rate = PairShare { ports: of_out.min(of_in), flow, of_link, part };
            rates.insert((from, to), rate);
        }
    }
    rates
}

/// First-sent payload bytes per second that a pair may send: what its rate carries beside what
/// is lost, less [`RATE_RESERVE`].
pub fn payload_limit(rate: BitRate, loss: f64, mtu: u16) -> f64 {
    payload_rate(rate, mtu) * (1.0 - loss) * (1.0 - RATE_RESERVE)
}

/// The part of a rate that first-sent payload leaves to acknowledgements, and to what a queue
/// needs in order not to grow.
pub const RATE_RESERVE: f64 = 0.02;

fn part(of: BitRate, flow: u64, all: Option<&u64>) -> BitRate {
    let Some(all) = all.filter(|_| flow > 0) else { return of };
    let bits = u128::from(of.bits_per_second()) * u128::from(flow) / u128::from(*all);
    BitRate::from_bits_per_second(u64::try_from(bits.max(1)).unwrap_or(u64::MAX))
}

/// Large enough that no part of it is rounded to nothing.
const NOMINAL_BYTES: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::topology::{LinkSpec, RegionSpec, WanPort};
    use units::{Fraction, Span};

    fn mbit(rate: u64) -> BitRate {
        BitRate::from_bits_per_second(rate * 1_000_000)
    }

    /// Two gateways in each of two regions, with ports of 600 Mbit/s and a link of 1000.
    fn fabric() -> Fabric {
        let wan = Some(WanPort { egress: mbit(600), ingress: mbit(600) });
        let region = |name: &str| RegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0; 2],
            gateways: (0..2).map(|seat| (format!("{name}-{seat}"), 1, wan)).collect(),
        };
        let link = LinkSpec {
            between: ("east".to_owned(), "west".to_owned()),
            rate: mbit(1000),
            rtt: Span::from_ms(80),
            loss: Fraction::default(),
        };
        Fabric::new("two", 1500, vec![region("east"), region("west")], vec![link]).expect("valid")
    }

    /// One job goes on by the fabric's plan, another by one that has half of a pair's bytes take
    /// other ways: neither alone says what pairs get.
    #[test]
    fn plans_that_are_followed_at_once_count_alike() {
        let fabric = fabric();
        let plan = plan::plan(&fabric).expect("a plan");
        let mut other = plan.clone();
        other.trees.truncate(1);
        let [one, two] =
            [[&plan, &other], [&other, &plan]].map(|plans| pair_shares(plans.into_iter(), &fabric));
        assert_eq!(one, two);
        assert_ne!(one, plan.pair_shares(&fabric));
        assert_ne!(one, other.pair_shares(&fabric));
        let same = pair_shares([&plan, &plan].into_iter(), &fabric);
        let over = |rates: &PairShares| -> Vec<BitRate> {
            rates.values().map(|rate| rate.rate_over(mbit(100))).collect()
        };
        assert_eq!(over(&same), over(&plan.pair_shares(&fabric)));
    }

    #[test]
    fn no_pair_has_less_for_what_is_turned_round_and_most_have_what_an_all_reduce_gives_them() {
        let rate = |ports, flow, of_link| PairShare {
            ports: mbit(ports),
            flow,
            of_link,
            part: (flow, of_link),
        };
        let (sliver, bulk, none) = (rate(10, 2, 100), rate(490, 98, 100), rate(500, 0, 0));
        let turned = rate(250, 1, 2);
        assert_eq!([bulk.or(turned), bulk.or(none)], [bulk, bulk]);
        assert_eq!(sliver.or(turned), PairShare { ports: mbit(250), part: (1, 2), ..sliver });
        assert_eq!(none.or(turned).rate_over(mbit(1000)), mbit(250));
        // Of the link it had more.
        let wide = rate(10, 3, 4);
        assert_eq!(wide.or(turned), PairShare { ports: mbit(250), ..wide });
        assert_eq!(sliver.or(turned).link_rate_for(20.0), sliver.link_rate_for(20.0));
    }

    #[test]
    fn pairs_of_a_link_share_what_it_is_held_to() {
        let fabric = fabric();
        let rates = plan::plan(&fabric).expect("a plan").pair_shares(&fabric);
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
