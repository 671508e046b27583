//! The links of a fabric as links of `wan-sim`.

use super::error::SimulateError;
use super::simulated_addresses::{simulated_lan_address, simulated_region_address};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::Fabric;
use std::net::IpAddr;
use units::{BitRate, Span};
use wan_sim::{LinkSpec, QueueSize, VirtualNet};

/// 10 ms at the link's rate: shortest queue of a simulated link, in place of one BDP where the
/// round trip is shorter. On short links a timer of 1 ms releases more than one BDP, and a queue of
/// one BDP would drop every burst.
pub const SIMULATED_QUEUE_MIN: Span = Span::from_ms(10);

/// The links and ports of a fabric between the addresses of its gateways.
#[derive(Debug, Clone)]
pub struct NetworkLayout {
    links: Vec<(IpAddr, IpAddr, LinkSpec)>,
    ports: Vec<NetworkPorts>,
}

/// The WAN ports of one region together.
#[derive(Debug, Clone)]
struct NetworkPorts {
    ip: IpAddr,
    egress: LinkSpec,
    ingress: LinkSpec,
}

impl NetworkLayout {
    /// Makes the links and ports of a fabric.
    ///
    /// Each link has its rate, its loss, half its RTT in each direction, and a queue of one BDP.
    /// The ports of a region are one port with the sum of their rates, whose queue is one BDP of
    /// the region's longest link. No queue is shorter than [`SIMULATED_QUEUE_MIN`]. A LAN joins the
    /// gateways of each region. Its queue holds what a host would hold back.
    ///
    /// # Errors
    /// A rate or RTT that `wan-sim` does not support.
    pub fn of_fabric(fabric: &Fabric) -> Result<Self, SimulateError> {
        let ip = |region: RegionId| simulated_region_address(fabric, region).ip();
        let mut links = Vec::new();
        for link in fabric.links() {
            let spec = LinkSpec::new(link.rate, Span::from_ns(link.rtt.ns() / 2))?;
            let queue = QueueSize::Time(link.rtt.max(SIMULATED_QUEUE_MIN));
            links.push((ip(link.a), ip(link.b), spec.with_loss(link.loss).with_queue(queue)));
        }
        let lan = LinkSpec::new(SIMULATED_LAN_RATE, SIMULATED_LAN_DELAY)?
            .with_queue(QueueSize::Time(SIMULATED_LAN_QUEUE));
        let mut ports = Vec::new();
        for (number, region) in (0..).zip(fabric.regions()) {
            let id = RegionId(number);
            let own = fabric.links().iter().filter(|link| link.a == id || link.b == id);
            let longest = own.map(|link| link.rtt).max().unwrap_or(Span::ZERO);
            let gateways = || region.gateways.clone().map(GatewayId);
            let wan = || gateways().filter_map(|gateway| fabric.gateway(gateway).wan);
            let port = |bits: u64| -> Result<LinkSpec, SimulateError> {
                let rate = BitRate::from_bits_per_second(bits);
                Ok(LinkSpec::new(rate, Span::ZERO)?
                    .with_queue(QueueSize::Time(longest.max(SIMULATED_QUEUE_MIN))))
            };
            if wan().next().is_some() {
                let egress = port(wan().map(|wan| wan.egress.bits_per_second()).sum())?;
                let ingress = port(wan().map(|wan| wan.ingress.bits_per_second()).sum())?;
                ports.push(NetworkPorts { ip: ip(id), egress, ingress });
            }
            for one in gateways() {
                let others = gateways().filter(|other| one < *other);
                links.extend(others.map(|o| {
                    (simulated_lan_address(one).ip(), simulated_lan_address(o).ip(), lan)
                }));
            }
        }
        Ok(Self { links, ports })
    }

    /// Makes a layout of the given links, equal in both directions, without ports.
    pub fn with_links(links: Vec<(IpAddr, IpAddr, LinkSpec)>) -> Self {
        Self { links, ports: vec![] }
    }

    /// Adds these links and ports to the network, or replaces them: counters begin at zero, and all
    /// randomness comes from `seed`. Packets under way still arrive.
    pub fn apply(&self, net: &VirtualNet, seed: u64) {
        for (number, (one, other, spec)) in (0..).zip(&self.links) {
            net.connect(*one, *other, *spec, *spec, mix_network_layout_seed(seed, number));
        }
        for (number, port) in (0..).zip(&self.ports) {
            net.set_port(
                port.ip,
                port.egress,
                port.ingress,
                mix_network_layout_seed(seed, number | 1 << 32),
            );
        }
    }
}

/// 25 Gbit/s: simulated rate, each way, between two gateways of a region, above any WAN port.
const SIMULATED_LAN_RATE: BitRate = BitRate::from_bits_per_second(25_000_000_000);
/// 50 us: simulated one-way delay between two gateways of a region. The round trip is then the 0.1
/// ms that gateways assume there.
const SIMULATED_LAN_DELAY: Span = Span::from_ns(50_000);

/// 20 ms: simulated queue between two gateways of a region. A host waits for its own network card, so
/// that a sender alone loses nothing there.
const SIMULATED_LAN_QUEUE: Span = Span::from_ms(20);

/// Returns the seed of link or port `number`, mixed from the seed of the simulation.
fn mix_network_layout_seed(seed: u64, number: u64) -> u64 {
    (seed ^ number.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
