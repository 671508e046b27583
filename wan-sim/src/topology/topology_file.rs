//! Reading a lab or fabric file.

use super::keys::{
    LinkError, RawLink, build_condition_keys, build_script_of_schedule_keys,
    deserialize_optional_spelling, deserialize_whole_mtu, deserialize_whole_seed,
};
use super::preset;
use super::site_link::SiteLink;
use super::site_port::{RawSitePort, SitePort};
use crate::{Conditions, LinkSpec, QueueSize, Script};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use units::{BitRate, Span};

/// Sites and links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The sites' names, in alphabetical order.
    pub sites: Vec<String>,
    /// Links, at most one between two sites, in order of their sites.
    pub links: Vec<SiteLink>,
    /// The port that the links of each site share.
    pub ports: Vec<SitePort>,
    /// Decides every random draw.
    pub seed: u64,
    /// Longest IP packet, in bytes.
    pub mtu: u16,
    /// The host of each site on a real testbed; used by `tc` alone.
    pub hosts: Vec<Host>,
}

/// A site on a real testbed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// Addresses that others send to.
    pub addresses: Vec<IpAddr>,
    /// The network device towards the others.
    pub device: Option<String>,
}

/// A file that describes no topology. The caller's fault.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{}: {source}", escape_topology_file_controls(.path.display()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The text is not valid for such a file.
    #[error("{}:{line}: {}", escape_topology_file_controls(.path.display()), escape_topology_file_controls(.message))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The fault and the accepted values, in one line.
        message: String,
    },
    /// The values are valid, but impossible together.
    #[error(
        "{}: {}: {}",
        escape_topology_file_controls(.path.display()),
        escape_topology_file_controls(.key),
        escape_topology_file_controls(.message)
    )]
    Impossible {
        /// The file.
        path: PathBuf,
        /// The table.
        key: String,
        /// The fault and the accepted values.
        message: String,
    },
}

/// Escapes control characters of names from the file, so that none breaks the line or controls the
/// terminal.
fn escape_topology_file_controls(text: impl fmt::Display) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.to_string().chars().map(escaped).collect()
}

/// The keys of a lab file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabFile {
    fabric: Option<PathBuf>,
    #[serde(default, deserialize_with = "deserialize_whole_seed")]
    seed: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_whole_mtu")]
    mtu: Option<u16>,
    #[serde(default)]
    site: BTreeMap<String, Site>,
    #[serde(default)]
    link: BTreeMap<String, RawLink>,
}

/// The keys of a site of a lab file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Site {
    #[serde(default)]
    addresses: Vec<IpAddr>,
    device: Option<String>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    egress: Option<BitRate>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    ingress: Option<BitRate>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    port_queue: Option<QueueSize>,
}

/// The keys of a fabric that a topology needs; the gateway checks the rest.
#[derive(Deserialize)]
struct FabricFile {
    #[serde(default, deserialize_with = "deserialize_whole_mtu")]
    mtu: Option<u16>,
    region: BTreeMap<String, Region>,
    #[serde(default)]
    link: BTreeMap<String, RawLink>,
}

/// The keys of a region that a topology needs.
#[derive(Deserialize)]
struct Region {
    #[serde(default)]
    gateway: BTreeMap<String, Gateway>,
}

/// The keys of a gateway that a topology needs.
#[derive(Deserialize)]
struct Gateway {
    wan: Option<TopologyFileWanAddresses>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    egress: Option<BitRate>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    ingress: Option<BitRate>,
}

/// The WAN addresses of a gateway.
#[derive(Deserialize)]
#[serde(untagged)]
enum TopologyFileWanAddresses {
    One(SocketAddr),
    Several(Vec<SocketAddr>),
}

impl TopologyFileWanAddresses {
    /// Returns the addresses of the gateway, one or several.
    fn as_slice(&self) -> &[SocketAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Several(addresses) => addresses,
        }
    }
}

/// A site of a lab file or a fabric file.
struct TopologyFileSite {
    name: String,
    host: Host,
    port: RawSitePort,
}

impl From<(String, Site)> for TopologyFileSite {
    /// Takes the host and the port from the keys of a lab's site.
    fn from((name, site): (String, Site)) -> Self {
        let Site { addresses, device, egress, ingress, port_queue: queue } = site;
        Self {
            name,
            host: Host { addresses, device },
            port: RawSitePort { egress, ingress, queue },
        }
    }
}

impl From<(String, Region)> for TopologyFileSite {
    /// Makes a region one site. Its port has the sum of the rates of the gateways with a WAN
    /// address.
    fn from((name, region): (String, Region)) -> Self {
        let on_wan: Vec<_> =
            region.gateway.values().filter(|gateway| gateway.wan.is_some()).collect();
        let wans = on_wan.iter().filter_map(|gateway| gateway.wan.as_ref());
        let wans = wans.flat_map(TopologyFileWanAddresses::as_slice);
        let host = Host { addresses: wans.map(|wan| wan.ip()).collect(), device: None };
        let sum = |rate: fn(&Gateway) -> Option<BitRate>| {
            let mut rates = on_wan.iter().map(|gateway| rate(gateway));
            let sum =
                rates.try_fold(0u64, |sum, rate| Some(sum.saturating_add(rate?.bits_per_second())));
            let sum = sum.filter(|_| !on_wan.is_empty());
            sum.map(BitRate::from_bits_per_second)
        };
        let (egress, ingress) = (sum(|gateway| gateway.egress), sum(|gateway| gateway.ingress));
        Self { name, host, port: RawSitePort { egress, ingress, queue: None } }
    }
}

