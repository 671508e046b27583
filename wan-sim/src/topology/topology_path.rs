//! Every direction of every link and every port, as all front ends number and seed them.

use super::topology_file::Topology;
use crate::{Conditions, EmulatedLink, LinkSpec, Script};
use std::net::{Ipv4Addr, Ipv6Addr};

/// One direction of a link, or one side of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyPath {
    /// Its place in the topology.
    pub place: PathPlace,
    /// `a_b`, `a_egress` or `a_ingress`.
    pub name: String,
    /// Decides its random draws.
    pub seed: u64,
    /// The properties at the start.
    pub spec: LinkSpec,
    /// The scripted changes and drops.
    pub script: Script,
    /// The recorded capacity, parallel paths and cross traffic.
    pub conditions: Conditions,
}

/// The place at which packets meet a [`TopologyPath`]; sites by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathPlace {
    /// Between two sites.
    Link {
        /// The sending site.
        from: usize,
        /// The receiving one.
        to: usize,
    },
    /// Before all links from a site.
    Egress(usize),
    /// After all links to a site.
    Ingress(usize),
}

impl TopologyPath {
    /// Builds the idle link of this path, with its script, its conditions and its seed.
    pub fn build_link(&self) -> EmulatedLink {
        EmulatedLink::under(self.spec, self.script.clone(), &self.conditions, self.seed)
    }
}

impl Topology {
    /// Returns every direction of every link, then every port. A path's place in this list decides
    /// its seed, so that all front ends treat equal packets alike.
    pub fn paths(&self) -> Vec<TopologyPath> {
        let mut paths = Vec::new();
        let mut add = |place, name, spec, (script, conditions): (Script, Conditions)| {
            // Every direction draws for itself.
            let seed = self.seed.wrapping_mul(0x1_0001).wrapping_add(paths.len() as u64);
            paths.push(TopologyPath { place, name, seed, spec, script, conditions });
        };
        for link in &self.links {
            let there = (link.a_to_b_script.clone(), link.a_to_b_conditions.clone());
            let back = (link.b_to_a_script.clone(), link.b_to_a_conditions.clone());
            for (from, to, spec, rest) in
                [(link.a, link.b, link.a_to_b, there), (link.b, link.a, link.b_to_a, back)]
            {
                let name = format!("{}_{}", self.sites[from], self.sites[to]);
                add(PathPlace::Link { from, to }, name, spec, rest);
            }
        }
        for (site, (name, port)) in self.sites.iter().zip(&self.ports).enumerate() {
            for (place, way, spec) in [
                (PathPlace::Egress(site), "egress", port.egress),
                (PathPlace::Ingress(site), "ingress", port.ingress),
            ] {
                if let Some(spec) = spec {
                    add(place, format!("{name}_{way}"), spec, Default::default());
                }
            }
        }
        paths
    }
}

/// Returns the addresses of a site in a lab and on a virtual network, by its index below
/// [`SITES_MAX`].
pub fn topology_path_site_addresses(site: usize) -> (Ipv4Addr, Ipv6Addr) {
    let number = site as u16 + 1;
    let [high, low] = number.to_be_bytes();
    (Ipv4Addr::new(10, 77, high, low), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number))
}

/// 1,000 sites: the most that a lab may have; a lab with more is refused. The last two bytes of an
/// IP address number the sites.
pub const SITES_MAX: usize = 1000;
