//! A lab or fabric file on the virtual network.

use super::net::VirtualNet;
use crate::topology::{PathPlace, Topology, topology_path_site_addresses};
use std::net::IpAddr;

impl VirtualNet {
    /// Makes every link and port of `topology`, with schedules that count from the start of the
    /// network. Returns the address of each site, by its index.
    ///
    /// Equal arrivals meet equal fates here and in `wan-sim lab`.
    pub fn lay_out_sites(&self, topology: &Topology) -> Vec<IpAddr> {
        let address = |site: usize| IpAddr::V4(topology_path_site_addresses(site).0);
        let mut state = self.medium.lock_state();
        for path in topology.paths() {
            let link = path.build_link();
            match path.place {
                PathPlace::Link { from, to } => {
                    state.set_link(address(from), address(to), link);
                }
                PathPlace::Egress(site) => {
                    state.ports.entry(address(site)).or_default().egress = Some(link);
                }
                PathPlace::Ingress(site) => {
                    state.ports.entry(address(site)).or_default().ingress = Some(link);
                }
            }
        }
        (0..topology.sites.len()).map(address).collect()
    }
}