/// Returns the sites of a lab file, or the regions of a fabric file as sites, by name.
fn raw_sites_of_topology_file<T>(
    sites: BTreeMap<String, T>,
) -> impl Iterator<Item = TopologyFileSite>
where
    TopologyFileSite: From<(String, T)>,
{
    sites.into_iter().map(TopologyFileSite::from)
}

impl Topology {
    /// Reads a lab file or a fabric file from `path`.
    ///
    /// # Errors
    /// [`FileError`], in one line.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(path, &read_topology_file(path)?)
    }

    /// Returns the least round trip of any link at any time, without queueing; zero where there is
    /// no link. Fidelity limits depend on it.
    pub fn shortest_round_trip(&self) -> Span {
        let round_trips = self.links.iter().map(SiteLink::shortest_round_trip);
        round_trips.min().unwrap_or_default()
    }

    /// Parses the text of a lab or fabric file. The fabric that a lab names is found relative to
    /// `path`.
    ///
    /// # Errors
    /// [`FileError`], in one line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let table: toml::Table = parse_topology_file(path, text)?;
        if table.contains_key("region") {
            let fabric: FabricFile = parse_topology_file(path, text)?;
            let sites = raw_sites_of_topology_file(fabric.region).collect();
            return assemble_topology_file(path, sites, fabric.link, fabric.mtu, None);
        }
        let lab: LabFile = parse_topology_file(path, text)?;
        let mut sites: Vec<_> = raw_sites_of_topology_file(lab.site).collect();
        let mut links = lab.link;
        for (name, link) in &links {
            if let Some(key) = link.fabric_only_key() {
                let key = format!("link.{name}.{key}");
                let message = "is how gateways use a link: accepted in a fabric only".to_owned();
                return Err(FileError::Impossible { path: path.to_owned(), key, message });
            }
        }
        let mut mtu = lab.mtu;
        if let Some(fabric) = lab.fabric {
            let fabric_path = path.parent().unwrap_or(Path::new("")).join(fabric);
            let fabric: FabricFile =
                parse_topology_file(&fabric_path, &read_topology_file(&fabric_path)?)?;
            mtu = mtu.or(fabric.mtu);
            sites.extend(raw_sites_of_topology_file(fabric.region));
            sites.sort_by(|one, other| one.name.cmp(&other.name));
            for (name, base) in fabric.link {
                let link = links.remove(&name).unwrap_or_default();
                links.insert(name, link.with_defaults_from(&base));
            }
        }
        assemble_topology_file(path, sites, links, mtu, lab.seed)
    }
}

/// Returns the network device that a lab file names for a site, even where other keys are invalid.
pub fn topology_file_device(path: &Path, site: &str) -> Option<String> {
    let table: toml::Table = read_topology_file(path).ok()?.parse().ok()?;
    Some(table.get("site")?.get(site)?.get("device")?.as_str()?.to_owned())
}

/// Builds a topology from sites, links and defaults, and checks that they fit together. `path` is
/// for errors.
fn assemble_topology_file(
    path: &Path,
    raw: Vec<TopologyFileSite>,
    raw_links: BTreeMap<String, RawLink>,
    mtu: Option<u16>,
    seed: Option<u64>,
) -> Result<Topology, FileError> {
    let impossible = |key: &str, message: String| FileError::Impossible {
        path: path.to_owned(),
        key: key.to_owned(),
        message,
    };
    let sites: Vec<_> = raw.iter().map(|site| site.name.clone()).collect();
    if sites.is_empty() {
        return Err(impossible("site", "there is none: give [site.NAME], or a fabric".to_owned()));
    }
    if let Some(twice) = sites.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = "is a site of the fabric already".to_owned();
        return Err(impossible(&format!("site.{}", twice[0]), message));
    }
    if let Some(name) = sites.iter().find(|name| !is_topology_file_site_name(name)) {
        let message = "a site's name is 1 to 40 of a-z, 0-9 and hyphens".to_owned();
        return Err(impossible(&format!("site.{name}"), message));
    }
    let mtu = mtu.unwrap_or(MTU_DEFAULT);
    let seed = seed.unwrap_or(SEED_DEFAULT);
    let mut links: Vec<SiteLink> = Vec::new();
    for (name, raw) in raw_links {
        let key = format!("link.{name}");
        let (a, b) = linked_sites_of_topology_file(&name, &sites).ok_or_else(|| {
            impossible(&key, format!("joins no two of the sites {}", sites.join(", ")))
        })?;
        if links.iter().any(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a)) {
            let message = format!("{} and {} are linked already", sites[a], sites[b]);
            return Err(impossible(&key, message));
        }
        // Every direction generates a capacity of its own.
        let seed = seed.wrapping_mul(0x1_0001).wrapping_add(2 * links.len() as u64);
        let direction = |own: &Option<Box<RawLink>>, seed| {
            build_topology_file_direction(path, seed, &raw, own.as_deref())
                .map_err(|message| impossible(&key, message))
        };
        let (a_to_b, a_to_b_script, a_to_b_conditions) = direction(&raw.forward, seed)?;
        let (b_to_a, b_to_a_script, b_to_a_conditions) =
            direction(&raw.backward, seed.wrapping_add(1))?;
        links.push(SiteLink {
            a,
            b,
            a_to_b,
            a_to_b_script,
            a_to_b_conditions,
            b_to_a,
            b_to_a_script,
            b_to_a_conditions,
        });
    }
    links.sort_by_key(|link| (link.a, link.b));
    let ports = raw.iter().enumerate().map(|(site, raw)| {
        let (out, into): (Vec<_>, Vec<_>) =
            links.iter().filter_map(|link| link.directions_of(site)).unzip();
        let port = raw.port.build(&out, &into);
        port.map_err(|message| impossible(&format!("site.{}", raw.name), message))
    });
    let ports = ports.collect::<Result<_, _>>()?;
    let hosts = raw.into_iter().map(|site| site.host).collect();
    Ok(Topology { sites, links, ports, seed, mtu, hosts })
}

