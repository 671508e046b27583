//! Baselines for the hierarchy: the same buffer over the same sites, by one gateway for each site
//! and by flat algorithms over all ranks. All run the production session.

use crate::collectives::batch::{Case, outcomes, post_all};
use crate::lab::expected::expected;
use gateway::client::DEFAULT_TIMEOUT;
use gateway::simulate::{
    NetworkLayout, SimulateError, Simulation, SimulationSpec, TimedCollective, simulated_address,
};
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, Operation, Plan, baseline};
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use units::{BitRate, ByteCount, Fraction, Span};

/// An all-reduce algorithm over the ranks of all sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// A gateway for each site, by the plan of the fabric.
    Hierarchy,
    /// A ring over all ranks, partials and results the same way round, as collectives inside a
    /// site have it.
    OneWayRing,
    /// A ring over all ranks, results the other way round.
    Ring,
    /// Recursive halving and doubling over all ranks.
    HalvingDoubling,
}

/// All algorithms of all-reduce that are compared.
pub const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Hierarchy, Algorithm::OneWayRing, Algorithm::Ring, Algorithm::HalvingDoubling];

/// The cost of one algorithm.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// Seconds from the last post to the last result.
    pub seconds: f64,
    /// Payload out of each site over the long haul, in units of the buffer, as the links counted
    /// their packets.
    pub out: Vec<f64>,
    /// The most bytes that waited before any long-haul link.
    pub queue_peak: ByteCount,
    /// The most ranks or gateways that sent over the long haul within the same 50 ms.
    pub senders: usize,
}

impl Algorithm {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hierarchy => "hierarchy",
            Self::OneWayRing => "ring, one way",
            Self::Ring => "ring, both ways",
            Self::HalvingDoubling => "halving-doubling",
        }
    }
}

/// All-reduces a buffer over sites with these ranks, by the production session. Values are not
/// checked here; [`wrong_sums`] does that.
///
/// # Errors
/// [`SimulateError`].
pub fn all_reduce(
    way: Algorithm,
    sites: &[u32],
    size: ByteCount,
    seed: u64,
) -> Result<Cost, SimulateError> {
    let (deployment, site_of) = deployment(way, sites)?;
    // Trees of a plan go up and down the same edges. A ring that goes one way puts on its one
    // direction of a link what one that goes both ways puts on each with twice the buffer; between
    // two sites alone both meet on one link.
    let both_ways = way != Algorithm::OneWayRing || sites.len() < 3;
    let carried = ByteCount::new(size.get() * if both_ways { 1 } else { 2 });
    let fabric = deployment.fabric.clone();
    let share = hier_collectives::bound::payload_rate_fraction(fabric.mtu());
    let crosses =
        |from: GatewayId, to: GatewayId| site_of[usize::from(from.0)] != site_of[usize::from(to.0)];
    gateway::simulate::run_with_simulated_clock(async {
        let simulation = Simulation::start(deployment, carried, seed).await?;
        let (mut before, senders) = (simulation.sent_bytes(), Cell::new(0));
        let count = || {
            let now = simulation.sent_bytes();
            let more = now.iter().filter(|(pair, sent)| before.get(pair) != Some(sent));
            let mut from: Vec<_> =
                more.filter(|((a, b), _)| crosses(*a, *b)).map(|((a, _), _)| *a).collect();
            from.dedup();
            senders.set(senders.get().max(from.len()));
            before = now;
        };
        let post =
            TimedCollective { after: Span::ZERO, bytes: carried, pattern: Pattern::AllReduce };
        let done = simulation.run_collectives(&[post], Dtype::F32, count).await?;
        let mut out = vec![0.0; sites.len()];
        let mut queue_peak = ByteCount::default();
        for (from, out) in out.iter_mut().enumerate() {
            for to in (0..sites.len()).filter(|to| *to != from) {
                let (counters, peak) = simulation.traffic_between(ip(from), ip(to))?;
                *out += counters.ip_bytes as f64 * share / carried.get() as f64;
                queue_peak = queue_peak.max(peak);
            }
        }
        Ok(Cost { seconds: done[0].as_secs_f64(), out, queue_peak, senders: senders.get() })
    })?
}

