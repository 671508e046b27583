//! Reads the tables of a region file.

use super::keys;
use crate::config::fabric::FabricFile;
use crate::config::key::Table;
use crate::config::reader::{Section, Source};
use crate::config::values::{FromValue, Name, is_name};
use crate::wan::connect::addresses::LaneAddresses;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use units::ByteCount;

/// One gateway's settings on its host. Paths are resolved against the file's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Its number in the fabric.
    pub id: GatewayId,
    /// Its name in the fabric.
    pub name: String,
    /// Unix socket where its ranks attach.
    pub socket: PathBuf,
    /// Addresses that its lanes bind, where those are not the fabric's: behind NAT or a relay.
    pub listen: Option<LaneAddresses>,
    /// Whether lanes may hand several packets to the system at once (UDP GSO). A qdisc such as
    /// netem takes those for one packet, and drops them together.
    pub segmentation_offload: bool,
    /// TCP address of `/metrics`, `/status`, `/healthz` and `/readyz`.
    pub status: SocketAddr,
    /// Its certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificate of the CA that all gateways trust, PEM.
    pub ca: PathBuf,
    /// Memory for QUIC windows, lanes, and the partial sums of all jobs. Partial sums get what
    /// windows and lanes leave, and at least half. Arenas of ranks are not part of it.
    pub memory: ByteCount,
}

/// One training job that may attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobConfig {
    /// Its name.
    pub name: String,
    /// File with the token that its ranks present.
    pub token: PathBuf,
    /// Sum of its ranks' arenas on one gateway, at most.
    pub memory: ByteCount,
    /// Its share of a link in relation to other jobs', from 1 to 1000.
    pub weight: NonZeroU32,
}

/// The content of a region file.
pub(super) struct RegionTables {
    /// The fabric that the file names.
    pub fabric: FabricFile,
    /// Gateways by name.
    pub gateways: BTreeMap<String, GatewayConfig>,
    /// Jobs by name.
    pub jobs: BTreeMap<String, JobConfig>,
}

/// Reads all tables of a region file, and the fabric file; `None` when faults were recorded.
pub(super) fn read_region(source: &Source<'_>, root: &Section<'_>) -> Option<RegionTables> {
    let fabric = root.required(&keys::FABRIC).map(|path| source.resolve(&path));
    let fabric = fabric.and_then(|path| match FabricFile::load(&path) {
        Ok(fabric) => Some(fabric),
        Err(faults) => {
            source.adopt(faults);
            None
        }
    });
    let mut gateways = BTreeMap::new();
    let mut region = None;
    for (name, section) in some_tables(root, &keys::GATEWAY) {
        let known = fabric.as_ref().and_then(|fabric| {
            find(source, &section, fabric.fabric(), &name).map(|id| (fabric, id))
        });
        if let Some((fabric, id)) = known {
            let of = fabric.fabric().gateway(id).region;
            if *region.get_or_insert(of) != of {
                let problem = "is of another region than the gateways before it".to_owned();
                source.fault_at(section.key(), problem, "one file per region".to_owned());
            }
            check_reachable(source, &section, fabric, id);
            check_listen(source, &section, fabric, id);
        }
        let config = read_gateway(source, &name, known.map(|(_, id)| id), &section);
        gateways.extend(config.map(|config| (name, config)));
    }
    let mut jobs = BTreeMap::new();
    for (name, section) in some_tables(root, &keys::JOB) {
        if !is_name(&name) {
            let problem = format!("`{name}` is not a valid name");
            source.fault_at(section.key(), problem, Name::TYPE.accepted.to_owned());
        }
        jobs.extend(read_job(source, &name, &section).map(|job| (name, job)));
    }
    Some(RegionTables { fabric: fabric?, gateways, jobs })
}

/// The tables of one kind, of which there must be one.
fn some_tables<'a>(root: &Section<'a>, table: &'static Table) -> Vec<(String, Section<'a>)> {
    let tables = root.tables(table);
    if tables.is_empty() {
        root.missing(table.name, table.accepted);
    }
    tables
}

