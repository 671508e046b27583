//! A checked fabric file, and the addresses at which its gateways reach each other.

use super::entry::GatewayAddresses;
use super::fabric_tables::{FabricTables, read_fabric_tables};
use super::keys;
use crate::config::config_faults::ConfigFaults;
use crate::config::config_source::{self, ConfigSource};
use crate::config::section::read_root_section;
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::peer_addresses::{PeerAddress, PeerAddresses};
use crate::wan::link::controller_policy::LinkPolicies;
use hier_collectives::ids::GatewayId;
use hier_collectives::membership::FabricVersion;
use hier_collectives::topology::{Fabric, Patience, Quorum};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// A fabric, the addresses of its gateways, and the policies of its links.
#[derive(Debug, Clone)]
pub struct FabricFile {
    path: PathBuf,
    fabric: Fabric,
    addresses: Vec<GatewayAddresses>,
    mtu_pinned: bool,
    policies: LinkPolicies,
    version: FabricVersion,
    /// The spelling of each value, by key path, to name the keys that another reading changes.
    spelled_values: BTreeMap<String, String>,
    /// The line of each key, by key path, for faults of files that refer to this one.
    lines: BTreeMap<String, usize>,
}

/// Two readings are equal where they have one path and one meaning, however values are spelled.
impl PartialEq for FabricFile {
    fn eq(&self, other: &Self) -> bool {
        let Self { path, fabric, addresses, mtu_pinned, policies, version, .. } = self;
        (path, fabric, addresses) == (&other.path, &other.fabric, &other.addresses)
            && (mtu_pinned, policies) == (&other.mtu_pinned, &other.policies)
            && version.number == other.version.number
    }
}