/// All-reduces values of every kind by the same gateways over the same links. Returns the ranks
/// with wrong sums, normally none.
///
/// # Errors
/// [`SimulateError`].
pub fn wrong_sums(way: Algorithm, sites: &[u32], seed: u64) -> Result<Vec<String>, SimulateError> {
    let (deployment, _) = deployment(way, sites)?;
    let (fabric, plan) = (deployment.fabric.clone(), deployment.plan.clone());
    let ranks = fabric.world_size();
    gateway::simulate::run_with_simulated_clock(async {
        let lab = deployment.start_gateways(seed).await?;
        let mut clients = Vec::new();
        for rank in 0..ranks {
            let client =
                lab.attach_to(SimulationSpec::JOB_NAME, rank, SUM_ARENA, DEFAULT_TIMEOUT).await?;
            clients.push(client);
        }
        let mut wrong = Vec::new();
        for dtype in [Dtype::I32, Dtype::F32] {
            let case = Case::new(ReduceOp::Sum, dtype, SUM_ELEMENTS, seed);
            // Floats in the order of the trees; integers without a word of the plan.
            let right = match dtype.is_float() {
                true => expected(&fabric, &plan, &case),
                false => case.in_any_order(ranks),
            };
            let mut operations = post_all(&clients, &case).await;
            for (rank, outcome) in outcomes(&mut operations).await.into_iter().enumerate() {
                if outcome? != right {
                    wrong.push(format!("rank {rank} has another sum of {dtype}"));
                }
            }
        }
        Ok(wrong)
    })?
}

/// The gateways of a way, and the site of each.
fn deployment(
    way: Algorithm,
    sites: &[u32],
) -> Result<(SimulationSpec, Vec<usize>), SimulateError> {
    match way {
        Algorithm::Hierarchy => {
            let fabric = hierarchy(sites);
            let plan = plan::make_plan(&fabric).expect("few regions");
            let site_of = (0..sites.len()).collect();
            Ok((SimulationSpec::of_fabric(fabric, plan)?, site_of))
        }
        Algorithm::OneWayRing | Algorithm::Ring => flat(sites, baseline::ring_baseline_plan),
        Algorithm::HalvingDoubling => flat(sites, baseline::halving_doubling_baseline_plan),
    }
}

fn ip(site: usize) -> IpAddr {
    simulated_address(GatewayId(u16::try_from(site).expect("few sites"))).ip()
}

/// A gateway for each site.
fn hierarchy(sites: &[u32]) -> Fabric {
    // Wide enough for all links of a site, as flat algorithms have it.
    let links = u64::try_from(sites.len().max(2) - 1).expect("few sites");
    let port = BitRate::from_bits_per_second(links * WAN_RATE.bits_per_second());
    let wan = Some(WanPort { egress: port, ingress: port });
    let region = |(site, ranks): (usize, &u32)| FabricRegionSpec {
        name: format!("s{site}"),
        speeds: vec![1.0; *ranks as usize],
        gateways: vec![FabricGatewaySpec::new(format!("s{site}-0"), *ranks, wan)],
    };
    let names = (0..sites.len()).map(|site| format!("s{site}")).collect();
    let regions = sites.iter().enumerate().map(region).collect();
    let links = mesh(names, |_, _| (WAN_RATE, WAN_RTT));
    Fabric::new("sites", 1500, regions, links).expect("valid")
}

fn mesh(names: Vec<String>, link: impl Fn(usize, usize) -> (BitRate, Span)) -> Vec<FabricLinkSpec> {
    let mut links = Vec::new();
    for one in 0..names.len() {
        for other in one + 1..names.len() {
            let (rate, rtt) = link(one, other);
            let between = (names[one].clone(), names[other].clone());
            links.push(FabricLinkSpec { between, rate, rtt, loss: Fraction::default() });
        }
    }
    links
}

