//! How fast each gateway may send to each other one, so that no port and no link is overrun.

use super::{Operation, Plan};
use crate::bound::payload_rate;
use crate::ids::GatewayId;
use crate::shard;
use crate::topology::Fabric;
use std::collections::BTreeMap;
use units::BitRate;

/// What one pair may send, one way, in IP bytes.
pub type PairRates = BTreeMap<(GatewayId, GatewayId), BitRate>;

impl Plan {
    /// Each pair's part of what it shares with others, in proportion to what the plan sends over
    /// it: of the sender's port, of the receiver's, and of the link between their regions. A
    /// sender cannot see the others at the receiver's port, so the parts are fixed; all that is
    /// to pass a full port or link then ends together. A pair that the plan gives no bulk, which
    /// may still have small buffers, is held to what it alone could fill.
    pub fn pair_rates(&self, fabric: &Fabric) -> PairRates {
        let region = |id: GatewayId| fabric.gateway(id).region;
        let mut flows = self.flows(Operation::AllReduce, &shard::parts(self, NOMINAL_BYTES));
        flows.retain(|(from, to), _| region(*from) != region(*to));
        let (mut outs, mut ins, mut links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for ((from, to), flow) in &flows {
            *outs.entry(*from).or_insert(0) += flow;
            *ins.entry(*to).or_insert(0) += flow;
            *links.entry((region(*from), region(*to))).or_insert(0) += flow;
        }
        let mut rates = PairRates::new();
        for from in fabric.gateway_ids() {
            for to in fabric.gateway_ids().filter(|to| region(*to) != region(from)) {
                let ports = (fabric.gateway(from).wan, fabric.gateway(to).wan);
                let link = fabric.link(region(from), region(to));
                let ((Some(out), Some(inward)), Some(link)) = (ports, link) else { continue };
                let flow = flows.get(&(from, to)).copied().unwrap_or(0);
                let of_out = part(out.egress, flow, outs.get(&from));
                let of_in = part(inward.ingress, flow, ins.get(&to));
                let of_link = part(link.rate, flow, links.get(&(region(from), region(to))));
                rates.insert((from, to), of_out.min(of_in).min(of_link));
            }
        }
        rates
    }
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
