//! Fabrics of any shape under virtual time.

use super::jobs::{JOB, JOB_MEMORY, jobs_of};
use super::running::Lab;
use gateway::simulate::{FabricSetup, simulated_address, simulated_lan_address};
use gateway::wan::link::controller_policy::LinkPolicies;
use hier_collectives::membership::FabricVersion;
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::{self, Fabric, FabricRegionSpec, Patience, QuorumSpec, WanPort};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::{BitRate, ByteCount, Fraction, Span};
use wan_sim::{LinkSpec, VirtualNet};

/// Regions, their gateways, and the links between them.
#[derive(Debug, Clone)]
pub struct Mesh {
    /// Each region's gateways. A last region without ranks is a witness.
    pub regions: Vec<Vec<MeshGateway>>,
    /// The links between regions.
    pub links: Vec<MeshLink>,
    /// Random loss of every link each way.
    pub loss: Fraction,
    /// The segment size, where it differs from the plan's choice. The express tree, if there is
    /// one, then serves buffers up to [`EXPRESS_SEGMENTS`] of them, so that short buffers use all
    /// trees.
    pub segment: Option<ByteCount>,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
    /// IP MTU.
    pub mtu: u16,
    /// The fewest lanes between two gateways.
    pub lanes: u16,
    /// Ingress rates of the ports of these regions; other ports receive at their egress rate.
    pub inward: BTreeMap<usize, BitRate>,
    /// The regions that go on when others are lost.
    pub quorum: QuorumSpec,
    /// The votes of the first regions in the quorum; others have one.
    pub votes: Vec<u16>,
    /// The patience of the fabric with silences.
    pub patience: Patience,
    /// The silence after which a gateway counts as lost, where it is not the usual one.
    pub silence: Option<Span>,
}

/// A gateway of a region.
#[derive(Debug, Clone, Copy)]
pub struct MeshGateway {
    /// Number of its ranks.
    pub ranks: u32,
    /// Rate of its WAN port each way; `None` without a port.
    pub port: Option<BitRate>,
}

/// A link between two regions.
#[derive(Debug, Clone, Copy)]
pub struct MeshLink {
    /// The regions, by index, the lower one first.
    pub regions: (usize, usize),
    /// Capacity each way, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time.
    pub rtt: Span,
}

impl MeshGateway {
    /// A gateway with a WAN port.
    pub fn with_port(ranks: u32, rate: BitRate) -> Self {
        Self { ranks, port: Some(rate) }
    }

    /// A gateway without a WAN port.
    pub fn sidecar(ranks: u32) -> Self {
        Self { ranks, port: None }
    }
}

/// 4 segments: the largest buffer that takes the express tree in labs whose segment size is chosen
/// by the test.
pub const EXPRESS_SEGMENTS: u64 = 4;

/// 1 Gbit/s: the rate of each WAN port and each link of a mesh.
const PORT: BitRate = BitRate::from_bits_per_second(1_000_000_000);

impl Mesh {
    /// Regions of one gateway with these ranks. All pairs are linked, each with its own RTT.
    pub fn of_ranks(ranks: &[u32]) -> Self {
        Self::of_gateways(
            ranks.iter().map(|ranks| vec![MeshGateway::with_port(*ranks, PORT)]).collect(),
        )
    }

    /// Regions with these gateways, all pairs linked.
    pub fn of_gateways(regions: Vec<Vec<MeshGateway>>) -> Self {
        let mut links = Vec::new();
        for a in 0..regions.len() {
            for b in a + 1..regions.len() {
                let rtt = Span::from_ms(10 + 10 * (a as u64 + 2 * b as u64));
                links.push(MeshLink { regions: (a, b), rate: PORT, rtt });
            }
        }
        let memory = ByteCount::new(64 << 20);
        let inward = BTreeMap::new();
        let (loss, mtu, lanes) = (Fraction::default(), 1500, 1);
        let (quorum, votes, silence) = (QuorumSpec::All, vec![], None);
        let (segment, patience) = (None, Patience::default());
        Self {
            regions,
            links,
            loss,
            segment,
            memory,
            mtu,
            lanes,
            inward,
            quorum,
            votes,
            patience,
            silence,
        }
    }

    /// Removes the link between two regions.
    pub fn without(mut self, a: usize, b: usize) -> Self {
        self.links.retain(|link| link.regions != (a.min(b), a.max(b)));
        self
    }