/// A deployment in which every rank has its own gateway, all of a site behind one address; and the
/// site of each.
fn flat(
    sites: &[u32],
    control: fn(&Fabric) -> Plan,
) -> Result<(SimulationSpec, Vec<usize>), SimulateError> {
    let ranks = sites.iter().enumerate();
    let site_of: Vec<usize> =
        ranks.flat_map(|(site, ranks)| (0..*ranks).map(move |_| site)).collect();
    let names: Vec<String> = (0..site_of.len()).map(|rank| format!("r{rank:03}")).collect();
    let fabric = |link: &dyn Fn(usize, usize) -> (BitRate, Span)| {
        let wan = Some(WanPort { egress: LAN_RATE, ingress: LAN_RATE });
        let region = |name: &String| FabricRegionSpec {
            name: name.clone(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
        };
        let regions = names.iter().map(region).collect();
        Fabric::new("flat", 1500, regions, mesh(names.clone(), link)).expect("valid")
    };
    let even = fabric(&|_, _| (WAN_RATE, WAN_RTT));
    // The pairs of ranks between two sites share their link in proportion to what they send.
    let forecast = control(&even).forecast(&even, Operation::AllReduce, ByteCount::new(1 << 30));
    let flow = |one: usize, other: usize| {
        let of_pair = forecast
            .links
            .iter()
            .filter(|load| (usize::from(load.from.0), usize::from(load.to.0)) == (one, other));
        of_pair.map(|load| load.bytes.get()).sum::<u64>()
    };
    let between_sites = |one: usize, other: usize| {
        let here = |rank: &usize| site_of[*rank] == site_of[one];
        let there = |rank: &usize| site_of[*rank] == site_of[other];
        let all = 0..site_of.len();
        let pairs =
            all.clone().filter(here).flat_map(|a| all.clone().filter(there).map(move |b| (a, b)));
        pairs.map(|(a, b)| flow(a, b)).sum::<u64>()
    };
    let divided = fabric(&|one, other| {
        if site_of[one] == site_of[other] {
            return (LAN_RATE, LAN_RTT);
        }
        let part = flow(one, other) as f64 / between_sites(one, other).max(1) as f64;
        let bits = WAN_RATE.bits_per_second() as f64 * part.max(IDLE_PART);
        (BitRate::from_bits_per_second(bits as u64), WAN_RTT)
    });
    let port = |rank: usize| {
        let before = site_of[..rank].iter().filter(|site| **site == site_of[rank]).count();
        7400 + 32 * u16::try_from(before).expect("few ranks")
    };
    let addresses = (0..site_of.len()).map(|rank| SocketAddr::new(ip(site_of[rank]), port(rank)));
    let network = network(sites)?;
    let plan = control(&divided);
    let (fabric, addresses) = (std::sync::Arc::new(divided), addresses.collect());
    Ok((SimulationSpec { fabric, plan, addresses, network }, site_of))
}

/// A link between each two sites, and a LAN in each.
fn network(sites: &[u32]) -> Result<NetworkLayout, SimulateError> {
    let wan = wan_sim::LinkSpec::new(WAN_RATE, Span::from_ns(WAN_RTT.ns() / 2))?;
    let lan = wan_sim::LinkSpec::unlimited(Span::from_ns(LAN_RTT.ns() / 2))?;
    let mut links = Vec::new();
    for one in 0..sites.len() {
        links.push((ip(one), ip(one), lan));
        links.extend((one + 1..sites.len()).map(|other| (ip(one), ip(other), wan)));
    }
    Ok(NetworkLayout::with_links(links))
}

/// 200 Mbit/s: the rate of the link between two sites.
pub const WAN_RATE: BitRate = BitRate::from_bits_per_second(200_000_000);
/// 60 ms: the round-trip time of the link between two sites.
pub const WAN_RTT: Span = Span::from_ms(60);
/// 10 Gbit/s: the rate inside a site, so high that the LAN delays nothing.
const LAN_RATE: BitRate = BitRate::from_bits_per_second(10_000_000_000);
/// 1 ms: the round-trip time inside a site.
const LAN_RTT: Span = Span::from_ms(1);
/// 0.01 of a link's rate between two sites: the least share of a pair of ranks, even if the plan
/// sends nothing between them.
const IDLE_PART: f64 = 0.01;
/// 1,100,003 elements: length of the buffers whose sums are compared. It is more than the express
/// tree takes, and no round number.
const SUM_ELEMENTS: u64 = 1_100_003;
/// 20 MiB: an arena for two buffers of [`SUM_ELEMENTS`] and their results.
const SUM_ARENA: u64 = 20 << 20;
