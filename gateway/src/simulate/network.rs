//! The links of a fabric, as `wan-sim` has them.

use super::{SimulateError, address, lan_address};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::Fabric;
use std::net::{IpAddr, SocketAddr};
use units::{BitRate, Span};
use wan_sim::{LinkSpec, QueueSize, VirtualNet};

/// A queue holds one BDP, and at least this much time: on a short link a BDP is less than what a
/// timer of one millisecond lets go at once, and routers have more.
pub const QUEUE_MIN: Span = Span::from_ms(10);

/// The links and ports of a fabric between the addresses of its gateways.
#[derive(Debug, Clone)]
pub struct Network {
    links: Vec<(IpAddr, IpAddr, LinkSpec)>,
    ports: Vec<(IpAddr, LinkSpec, LinkSpec)>,
}

impl Network {
    /// Every link with its rate, loss and half its RTT each way, and a queue of one BDP; the ports
    /// of a region together, with the sum of their rates, and a queue of one BDP of its longest
    /// link; none shorter than [`QUEUE_MIN`]; and a LAN between the gateways of each region.
    ///
    /// # Errors
    /// A rate or RTT that no link can have.
    pub fn of(fabric: &Fabric) -> Result<Self, SimulateError> {
        let ip = |region: RegionId| region_address(fabric, region).ip();
        let mut links = Vec::new();
        for link in fabric.links() {
            let spec = LinkSpec::new(link.rate, Span::from_ns(link.rtt.ns() / 2))?;
            let queue = QueueSize::Time(link.rtt.max(QUEUE_MIN));
            links.push((ip(link.a), ip(link.b), spec.with_loss(link.loss).with_queue(queue)));
        }
        let lan = LinkSpec::new(LAN_RATE, LAN_DELAY)?;
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
                    .with_queue(QueueSize::Time(longest.max(QUEUE_MIN))))
            };
            if wan().next().is_some() {
                let egress = port(wan().map(|wan| wan.egress.bits_per_second()).sum())?;
                ports.push((
                    ip(id),
                    egress,
                    port(wan().map(|wan| wan.ingress.bits_per_second()).sum())?,
                ));
            }
            for one in gateways() {
                let others = gateways().filter(|other| one < *other);
                links.extend(others.map(|o| (lan_address(one).ip(), lan_address(o).ip(), lan)));
            }
        }
        Ok(Self { links, ports })
    }

    /// These links, alike both ways, without ports.
    pub fn with_links(links: Vec<(IpAddr, IpAddr, LinkSpec)>) -> Self {
        Self { links, ports: vec![] }
    }

    /// Lays them, or lays them anew: counters begin at zero, and everything random comes from
    /// `seed`. What is under way arrives.
    pub fn lay(&self, net: &VirtualNet, seed: u64) {
        for (number, (one, other, spec)) in (0..).zip(&self.links) {
            net.connect(*one, *other, *spec, *spec, mixed(seed, number));
        }
        for (number, (ip, egress, ingress)) in (0..).zip(&self.ports) {
            net.set_port(*ip, *egress, *ingress, mixed(seed, number | 1 << 32));
        }
    }
}

/// Where the first gateway of a region is; the others are at other ports of the same address, so
/// that they share its links.
pub(super) fn region_address(fabric: &Fabric, region: RegionId) -> SocketAddr {
    address(GatewayId(fabric.region(region).gateways.start))
}

/// Inside a region, and half a round trip of it.
const LAN_RATE: BitRate = BitRate::from_bits_per_second(25_000_000_000);
/// As above.
const LAN_DELAY: Span = Span::from_ns(50_000);

/// A seed for each link.
fn mixed(seed: u64, number: u64) -> u64 {
    (seed ^ number.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