    /// Returns the fabric of the mesh. Regions are `a`, `b`, ...; gateways `a-0`, `a-1`, ...
    pub fn fabric(&self) -> Arc<Fabric> {
        let name = |region: usize| char::from(b'a' + region as u8).to_string();
        let region = |(index, gateways): (usize, &Vec<MeshGateway>)| FabricRegionSpec {
            name: name(index),
            speeds: vec![1.0; gateways.iter().map(|gateway| gateway.ranks as usize).sum()],
            gateways: (0..)
                .zip(gateways)
                .map(|(number, MeshGateway { ranks, port }): (u32, _)| {
                    let inward = self.inward.get(&index).copied();
                    let wan =
                        port.map(|port| WanPort { egress: port, ingress: inward.unwrap_or(port) });
                    topology::FabricGatewaySpec::new(
                        format!("{}-{number}", name(index)),
                        *ranks,
                        wan,
                    )
                })
                .collect(),
        };
        let link = |link: &MeshLink| topology::FabricLinkSpec {
            between: (name(link.regions.0), name(link.regions.1)),
            rate: link.rate,
            rtt: link.rtt,
            loss: self.loss,
        };
        let mut regions: Vec<_> = self.regions.iter().enumerate().map(region).collect();
        let last = self.regions.len() - 1;
        let witness = regions.pop_if(|last| last.speeds.is_empty());
        let is_of_witness = |link: &&MeshLink| witness.is_some() && link.regions.1 == last;
        let (of_witness, of_others): (Vec<_>, Vec<_>) = self.links.iter().partition(is_of_witness);
        let specs = |links: Vec<&MeshLink>| links.into_iter().map(link).collect::<Vec<_>>();
        let fabric = Fabric::new("sim", self.mtu, regions, specs(of_others));
        let fabric = match witness {
            Some(witness) => fabric.and_then(|it| it.with_witness(witness, specs(of_witness))),
            None => fabric,
        };
        let fabric = fabric.expect("a valid fabric");
        let fabric = fabric.with_lanes_min(self.lanes).with_patience(self.patience);
        let fabric = fabric.with_silence(self.silence);
        let votes = (0..).map(name).zip(self.votes.iter().copied()).collect();
        Arc::new(fabric.with_weighted_quorum(&self.quorum, &votes).expect("a valid quorum"))
    }

    /// Returns the plan that the gateways follow.
    pub fn plan(&self) -> Plan {
        let mut plan = plan::make_plan(&self.fabric()).expect("a plan");
        if let Some(segment) = self.segment {
            let most = ByteCount::new(EXPRESS_SEGMENTS * segment.get());
            (plan.segment, plan.express_bytes) = (segment, plan.express_bytes.min(most));
        }
        plan
    }

    /// Starts all gateways. All random numbers come from `seed`.
    pub async fn start(&self, seed: u64) -> Lab {
        let mut lab = self.without_gateways(seed);
        for id in self.fabric().gateway_ids() {
            lab.start_gateway(id).await;
        }
        lab
    }

    /// Makes the lab of the mesh, in which no gateway runs yet. All random numbers come from `seed`.
    pub fn without_gateways(&self, seed: u64) -> Lab {
        let (setup, net) = (self.setup(), self.network(seed));
        Lab(gateway::simulate::VirtualDeployment::new(setup, net, seed))
    }

    /// Makes the network of the mesh. All random numbers come from `seed`.
    pub fn network(&self, seed: u64) -> VirtualNet {
        let net = VirtualNet::new();
        let fabric = self.fabric();
        let near = Span::from_ns(50_000);
        let lan = LinkSpec::new(BitRate::from_bits_per_second(25_000_000_000), near);
        let lan = lan.expect("a valid link");
        for one in fabric.gateway_ids() {
            for other in fabric.gateway_ids().filter(|other| one < *other) {
                let regions = [one, other].map(|id| fabric.gateway(id).region);
                if regions[0] == regions[1] {
                    net.connect(
                        simulated_lan_address(one).ip(),
                        simulated_lan_address(other).ip(),
                        lan,
                        lan,
                        seed,
                    );
                } else if fabric.connects(one, other) {
                    let link = fabric.link(regions[0], regions[1]).expect("joined");
                    let delay = Span::from_ns(link.rtt.ns() / 2);
                    let spec = LinkSpec::new(link.rate, delay).expect("a valid link");
                    let spec = spec.with_loss(self.loss);
                    let seed = seed ^ (u64::from(one.0) << 8) ^ u64::from(other.0);
                    net.connect(
                        simulated_address(one).ip(),
                        simulated_address(other).ip(),
                        spec,
                        spec,
                        seed,
                    );
                }
            }
        }
        net
    }

    /// Makes the settings of all gateways of the mesh.
    pub fn setup(&self) -> FabricSetup {
        let fabric = self.fabric();
        FabricSetup {
            plan: self.plan(),
            addresses: fabric.gateway_ids().map(|id| simulated_address(id).into()).collect(),
            jobs: jobs_of(&[(JOB, 1)], JOB_MEMORY),
            memory: self.memory,
            policies: LinkPolicies::new(),
            mtu_pinned: true,
            host_names: BTreeMap::new(),
            dials_only: BTreeSet::new(),
            version: FabricVersion::default(),
            fabric,
        }
    }
}
