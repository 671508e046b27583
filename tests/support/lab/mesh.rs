//! Fabrics of any shape under virtual time, and what their ranks must get.

use crate::collectives::batch::{Case, weight};
use crate::lab::credentials::Papers;
use crate::{JOB, JOB_MEMORY, Lab, address, jobs_of, lan_address};
use gateway::simulate::Setup;
use gateway::wan::link::policy::Policies;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Plan, Tree};
use hier_collectives::reduce::reduce_slices;
use hier_collectives::shard;
use hier_collectives::topology::{self, Fabric, RegionSpec, WanPort};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use units::{BitRate, ByteCount, Fraction, Span};
use wan_sim::{LinkSpec, VirtualNet};

/// Regions, their gateways, and the links between them.
#[derive(Debug, Clone)]
pub struct Mesh {
    /// Each region's gateways.
    pub regions: Vec<Vec<Seat>>,
    /// Links: between which regions, their rate, their RTT.
    pub links: Vec<((usize, usize), BitRate, Span)>,
    /// Random loss of every link each way.
    pub loss: Fraction,
    /// Segments of this size instead of the plan's own choice; and the express tree, if there is
    /// one, for buffers up to [`EXPRESS_SEGMENTS`] of them, so that short buffers take all trees.
    pub segment: Option<ByteCount>,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
    /// IP MTU.
    pub mtu: u16,
    /// What ports of these regions take in; others as much as they send.
    pub inward: BTreeMap<usize, BitRate>,
}

/// A gateway: its ranks, and what its port carries each way, if it has one.
pub type Seat = (u32, Option<BitRate>);

/// Segments of the largest buffer that takes the express tree, where segments are chosen.
pub const EXPRESS_SEGMENTS: u64 = 4;

const PORT: BitRate = BitRate::from_bits_per_second(1_000_000_000);

impl Mesh {
    /// One gateway for each region, with so many ranks; all pairs linked, each at a distance of
    /// its own.
    pub fn of_ranks(ranks: &[u32]) -> Self {
        Self::of_gateways(ranks.iter().map(|ranks| vec![(*ranks, Some(PORT))]).collect())
    }

    /// Regions with these gateways, all pairs linked.
    pub fn of_gateways(regions: Vec<Vec<Seat>>) -> Self {
        let mut links = Vec::new();
        for a in 0..regions.len() {
            for b in a + 1..regions.len() {
                let rtt = Span::from_ms(10 + 10 * (a as u64 + 2 * b as u64));
                links.push(((a, b), PORT, rtt));
            }
        }
        let memory = ByteCount::new(64 << 20);
        let inward = BTreeMap::new();
        Self { regions, links, loss: Fraction::default(), segment: None, memory, mtu: 1500, inward }
    }

    /// The same without the link between two regions.
    pub fn without(mut self, a: usize, b: usize) -> Self {
        self.links.retain(|(ends, ..)| *ends != (a.min(b), a.max(b)));
        self
    }

    /// The fabric it stands for. Regions are `a`, `b`, ...; gateways `a-0`, `a-1`, ...
    pub fn fabric(&self) -> Arc<Fabric> {
        let name = |region: usize| char::from(b'a' + region as u8).to_string();
        let region = |(index, seats): (usize, &Vec<Seat>)| RegionSpec {
            name: name(index),
            speeds: vec![1.0; seats.iter().map(|(ranks, _)| *ranks as usize).sum()],
            gateways: (0..)
                .zip(seats)
                .map(|(seat, (ranks, port)): (u32, _)| {
                    let inward = self.inward.get(&index).copied();
                    let wan =
                        port.map(|port| WanPort { egress: port, ingress: inward.unwrap_or(port) });
                    (format!("{}-{seat}", name(index)), *ranks, wan)
                })
                .collect(),
        };
        let link = |((a, b), rate, rtt): &((usize, usize), BitRate, Span)| topology::LinkSpec {
            between: (name(*a), name(*b)),
            rate: *rate,
            rtt: *rtt,
            loss: self.loss,
        };
        let regions = self.regions.iter().enumerate().map(region).collect();
        let links = self.links.iter().map(link).collect();
        Arc::new(Fabric::new("sim", self.mtu, regions, links).expect("a valid fabric"))
    }

    /// The plan that its gateways follow.
    pub fn plan(&self) -> Plan {
        let mut plan = plan::plan(&self.fabric()).expect("a plan");
        if let Some(segment) = self.segment {
            let most = ByteCount::new(EXPRESS_SEGMENTS * segment.get());
            (plan.segment, plan.express_bytes) = (segment, plan.express_bytes.min(most));
        }
        plan
    }