/// The gateway's number in the fabric; records a name that the fabric does not have.
fn find(
    source: &Source<'_>,
    section: &Section<'_>,
    fabric: &Fabric,
    name: &str,
) -> Option<GatewayId> {
    let id = fabric.gateway_named(name);
    if id.is_none() {
        let known: Vec<&str> = fabric.gateways().iter().map(|known| known.name.as_str()).collect();
        let accepted = format!("a gateway of the fabric: {}", known.join(", "));
        source.fault_at(section.key(), "is not in the fabric".to_owned(), accepted);
    }
    id
}

/// Records a gateway that another gateway of its region can reach neither over the LAN nor over
/// the WAN.
fn check_reachable(source: &Source<'_>, section: &Section<'_>, file: &FabricFile, id: GatewayId) {
    let fabric = file.fabric();
    let others = fabric.region(fabric.gateway(id).region).gateways.clone().map(GatewayId);
    let apart =
        |other: &GatewayId| *other != id && file.address_within_region(id, *other).is_none();
    let Some(other) = others.into_iter().find(apart) else { return };
    let (own, other) = (&fabric.gateway(id).name, &fabric.gateway(other).name);
    let problem = format!("has no way to gateway `{other}` of its region");
    let accepted = format!("`lan` for {own} and {other} in {}", file.path().display());
    source.fault_at(section.key(), problem, accepted);
}

/// Records a `listen` key of a gateway that has no WAN port to listen at.
fn check_listen(source: &Source<'_>, section: &Section<'_>, file: &FabricFile, id: GatewayId) {
    if section.optional(&keys::LISTEN).is_some() && file.address(id).is_none() {
        let problem = "the gateway has no WAN port in the fabric".to_owned();
        let accepted = format!("no `{}` key", keys::LISTEN.name);
        source.fault_at(&section.key_of(keys::LISTEN.name), problem, accepted);
    }
}

fn read_gateway(
    source: &Source<'_>,
    name: &str,
    id: Option<GatewayId>,
    section: &Section<'_>,
) -> Option<GatewayConfig> {
    let path = |key| section.required(key).map(|path: PathBuf| source.resolve(&path));
    let (socket, certificate) = (path(&keys::SOCKET), path(&keys::CERTIFICATE));
    let (key, ca) = (path(&keys::PRIVATE_KEY), path(&keys::CA));
    let listen = section.optional(&keys::LISTEN).map(|bind| bind.0);
    let segmentation_offload = section.optional(&keys::SEGMENTATION_OFFLOAD).unwrap_or(true);
    let status = section.required(&keys::STATUS);
    let memory = section.required(&keys::GATEWAY_MEMORY);
    let too_long = |path: &&PathBuf| path.as_os_str().len() > SOCKET_PATH_MAX_BYTES;
    if let Some(long) = socket.as_ref().filter(too_long) {
        let problem = format!("is {} bytes long as {}", long.as_os_str().len(), long.display());
        let accepted = format!("a path of at most {SOCKET_PATH_MAX_BYTES} bytes");
        source.fault_at(&section.key_of(keys::SOCKET.name), problem, accepted);
    }
    section.close();
    Some(GatewayConfig {
        id: id?,
        name: name.to_owned(),
        socket: socket?,
        listen,
        segmentation_offload,
        status: status?.0,
        certificate: certificate?,
        key: key?,
        ca: ca?,
        memory: memory?.0,
    })
}

fn read_job(source: &Source<'_>, name: &str, section: &Section<'_>) -> Option<JobConfig> {
    let token = section.required(&keys::TOKEN).map(|path| source.resolve(&path));
    let memory = section.required(&keys::JOB_MEMORY);
    let weight = section.optional(&keys::WEIGHT).unwrap_or(NonZeroU32::MIN);
    section.close();
    Some(JobConfig { name: name.to_owned(), token: token?, memory: memory?.0, weight })
}

/// 107 bytes: the path that `sockaddr_un` holds on Linux, less the terminating zero.
const SOCKET_PATH_MAX_BYTES: usize = 107;
