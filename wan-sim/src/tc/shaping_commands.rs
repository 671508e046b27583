//! The commands for each host: classes by destination, with netem below each.

use super::words::tc_words_of_netem;
use crate::topology::{SitePort, Topology};
use crate::{Conditions, LinkSpec, Script};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The commands for one site's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCommands {
    /// The site.
    pub site: String,
    /// The network device they are for.
    pub device: String,
    /// To shape what it sends: program and arguments, in order.
    pub apply: Vec<String>,
    /// To undo it.
    pub remove: [String; 2],
    /// The words of each netem, with its handle.
    pub netems: Vec<(String, String)>,
    /// The class, such as `1:1`, of each destination.
    pub destinations: BTreeMap<IpAddr, String>,
}

/// A link that `tc` cannot make. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {reason}")]
pub struct TcError {
    /// The link, as from and to, or the site.
    pub subject: String,
    /// The limit of netem that it meets, or the key that is missing.
    pub reason: &'static str,
}

/// Returns the commands for the host of every site with a link. `device` is the network device of a
/// site for which the file names none.
///
/// # Errors
/// [`TcError`], for the first site or link that cannot be applied, such as a link that netem
/// cannot express, or a site without a device.
pub fn render_shaping_commands(
    topology: &Topology,
    device: Option<&str>,
) -> Result<Vec<HostCommands>, TcError> {
    let mut hosts = Vec::new();
    for (site, name) in topology.sites.iter().enumerate() {
        let directions = topology.links.iter().filter_map(|link| match site {
            _ if site == link.a => {
                Some((link.b, &link.a_to_b, (&link.a_to_b_script, &link.a_to_b_conditions)))
            }
            _ if site == link.b => {
                Some((link.a, &link.b_to_a, (&link.b_to_a_script, &link.b_to_a_conditions)))
            }
            _ => None,
        });
        let directions: Vec<_> = directions.collect();
        if directions.is_empty() {
            continue;
        }
        let error = |reason| TcError { subject: format!("site {name}"), reason };
        if topology.ports[site] != SitePort::default() {
            return Err(error(PORT_LIMIT_REFUSED));
        }
        let device = topology.hosts[site].device.as_deref().or(device);
        let device = device.ok_or(error("name its device in the file, or give --device"))?;
        hosts.push(host_shaping_commands(topology, site, device, &directions)?);
    }
    Ok(hosts)
}

/// Returns the commands for the host of one site. Each of `directions` holds four things: the index
/// of the receiving site, the link, its script and its conditions.
fn host_shaping_commands(
    topology: &Topology,
    site: usize,
    device: &str,
    directions: &[(usize, &LinkSpec, (&Script, &Conditions))],
) -> Result<HostCommands, TcError> {
    let mut apply = vec![
        // What goes elsewhere passes unshaped. First, as it is refused where anything else shapes.
        format!("tc qdisc add dev {device} root handle 1: htb default 0"),
        // Netem decides over whole buffers. TCP makes buffers of many segments whatever the
        // device's offloads are, but not of more than this.
        shaping_segments_command(device, 1),
    ];
    let (mut netems, mut destinations) = (Vec::new(), BTreeMap::new());
    for (class, (to, spec, (script, conditions))) in (1..).zip(directions) {
        let (from, to_name) = (&topology.sites[site], &topology.sites[*to]);
        let error = |reason| TcError { subject: format!("{from} to {to_name}"), reason };
        if !script.is_empty() {
            return Err(error("netem keeps no schedule: leave out changes and drops"));
        }
        if !conditions.is_empty() {
            return Err(error(
                "netem replays no capacity, hashes no flows and makes no traffic: leave out \
                 capacity, parallel and cross",
            ));
        }
        let words = tc_words_of_netem(spec, topology.mtu).map_err(error)?;
        let handle = format!("{class}0:");
        apply.push(format!(
            "tc class add dev {device} parent 1: classid 1:{class} htb rate {CLASS_RATE} quantum \
             60000"
        ));
        apply.push(format!(
            "tc qdisc add dev {device} parent 1:{class} handle {handle} netem {words}"
        ));
        let addresses = &topology.hosts[*to].addresses;
        if addresses.is_empty() {
            return Err(error("the receiving site has no addresses in the file"));
        }
        for address in addresses {
            // Several gateways of a region may be on one host.
            match destinations.insert(*address, format!("1:{class}")) {
                None => {}
                Some(earlier) if earlier == format!("1:{class}") => continue,
                Some(_) => return Err(error("another receiving site has the same address")),
            }
            let (protocol, prio, match_words) = match address {
                IpAddr::V4(v4) => ("ip", 1, format!("ip dst {v4}/32")),
                IpAddr::V6(v6) => ("ipv6", 2, format!("ip6 dst {v6}/128")),
            };
            apply.push(format!(
                "tc filter add dev {device} parent 1: protocol {protocol} prio {prio} u32 match \
                 {match_words} flowid 1:{class}"
            ));
        }
        netems.push((handle, words));
    }
    let remove = shaping_removal_commands(device, GSO_SEGMENTS_DEFAULT);
    let (site, device) = (topology.sites[site].clone(), device.to_owned());
    Ok(HostCommands { site, device, apply, remove, netems, destinations })
}

/// Returns the commands that remove the root queue with all below it, and let TCP make buffers of
/// `segments` segments.
pub fn shaping_removal_commands(device: &str, segments: u32) -> [String; 2] {
    [format!("tc qdisc del dev {device} root"), shaping_segments_command(device, segments)]
}

/// Returns the command that lets TCP make buffers of `segments` segments for a device.
pub fn shaping_segments_command(device: &str, segments: u32) -> String {
    format!("ip link set dev {device} gso_max_segs {segments}")
}

/// Text of the error about a port that limits several links together, which netem cannot do.
const PORT_LIMIT_REFUSED: &str = "netem cannot limit links together: raise egress and ingress to \
                                  at least the rate of all its links together (in a fabric, those \
                                  of its gateways), or leave them out of a lab";

/// 1 Tbit/s, as `tc` spells it: the rate of every `htb` class. The classes only select a netem
/// queue and shape nothing.
pub(super) const CLASS_RATE: &str = "1tbit";

/// 65,535 TCP segments in one buffer of a network device: the kernel's default for `gso_max_segs`.
/// It is restored when shaping is removed, unless the device reports another.
pub const GSO_SEGMENTS_DEFAULT: u32 = 65_535;