/// Builds the link, the script and the conditions of one direction of the file at `path`. `seed`
/// decides a generated capacity. The keys `own` of the direction come before those of `link`, and
/// these before those of the preset.
fn build_topology_file_direction(
    path: &Path,
    seed: u64,
    link: &RawLink,
    own: Option<&RawLink>,
) -> Result<(LinkSpec, Script, Conditions), String> {
    if own.is_some_and(|own| own.forward.is_some() || own.backward.is_some()) {
        return Err("a direction has no directions of its own".to_owned());
    }
    let mut keys = own.cloned().unwrap_or_default().with_defaults_from(link);
    if let Some(name) = keys.preset.clone() {
        let preset = preset::find_preset(&name).ok_or_else(|| {
            format!("`{name}` is no preset; there are {}", preset::preset_names())
        })?;
        keys = keys.with_defaults_from(preset);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let conditions = build_condition_keys(&mut keys, folder, seed)?;
    let built = keys.build().and_then(|spec| Ok((spec, build_script_of_schedule_keys(&keys)?)));
    let (spec, script) = built.map_err(|error: LinkError| match error {
        LinkError::NoDelay => format!("{error}, or a preset: {}", preset::preset_names()),
        error => error.to_string(),
    })?;
    conditions.check(&spec).map_err(|error| error.to_string())?;
    Ok((spec, script, conditions))
}

/// Returns the indexes of the two sites that a link's name joins with a hyphen. Names of sites may
/// contain hyphens; an ambiguous name gives `None`.
fn linked_sites_of_topology_file(name: &str, sites: &[String]) -> Option<(usize, usize)> {
    let index = |wanted: &str| sites.iter().position(|site| site == wanted);
    let mut found = name.match_indices('-').filter_map(|(at, _)| {
        let (a, b) = (index(&name[..at])?, index(&name[at + 1..])?);
        (a != b).then_some((a, b))
    });
    found.next().filter(|_| found.next().is_none())
}

/// Returns whether a name is valid for hosts and namespaces: 1 to 40 of a-z, 0-9 and hyphens, the
/// first no hyphen.
fn is_topology_file_site_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=40).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-')
}

/// Reads a file of at most [`FILE_BYTES_MAX`].
fn read_topology_file(path: &Path) -> Result<String, FileError> {
    stdio::read_input_text_up_to(path, FILE_BYTES_MAX)
        .map_err(|source| FileError::Unreadable { path: path.to_owned(), source })
}

/// Parses TOML; the error names the line and, where possible, the key. `path` is for errors.
fn parse_topology_file<T: serde::de::DeserializeOwned>(
    path: &Path,
    text: &str,
) -> Result<T, FileError> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let before = span.start.min(text.len());
        let message = match (error.message(), text.get(span)) {
            ("duplicate key", Some(key)) => format!("`{key}` is given twice: give one"),
            // The parser's message does not name the key.
            (message, _) if message.starts_with("invalid type") => {
                let line = text[..before].rsplit('\n').next().unwrap_or_default();
                let key = line.rsplit(['{', ',']).next().unwrap_or_default();
                format!("`{}`: {message}", key.trim_end_matches([' ', '=']).trim())
            }
            (message, _) => message.replace('\n', ", "),
        };
        FileError::Wrong {
            path: path.to_owned(),
            line: text.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count() + 1,
            message,
        }
    })
}

/// 16 MiB: the longest lab or fabric file; a longer one is refused. The limit is chosen, far above
/// a file of a thousand sites and all their links.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// 1,500 bytes: the longest IP packet of a lab where the file states no MTU, as on Ethernet.
const MTU_DEFAULT: u16 = 1500;
/// 1: the seed of a lab's random draws where the file states none. Every run then draws the same.
const SEED_DEFAULT: u64 = 1;
