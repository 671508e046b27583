//! A running simulation of a fabric, and the times that collectives take on it.

use super::error::SimulateError;
use super::network_layout::NetworkLayout;
use super::simulated_addresses::simulated_region_address;
use super::simulation_spec::SimulationSpec;
use super::virtual_deployment::VirtualDeployment;
use crate::client::{AttachError, Client, CollectiveSpec, Operation};
use hier_collectives::descriptor::{Counts, Descriptor, Dtype, Pattern, ReduceOp, SlotElements};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::net::IpAddr;
use units::{ByteCount, Span, TimeNs};
use wan_sim::FateCounters;

/// A running simulation, whose gateways have met and whose ranks are attached.
pub struct Simulation {
    gateways: VirtualDeployment,
    clients: Vec<Client>,
    network: NetworkLayout,
    seed: u64,
}

/// A collective of a sequence, and the time of its posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedCollective {
    /// Time from the start of the sequence until all ranks post it.
    pub after: Span,
    /// Size of its buffer.
    pub bytes: ByteCount,
    /// Which ranks contribute, and which get the result.
    pub pattern: Pattern,
}

/// The traffic of one direction of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedTraffic {
    /// The sending region.
    pub from: RegionId,
    /// The receiving region.
    pub to: RegionId,
    /// The link's packet counters.
    pub counters: FateCounters,
    /// Payload that the sender counted, without retransmissions.
    pub payload: ByteCount,
    /// Peak of the queue, in bytes.
    pub queue_peak: ByteCount,
}

impl Simulation {
    /// Starts all gateways of a simulation and attaches all ranks. `buffers` is the size of all
    /// buffers that one rank has under way together, and all randomness comes from `seed`. Call all
    /// methods inside [`run_with_simulated_clock`](super::run_with_simulated_clock).
    ///
    /// # Errors
    /// [`SimulateError`]: the simulation is too large, or did not start.
    pub async fn start(
        spec: SimulationSpec,
        buffers: ByteCount,
        seed: u64,
    ) -> Result<Self, SimulateError> {
        spec.check_memory(buffers)?;
        let network = spec.network.clone();
        let gateways = spec.start_gateways(seed).await?;
        // Slots are rounded up to whole cache lines.
        let arena = 2 * buffers.get() + SLOT_ROUNDING_BYTES;
        let mut clients = Vec::new();
        for rank in 0..gateways.fabric.world_size() {
            let patience = simulation_meeting_timeout(longest_simulation_rtt(&gateways.fabric));
            let job = SimulationSpec::JOB_NAME;
            match gateways.attach_folded(job, rank, arena, patience).await {
                Err(AttachError::NoEpoch(waited)) => {
                    return Err(simulation_not_met_error(&gateways, waited.timeout).await);
                }
                attached => clients.push(attached?),
            }
        }
        let simulation = Self { gateways, clients, network, seed };
        simulation.reset_links().await;
        Ok(simulation)
    }

    /// Waits 10 of the longest round trips and 1 s, in which all lanes connect, and makes the links
    /// anew, so that their counters begin at zero.
    async fn reset_links(&self) {
        let rtt = longest_simulation_rtt(&self.gateways.fabric);
        // All lanes are connected a few round trips after the first.
        self.gateways.sleep(Span::from_ns(10 * rtt.ns()) + Span::from_secs(1)).await;
        self.network.apply(&self.gateways.net, self.seed);
    }

    /// Returns the virtual time.
    pub fn now(&self) -> TimeNs {
        self.gateways.host.now()
    }

    /// Returns the bytes of payload that each gateway has sent to each other one, without
    /// retransmissions.
    pub fn sent_bytes(&self) -> BTreeMap<(GatewayId, GatewayId), u64> {
        let gateways = self.gateways.fabric.gateway_ids().zip(&self.gateways.gateways);
        let to_each = gateways.flat_map(|(from, gateway)| {
            let peers = gateway.peers.iter();
            peers.map(move |(to, peer)| ((from, *to), peer.metrics.sent_bytes.get()))
        });
        to_each.collect()
    }

