//! A lab or fabric file on the virtual network.

use super::net::VirtualNet;
use crate::topology::{Place, Topology, addresses};
use std::net::IpAddr;

impl VirtualNet {
    /// Makes every link and port of `topology`, with their schedules counted from the start of
    /// this network, as `wan-sim lab` would: equal arrivals meet equal fates. Returns the address
    /// of each site, by its index.
    pub fn lay_out(&self, topology: &Topology) -> Vec<IpAddr> {
        let address = |site: usize| IpAddr::V4(addresses(site).0);
        let mut state = self.medium.lock();
        for path in topology.paths() {
            let link = path.link();
            match path.place {
                Place::Link { from, to } => {
                    state.set_link(address(from), address(to), link);
                }
                Place::Egress(site) => {
                    state.ports.entry(address(site)).or_default().egress = Some(link);
                }
                Place::Ingress(site) => {
                    state.ports.entry(address(site)).or_default().ingress = Some(link);
                }
            }
        }
        (0..topology.sites.len()).map(address).collect()
    }
}
