//! The links of a fabric, as `wan-sim` has them.

use super::SimulateError;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use std::net::{IpAddr, SocketAddr};
use units::Span;
use wan_sim::{LinkSpec, QueueSize, VirtualNet};

/// The links and ports of a fabric between the addresses of its gateways.
#[derive(Debug, Clone)]
pub struct Network {
    links: Vec<(IpAddr, IpAddr, LinkSpec)>,
    ports: Vec<(IpAddr, LinkSpec, LinkSpec)>,
}

impl Network {
    /// Every link with its rate, loss and half its RTT each way, and a queue of one BDP; every
    /// port with its rates, and a queue of one BDP of the gateway's longest link.
    ///
    /// # Errors
    /// [`SimulateError::SeveralGateways`], or a rate or RTT that no link can have.
    pub fn of(fabric: &Fabric, addresses: &[SocketAddr]) -> Result<Self, SimulateError> {
        if let Some(region) = fabric.regions().iter().find(|region| region.gateways.len() > 1) {
            return Err(SimulateError::SeveralGateways(region.name.clone()));
        }
        let ip = |id: GatewayId| addresses[usize::from(id.0)].ip();
        let mut links = Vec::new();
        for link in fabric.links() {
            let (one, other) = (GatewayId(link.a.0), GatewayId(link.b.0));
            let spec = LinkSpec::new(link.rate, Span::from_ns(link.rtt.ns() / 2))?;
            links.push((ip(one), ip(other), spec.with_loss(link.loss)));
        }
        let mut ports = Vec::new();
        for (id, gateway) in fabric.gateway_ids().zip(fabric.gateways()) {
            let Some(wan) = gateway.wan else { continue };
            let own = fabric.links().iter();
            let own = own.filter(|link| link.a == gateway.region || link.b == gateway.region);
            let longest = own.map(|link| link.rtt).max().unwrap_or(Span::ZERO);
            let port = |rate| -> Result<LinkSpec, SimulateError> {
                Ok(LinkSpec::new(rate, Span::ZERO)?.with_queue(QueueSize::Time(longest)))
            };
            ports.push((ip(id), port(wan.egress)?, port(wan.ingress)?));
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

/// A seed for each link.
fn mixed(seed: u64, number: u64) -> u64 {
    (seed ^ number.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