impl FabricFile {
    /// Reads and checks a fabric file.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigFaults> {
        let text = config_source::read_config_source(path)?;
        Self::parse(path, &text)
    }

    /// Checks the text of a fabric file; `path` names the file in faults.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigFaults> {
        let has_key = |key| config_source::config_source_has_root_key(text, key);
        if has_key("fabric") && has_key("gateway") {
            return Err(ConfigFaults::file_of_other_kind(path, "region", "fabric"));
        }
        let source = ConfigSource::new(path, text);
        let FabricTables { fabric, mut addresses, mtu_pinned, policies, number } =
            read_root_section(&source, &keys::FABRIC_FILE_TABLE, read_fabric_tables)?;
        let of_gateway = |id| addresses.remove(&fabric.gateway(id).name).unwrap_or_default();
        let addresses = fabric.gateway_ids().map(of_gateway).collect();
        let (path, spelled_values) = (path.to_owned(), source.spelled_values());
        let lines = source.lines_of_keys();
        let version = version_of_text(number, text);
        Ok(Self { path, fabric, addresses, mtu_pinned, policies, version, spelled_values, lines })
    }

    /// Returns the key paths whose values differ between two readings, such as
    /// `link.east-west.rate`; none where both readings have one meaning.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        if self == other {
            return Vec::new();
        }
        let (old, new) = (&self.spelled_values, &other.spelled_values);
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
    }

    /// Returns the line of a key path, such as `region.east.gateway.east-0.lan`, if the file has it.
    pub fn line_of_key(&self, key: &str) -> Option<usize> {
        self.lines.get(key).copied()
    }

    /// Returns the path of the file that the fabric was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the fabric that the file describes, valid by construction.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the first WAN address of a gateway that is no host name; `None` without a WAN port, and
    /// for a gateway that no other can dial.
    pub fn address(&self, gateway: GatewayId) -> Option<SocketAddr> {
        self.lane_addresses(gateway)?.first_ip_address()
    }

    /// Returns the WAN addresses of a gateway's lanes; `None` without a WAN port, and for a gateway that
    /// no other can dial.
    pub fn lane_addresses(&self, gateway: GatewayId) -> Option<&PeerAddresses> {
        self.addresses.get(usize::from(gateway.0))?.wan.as_ref()
    }

    /// Returns whether a gateway has a WAN port and no address at which other regions could dial it, as
    /// behind a NAT. It dials all others then.
    pub fn dials_only(&self, gateway: GatewayId) -> bool {
        self.fabric.gateway(gateway).wan.is_some() && self.lane_addresses(gateway).is_none()
    }

    /// Returns the unspecified address with a port, of the family of the peers of a gateway, or of IPv4
    /// where they have host names. It is for a gateway with a host name or without an address.
    pub fn any_address(&self, gateway: GatewayId, port: u16) -> LaneAddresses {
        let any: IpAddr = match self.first_peer_address(gateway) {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(any, port).into()
    }

    /// Returns an IP address of a gateway of another region to which this one connects; `None` where all
    /// have host names.
    pub fn first_peer_address(&self, gateway: GatewayId) -> Option<SocketAddr> {
        let region = |id: GatewayId| self.fabric.gateway(id).region;
        let is_peer = |id: &GatewayId| self.fabric.link(region(gateway), region(*id)).is_some();
        self.fabric.gateway_ids().filter(is_peer).find_map(|id| self.address(id))
    }

    /// Returns the LAN addresses at which the other gateways of its region reach a gateway's lanes,
    /// if given.
    pub fn lan_addresses(&self, gateway: GatewayId) -> Option<&PeerAddresses> {
        self.addresses.get(usize::from(gateway.0))?.lan.as_ref()
    }

    /// Returns the address at which gateway `one` reaches the first lane of gateway `other` in its
    /// region: `lan` when both gateways have one, else `wan` when both have one.
    pub fn address_within_region(&self, one: GatewayId, other: GatewayId) -> Option<&PeerAddress> {
        let lan = self.lan_addresses(other).filter(|_| self.lan_addresses(one).is_some());
        let port = || self.lane_addresses(other).filter(|_| self.lane_addresses(one).is_some());
        lan.or_else(port).map(PeerAddresses::first)
    }

    /// Counts the networks on which a gateway has lanes, from 0 to 2: the WAN and the LAN, each
    /// when the gateway has a peer there.
    pub fn count_lane_networks(&self, me: GatewayId) -> usize {
        let fabric = &self.fabric;
        let on_both = |of: &dyn Fn(GatewayId) -> bool, other| of(me) && of(other);
        let (at_port, on_lan) =
            (|id| fabric.gateway(id).wan.is_some(), |id| self.lan_addresses(id).is_some());
        let region = |id| fabric.gateway(id).region;
        let over_lan = |id| region(id) == region(me) && on_both(&on_lan, id);
        let over_port = |id| {
            let joined = region(id) == region(me) || fabric.link(region(me), region(id)).is_some();
            joined && on_both(&at_port, id) && !over_lan(id)
        };
        let others = || fabric.gateway_ids().filter(|id| *id != me);
        usize::from(others().any(over_port)) + usize::from(others().any(over_lan))
    }

    /// Returns whether the file gives the MTU. Otherwise lanes probe for the largest packet that
    /// arrives.
    pub fn mtu_pinned(&self) -> bool {
        self.mtu_pinned
    }

    /// Returns the rate schedules and congestion controllers of the links.
    pub fn policies(&self) -> &LinkPolicies {
        &self.policies
    }

    /// Returns the version of the file: its number, and the SHA-256 of its text if it has one.
    pub fn version(&self) -> FabricVersion {
        self.version
    }

    /// Returns the SHA-256 of the parts on which all gateways must agree. They are the fabric's
    /// name and MTU, names of regions and gateways, ranks, which gateways have a WAN port, which of
    /// them can be dialled, which regions are linked, the quorum, and a patience other than the usual.
    /// Addresses and rates may differ.
    /// docs/protocol.md section 1 has the text.
    pub fn identity(&self) -> [u8; 32] {
        let mut text =
            format!("landbridge fabric 1\n{} {}\n", self.fabric.name(), self.fabric.mtu());
        for region in self.fabric.regions() {
            text.push_str(&format!("region {}\n", region.name));
            for id in region.gateways.clone().map(GatewayId) {
                let gateway = self.fabric.gateway(id);
                // Both ends must agree on who dials.
                let wan = match gateway.wan {
                    Some(_) if self.dials_only(id) => "dials",
                    Some(_) => "true",
                    None => "false",
                };
                let ranks = &gateway.ranks;
                let line = format!("{} {} {} {wan}\n", gateway.name, ranks.start, ranks.end);
                text.push_str(&line);
            }
        }
        for link in self.fabric.links() {
            let ends = [link.a, link.b].map(|end| &*self.fabric.region(end).name);
            text.push_str(&format!("link {} {}\n", ends[0], ends[1]));
        }
        match self.fabric.quorum() {
            // Fabrics without the key keep the identity that they had before there was one.
            Quorum::All => {}
            Quorum::Count(least) => text.push_str(&format!("quorum {least}\n")),
            Quorum::Votes { least, votes } => {
                text.push_str(&format!("quorum {least}\n"));
                for (region, votes) in self.fabric.regions().iter().zip(votes) {
                    text.push_str(&format!("votes {} {votes}\n", region.name));
                }
            }
            Quorum::Named(named) => {
                for id in named {
                    text.push_str(&format!("quorum {}\n", self.fabric.region(*id).name));
                }
            }
        }
        let patience = self.fabric.patience();
        if patience != Patience::default() {
            text.push_str(&format!("patience {}\n", patience.span().ns()));
        }
        sha256_of_fabric(&text)
    }
}

/// Returns the version of a file with this number and text. Files without a number are all alike.
fn version_of_text(number: u64, text: &str) -> FabricVersion {
    match number {
        0 => FabricVersion::default(),
        number => FabricVersion { number, digest: sha256_of_fabric(text) },
    }
}

/// Returns the SHA-256 of the text of a fabric, or of its identity.
pub(crate) fn sha256_of_fabric(text: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}