    /// Runs a sequence of collectives, which all ranks post at the given times, in ascending order.
    /// Returns the time from the start until each was complete on all ranks. `on_progress` is
    /// called every 50 ms of virtual time.
    ///
    /// # Errors
    /// [`SimulateError`]: a collective was not posted, or failed.
    pub async fn run_collectives(
        &self,
        posts: &[TimedCollective],
        dtype: Dtype,
        mut on_progress: impl FnMut(),
    ) -> Result<Vec<Span>, SimulateError> {
        let begin = self.now();
        let each = async {
            let mut under_way: Vec<Vec<Operation>> = Vec::new();
            let mut done = Vec::new();
            for post in posts {
                self.gateways.host.sleep_until(begin + post.after).await;
                under_way.push(self.post_on_all_ranks(post, dtype).await?);
            }
            for operations in &mut under_way {
                let mut last = begin;
                for operation in operations {
                    last = last.max(operation.ready().await?.ready);
                }
                done.push(last.since(begin));
            }
            Ok::<_, SimulateError>(done)
        };
        tokio::pin!(each);
        loop {
            tokio::select! {
                biased;
                done = &mut each => return done,
                () = self.gateways.sleep(PROGRESS_INTERVAL) => on_progress(),
            }
        }
    }

    /// Posts a collective on all ranks, each of which waits until it may post; returns the
    /// operations in rank order.
    async fn post_on_all_ranks(
        &self,
        post: &TimedCollective,
        dtype: Dtype,
    ) -> Result<Vec<Operation>, SimulateError> {
        let elements = post.bytes.get() / dtype.size();
        let spec = CollectiveSpec::new(post.pattern, ReduceOp::Sum);
        let descriptor = Descriptor { dtype, ..Descriptor::of_bytes(post.pattern, elements) };
        let whole = SlotElements { contribution: elements, result: elements };
        let mut operations = Vec::new();
        for client in &self.clients {
            let ranks = client.world_size();
            let slots = descriptor.slot_elements(&Counts::Even, client.rank(), ranks);
            let tensor = client.allocate_slots(dtype, slots.unwrap_or(whole))?;
            operations.push(client.post(tensor, spec).await?);
        }
        Ok(operations)
    }

    /// Returns the traffic of each link in each direction since the gateways met.
    ///
    /// # Errors
    /// [`SimulateError::NoLink`].
    pub fn link_traffic(&self) -> Result<Vec<SimulatedTraffic>, SimulateError> {
        let region = |id: GatewayId| self.gateways.fabric.gateway(id).region;
        let mut payloads = BTreeMap::new();
        for ((from, to), bytes) in self.sent_bytes() {
            if region(from) != region(to) {
                *payloads.entry((region(from), region(to))).or_insert(0) += bytes;
            }
        }
        let traffic = payloads.into_iter().map(|((from, to), bytes)| {
            let [here, there] =
                [from, to].map(|id| simulated_region_address(&self.gateways.fabric, id).ip());
            let (counters, queue_peak) = self.traffic_between(here, there)?;
            Ok(SimulatedTraffic { from, to, counters, payload: ByteCount::new(bytes), queue_peak })
        });
        traffic.collect()
    }

    /// Returns the packet counters and the queue peak of the link from one address to another.
    ///
    /// # Errors
    /// [`SimulateError::NoLink`].
    pub fn traffic_between(
        &self,
        from: IpAddr,
        to: IpAddr,
    ) -> Result<(FateCounters, ByteCount), SimulateError> {
        let net = &self.gateways.net;
        Ok((net.counters(from, to)?, net.queue_bytes_peak(from, to)?))
    }
}

/// Returns the longest round trip of a fabric's links.
fn longest_simulation_rtt(fabric: &Fabric) -> Span {
    fabric.links().iter().map(|link| link.rtt).max().unwrap_or(Span::ZERO)
}

/// Returns how long the gateways may take to meet, in virtual time.
fn simulation_meeting_timeout(rtt: Span) -> Span {
    MEETING_TIMEOUT_BASE + Span::from_ns(rtt.ns().saturating_mul(MEETING_ROUND_TRIPS))
}