    /// Starts its gateways. Everything random comes from `seed`.
    pub async fn start(&self, seed: u64) -> Lab {
        let net = VirtualNet::new();
        let fabric = self.fabric();
        let near = Span::from_ns(50_000);
        let lan = LinkSpec::new(BitRate::from_bits_per_second(25_000_000_000), near);
        let lan = lan.expect("a valid link");
        for one in fabric.gateway_ids() {
            for other in fabric.gateway_ids().filter(|other| one < *other) {
                let regions = [one, other].map(|id| fabric.gateway(id).region);
                if regions[0] == regions[1] {
                    net.connect(lan_address(one).ip(), lan_address(other).ip(), lan, lan, seed);
                } else if fabric.connects(one, other) {
                    let link = fabric.link(regions[0], regions[1]).expect("joined");
                    let delay = Span::from_ns(link.rtt.ns() / 2);
                    let spec = LinkSpec::new(link.rate, delay).expect("a valid link");
                    let spec = spec.with_loss(self.loss);
                    let seed = seed ^ (u64::from(one.0) << 8) ^ u64::from(other.0);
                    net.connect(address(one).ip(), address(other).ip(), spec, spec, seed);
                }
            }
        }
        let setup = Setup {
            plan: self.plan(),
            addresses: fabric.gateway_ids().map(|id| address(id).into()).collect(),
            jobs: jobs_of(&[(JOB, 1)], JOB_MEMORY),
            memory: self.memory,
            policies: Policies::new(),
            mtu_pinned: true,
            fabric,
        };
        let mut lab = gateway::simulate::Lab::new(setup, net, seed);
        for id in lab.fabric.gateway_ids() {
            let papers = Papers::Right.of(&lab.fabric, id);
            lab.add_gateway(id, papers).await.expect("starts");
        }
        Lab(lab)
    }
}

/// What every rank of an all-reduce must get: in each tree's part each gateway's ranks in order,
/// then what comes up in gateway order, then the crown in gateway order; each step encoded.
pub fn expected(fabric: &Fabric, plan: &Plan, case: &Case) -> Vec<u8> {
    let contributions = case.contributions(fabric.world_size());
    let bytes = case.elements * case.dtype.size();
    let mut result = Vec::new();
    let parts = plan.trees.iter().zip(shard::parts(plan, bytes));
    for (tree, part) in parts.filter(|(tree, _)| tree.direction.has_partials()) {
        let range = part.range.start as usize..part.range.end as usize;
        let sums = Sums { fabric, tree, case, contributions: &contributions, range };
        let crown = &sums.tree.roots;
        let (bytes, _) = match crown[..] {
            [root] => sums.partial(root),
            _ => sums.reduced(crown.iter().map(|id| sums.partial(*id)).collect()),
        };
        result.extend(bytes);
    }
    result
}

struct Sums<'a> {
    fabric: &'a Fabric,
    tree: &'a Tree,
    case: &'a Case,
    contributions: &'a [Vec<u8>],
    range: Range<usize>,
}

impl Sums<'_> {
    fn partial(&self, at: GatewayId) -> (Vec<u8>, f64) {
        let children = self.tree.parents.iter().filter(|(_, parent)| **parent == at);
        let mut inputs: Vec<_> =
            children.map(|(child, _)| (*child, self.partial(*child))).collect();
        inputs.push((at, self.local(at)));
        inputs.sort_by_key(|(id, _)| *id);
        self.reduced(inputs.into_iter().map(|(_, input)| input).collect())
    }

    fn local(&self, at: GatewayId) -> (Vec<u8>, f64) {
        let ranks = self.fabric.gateway(at).ranks.clone();
        let input = |rank: u32| {
            (self.contributions[rank as usize][self.range.clone()].to_vec(), weight(rank))
        };
        self.reduced(ranks.map(input).collect())
    }

    fn reduced(&self, mut inputs: Vec<(Vec<u8>, f64)>) -> (Vec<u8>, f64) {
        if inputs.len() == 1 {
            return inputs.remove(0);
        }
        let weight = inputs.iter().map(|(_, weight)| weight).sum();
        let mut out = vec![0; self.range.len()];
        let inputs: Vec<(&[u8], f64)> = inputs.iter().map(|(b, w)| (&b[..], *w)).collect();
        let (op, dtype): (ReduceOp, Dtype) = (self.case.op, self.case.dtype);
        reduce_slices(op, dtype, &mut out, &inputs).expect("fitting slices");
        (out, weight)
    }
}