/// Builds the error of gateways that have not met, with the reason why each lane is missing.
async fn simulation_not_met_error(gateways: &VirtualDeployment, waited: Span) -> SimulateError {
    let mut problems = Vec::new();
    for id in gateways.fabric.gateway_ids() {
        let Ok(status) = gateways.status(id).await else { continue };
        for peer in status.peers.iter().filter(|peer| peer.lanes_up == 0) {
            let why = peer.problem.as_deref().unwrap_or("no lane is up");
            problems.push(format!("{} to {}: {why}", status.gateway, peer.gateway));
        }
    }
    if problems.is_empty() {
        problems.push("all lanes are up".to_owned());
    }
    let rtt = longest_simulation_rtt(&gateways.fabric);
    SimulateError::NotMet { waited, rtt, problems: problems.join("; ") }
}

/// 60 s of virtual time, and [`MEETING_ROUND_TRIPS`] in addition: the longest wait until the
/// gateways of a simulation have met, so that collectives can begin. After that the simulation
/// fails, and names the missing lanes.
/// Tested by `a_simulation_whose_gateways_never_meet_says_so`.
const MEETING_TIMEOUT_BASE: Span = Span::from_secs(60);

/// 100 round trips of the longest link, added to the 60 s of [`MEETING_TIMEOUT_BASE`]: the longest
/// wait until the gateways of a simulation have met. After that the simulation fails. Several dials
/// of ten round trips each fit into 100.
const MEETING_ROUND_TRIPS: u64 = 100;

/// 1 MiB: memory of each simulated arena in addition to its contributions and results, since slots
/// are rounded up to whole cache lines. A post whose slots find no room fails: the arena is full.
const SLOT_ROUNDING_BYTES: u64 = 1 << 20;

/// 50 ms of virtual time: interval between two calls of the caller's function `on_progress`, by
/// which a simulation shows its progress. The value is chosen.
const PROGRESS_INTERVAL: Span = Span::from_ms(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::run_with_simulated_clock;
    use hier_collectives::plan;
    use hier_collectives::topology::{
        FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
    };
    use units::{BitRate, Fraction};

    /// Two regions of one rank, over a link of 1 Mbit/s with this round trip.
    fn spec(rtt: Span) -> SimulationSpec {
        let rate = BitRate::from_bits_per_second(1_000_000);
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(
                format!("{name}-0"),
                1,
                Some(WanPort { egress: rate, ingress: rate }),
            )],
        };
        let between = ("east".to_owned(), "west".to_owned());
        let link = FabricLinkSpec { between, rate, rtt, loss: Fraction::default() };
        let regions = vec![region("east"), region("west")];
        let fabric = Fabric::new("far", 1500, regions, vec![link]).expect("valid");
        let plan = plan::make_plan(&fabric).expect("a plan");
        SimulationSpec::of_fabric(fabric, plan).expect("links that wan-sim has")
    }

    #[test]
    fn gateways_meet_over_a_round_trip_of_a_minute() {
        for rtt in [Span::from_secs(12), Span::from_secs(60)] {
            let bytes = ByteCount::new(4096);
            let post = TimedCollective { after: Span::ZERO, bytes, pattern: Pattern::AllReduce };
            let took = run_with_simulated_clock(async {
                let simulation = Simulation::start(spec(rtt), bytes, 1).await?;
                // Idle lanes stay up, too.
                simulation.gateways.sleep(Span::from_ns(10 * rtt.ns())).await;
                simulation.run_collectives(&[post], Dtype::F32, || {}).await
            });
            let took = took.expect("a runtime").expect("a result")[0];
            assert!(took > Span::from_ns(rtt.ns() / 2) && took < rtt + rtt, "{took} over {rtt}");
        }
    }

    #[test]
    fn a_simulation_whose_gateways_never_meet_says_so() {
        let unlinked = SimulationSpec {
            network: NetworkLayout::with_links(Vec::new()),
            ..spec(Span::from_ms(80))
        };
        let started =
            run_with_simulated_clock(Simulation::start(unlinked, ByteCount::new(4096), 1));
        let error = started.expect("a runtime").err().expect("nobody meets").to_string();
        assert!(error.contains("the gateways did not meet within 68 s"), "{error}");
        assert!(
            error.contains("east-0 to west-0: ") && error.contains("no UDP port answers"),
            "{error}"
        );
    }
}
