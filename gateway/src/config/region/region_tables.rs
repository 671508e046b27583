//! Reads the tables of a region file.

use super::bound_addresses::{bound_addresses_overlap, check_bound_addresses};
use super::gateway_config::{GatewayConfig, JobConfig};
use super::keys;
use crate::access::SOCKET_PATH_BYTES_MAX;
use crate::config::config_faults::Fault;
use crate::config::config_source::{ConfigSource, read_config_source};
use crate::config::config_value::{FromConfigValue, Name, is_valid_config_name_value};
use crate::config::fabric::FabricFile;
use crate::config::key::TableKeys;
use crate::config::section::Section;
use crate::local::socket::GatewaySocketMode;
use crate::wan::connect::lane_addresses::LaneAddresses;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use toml::de::DeValue;

/// The content of a region file.
pub(super) struct RegionTables {
    /// The fabric that the file names.
    pub fabric: FabricFile,
    /// Gateways by name.
    pub gateways: BTreeMap<String, GatewayConfig>,
    /// Jobs by name.
    pub jobs: BTreeMap<String, JobConfig>,
}

/// Loads the fabric file that a region file names; `None` when faults were recorded.
fn load_fabric_of_region_table(source: &ConfigSource<'_>, path: &Path) -> Option<FabricFile> {
    let text = match read_config_source(path) {
        Ok(text) => text,
        Err(faults) => {
            for Fault { problem, accepted, .. } in faults {
                let problem = format!("{}: {problem}", path.display());
                source.record_fault(keys::FABRIC_PATH.name, problem, accepted);
            }
            return None;
        }
    };
    let parsed = FabricFile::parse(path, &text);
    if let Err(faults) = &parsed
        && let Some(Fault { problem, accepted, .. }) = faults.fault_of_whole_file()
    {
        let problem = format!("{} {problem}", path.display());
        source.record_fault(keys::FABRIC_PATH.name, problem, accepted.clone());
        return None;
    }
    parsed.map_err(|faults| source.record_faults_of_file(faults)).ok()
}

/// Reads all tables of a region file, and the fabric file; `None` when faults were recorded.
pub(super) fn read_region_tables(
    source: &ConfigSource<'_>,
    root: &Section<'_>,
) -> Option<RegionTables> {
    let fabric = root.read_required(&keys::FABRIC_PATH).map(|path| source.resolve_path(&path));
    let fabric = fabric.and_then(|path| load_fabric_of_region_table(source, &path));
    let mut gateways = BTreeMap::new();
    let mut region = None;
    for (name, section) in read_required_region_tables(root, &keys::GATEWAY_TABLE) {
        let known = fabric.as_ref().and_then(|fabric| {
            find_gateway_of_region_table(source, &section, fabric.fabric(), &name)
                .map(|id| (fabric, id))
        });
        if let Some((fabric, id)) = known {
            let of = fabric.fabric().gateway(id).region;
            if *region.get_or_insert(of) != of {
                let problem = "is of another region than the gateways before it".to_owned();
                source.record_fault(section.key(), problem, "one file per region".to_owned());
            }
            check_region_table_reachable(source, &section, fabric, id);
            check_region_table_listen_key(source, &section, fabric, id);
        }
        let config = read_region_gateway_table(source, &name, known.map(|(_, id)| id), &section);
        gateways.extend(config.map(|config| (name, config)));
    }
    if let Some(fabric) = &fabric {
        check_bound_addresses(source, fabric, &gateways);
    }
    let mut jobs = BTreeMap::new();
    let witness = fabric.as_ref().and_then(|file| file.fabric().witness());
    let is_witness = gateways.values().any(|gateway: &GatewayConfig| Some(gateway.id) == witness);
    let job_tables = match is_witness {
        true => root.read_subtables(&keys::JOB_TABLE),
        false => read_required_region_tables(root, &keys::JOB_TABLE),
    };
    for (name, section) in job_tables {
        if is_witness {
            let problem = "is a job of a witness, which has no ranks".to_owned();
            source.record_fault(section.key(), problem, "no job".to_owned());
        }
        if !is_valid_config_name_value(&name) {
            let problem = format!("`{name}` is not a valid name");
            source.record_fault(section.key(), problem, Name::VALUE_TYPE.accepted.to_owned());
        }
        jobs.extend(read_region_job_table(source, &name, &section).map(|job| (name, job)));
    }
    Some(RegionTables { fabric: fabric?, gateways, jobs })
}

/// Reads all tables of one kind; records a fault when there is none.
fn read_required_region_tables<'a>(
    root: &Section<'a>,
    table: &'static TableKeys,
) -> Vec<(String, Section<'a>)> {
    let tables = root.read_subtables(table);
    if tables.is_empty() {
        root.report_missing(table.name, table.accepted);
    }
    tables
}

/// Returns the number in the fabric of the gateway that a table of the region file names; records a
/// fault when the fabric has none of that name.
fn find_gateway_of_region_table(
    source: &ConfigSource<'_>,
    section: &Section<'_>,
    fabric: &Fabric,
    name: &str,
) -> Option<GatewayId> {
    let id = fabric.gateway_named(name);
    if id.is_none() {
        let known: Vec<&str> = fabric.gateways().iter().map(|known| known.name.as_str()).collect();
        let accepted = format!("a gateway of the fabric: {}", known.join(", "));
        source.record_fault(section.key(), "is not in the fabric".to_owned(), accepted);
    }
    id
}

/// Records a fault for a gateway that another gateway of its region can reach neither over the LAN
/// nor over the WAN.
fn check_region_table_reachable(
    source: &ConfigSource<'_>,
    section: &Section<'_>,
    file: &FabricFile,
    id: GatewayId,
) {
    let fabric = file.fabric();
    let others = fabric.region(fabric.gateway(id).region).gateways.clone().map(GatewayId);
    let apart =
        |other: &GatewayId| *other != id && file.address_within_region(id, *other).is_none();
    let Some(other) = others.into_iter().find(apart) else { return };
    let (own, other) = (&fabric.gateway(id).name, &fabric.gateway(other).name);
    let problem = format!("has no way to gateway `{other}` of its region");
    let accepted = format!("`lan` for {own} and {other} in {}", file.path().display());
    source.record_fault(section.key(), problem, accepted);
}

/// Records a fault for a `listen` key of a gateway without a WAN port, or of another address family
/// than that of its `wan`. The unspecified address of IPv6 suits both families.
fn check_region_table_listen_key(
    source: &ConfigSource<'_>,
    section: &Section<'_>,
    file: &FabricFile,
    id: GatewayId,
) {
    let Some(listen) = section.read_optional(&keys::GATEWAY_LISTEN) else { return };
    let key = section.key_path(keys::GATEWAY_LISTEN.name);
    if file.fabric().gateway(id).wan.is_none() {
        let problem = "the gateway has no WAN port in the fabric".to_owned();
        let accepted = format!("no `{}` key", keys::GATEWAY_LISTEN.name);
        return source.record_fault(&key, problem, accepted);
    }
    check_region_table_listen_port(source, section, file, (id, &listen.0));
    // Host names may have addresses of either family.
    let Some(wan) = file.address(id).or_else(|| file.first_peer_address(id)) else { return };
    let takes_all = |bound: SocketAddr| bound.is_ipv6() && bound.ip().is_unspecified();
    let differs = |bound: SocketAddr| bound.is_ipv4() != wan.is_ipv4() && !takes_all(bound);
    if listen.0.all().any(differs) {
        let family = if wan.is_ipv4() { "IPv4" } else { "IPv6" };
        let problem = match file.address(id) {
            Some(wan) => format!(
                "is of another family than `wan` of the gateway in the fabric, {wan}, and so than \
                 its peers' addresses"
            ),
            None => "is of another family than the addresses of its peers".to_owned(),
        };
        source.record_fault(&key, problem, format!("an {family} address of this host"));
    }
}

/// Records a fault for a port in `listen` of a gateway without `wan`, which would use none, and for port
/// 0 of a gateway that others dial.
fn check_region_table_listen_port(
    source: &ConfigSource<'_>,
    section: &Section<'_>,
    file: &FabricFile,
    (id, listen): (GatewayId, &LaneAddresses),
) {
    let key = section.key_path(keys::GATEWAY_LISTEN.name);
    let dials_only = file.dials_only(id);
    let Some(wrong) = listen.all().find(|bound| (bound.port() != 0) == dials_only) else { return };
    let Some(value) = section.value(keys::GATEWAY_LISTEN.name) else { return };
    if dials_only {
        let problem = format!(
            "has port {}, which nothing would use: the gateway has no `wan`, and dials from ports that \
             the system chooses; `landbridge check --fix` writes port 0",
            wrong.port()
        );
        let free = |bound: SocketAddr| format!("\"{}\"", SocketAddr::new(bound.ip(), 0));
        let accepted =
            format!("port 0, as {}, or a `wan` of the gateway in the fabric", free(wrong));
        let rewrite = |value: &DeValue<'_>| value.as_str()?.parse().ok().map(free);
        let fault = (problem, accepted);
        return source.record_fault_of_former_value(&key, fault, value, rewrite);
    }
    let problem = format!("has port 0, and ports are from 1 to {}", u16::MAX);
    source.record_fault(&key, problem, "the UDP port of its lanes".to_owned());
}

/// Reads a table `[gateway.NAME]`; `None` when a value is at fault or the fabric lacks the gateway.
fn read_region_gateway_table(
    source: &ConfigSource<'_>,
    name: &str,
    id: Option<GatewayId>,
    section: &Section<'_>,
) -> Option<GatewayConfig> {
    let path = |key| section.read_required(key).map(|path: PathBuf| source.resolve_path(&path));
    let (socket, certificate) = (path(&keys::GATEWAY_SOCKET), path(&keys::GATEWAY_CERTIFICATE));
    let (key, ca) = (path(&keys::GATEWAY_PRIVATE_KEY), path(&keys::CA_CERTIFICATE));
    let listen = section.read_optional(&keys::GATEWAY_LISTEN).map(|bind| bind.0);
    let segmentation_offload = section.read_optional(&keys::SEGMENTATION_OFFLOAD).unwrap_or(true);
    let (user, group) =
        (section.read_optional(&keys::GATEWAY_USER), section.read_optional(&keys::GATEWAY_GROUP));
    let mode = read_region_table_socket_mode(source, section, group.is_some());
    let attach = section.read_optional(&keys::GATEWAY_ATTACH).map(|bind| bind.0);
    let resolved = |path: Option<PathBuf>| path.map(|path| source.resolve_path(&path));
    let trainers_ca = resolved(section.read_optional(&keys::TRAINERS_CA));
    let dumps = resolved(section.read_optional(&keys::GATEWAY_DUMPS));
    let otlp = section.read_optional(&keys::GATEWAY_OTLP);
    if trainers_ca.is_some() && !section.has_key(keys::GATEWAY_ATTACH.name) {
        let problem = format!("there is no `{}`, so nobody is asked", keys::GATEWAY_ATTACH.name);
        let accepted = format!("a file beside `{}`, or no such key", keys::GATEWAY_ATTACH.name);
        source.record_fault(&section.key_path(keys::TRAINERS_CA.name), problem, accepted);
    }
    let status = section.read_required(&keys::GATEWAY_STATUS);
    let memory = section.read_required(&keys::GATEWAY_MEMORY);
    let status_address = status.as_ref().map(|bind| bind.0);
    if let (Some(attach), Some(status)) = (attach, status_address)
        && bound_addresses_overlap(attach, status)
    {
        let problem = format!("is the address of `{}` too", keys::GATEWAY_STATUS.name);
        let accepted = "an address and port of its own".to_owned();
        source.record_fault(&section.key_path(keys::GATEWAY_ATTACH.name), problem, accepted);
    }
    let too_long = |path: &PathBuf| path.as_os_str().len() > SOCKET_PATH_BYTES_MAX;
    // A relative path has the length that it has for trainers in other folders.
    let whole = socket.as_ref().and_then(|path| std::path::absolute(path).ok());
    if let Some(long) = whole.filter(too_long) {
        let problem = format!("is {} bytes long as {}", long.as_os_str().len(), long.display());
        let accepted = format!("a path of at most {SOCKET_PATH_BYTES_MAX} bytes");
        source.record_fault(&section.key_path(keys::GATEWAY_SOCKET.name), problem, accepted);
    }
    let is_folder = |path: &&PathBuf| {
        let bytes = path.as_os_str().as_encoded_bytes();
        bytes.ends_with(b"/") || path.file_name().is_none() || bytes.ends_with(b"/.")
    };
    if let Some(folder) = socket.as_ref().filter(is_folder) {
        let problem = format!("is a folder as {}", folder.display());
        let accepted = "the path of a file, such as \"run/east-0.sock\"".to_owned();
        source.record_fault(&section.key_path(keys::GATEWAY_SOCKET.name), problem, accepted);
    }
    section.report_unknown_keys();
    Some(GatewayConfig {
        id: id?,
        name: name.to_owned(),
        socket: socket?,
        user,
        group,
        mode,
        attach,
        trainers_ca,
        listen,
        segmentation_offload,
        status: status?.0,
        dumps,
        otlp,
        certificate: certificate?,
        key: key?,
        ca: ca?,
        memory: memory?.0,
    })
}

/// Reads the mode of a gateway's socket. Records a fault for 0660 without a `group`, and for 0600
/// with one.
fn read_region_table_socket_mode(
    source: &ConfigSource<'_>,
    section: &Section<'_>,
    has_group: bool,
) -> Option<GatewaySocketMode> {
    let mode = section.read_optional(&keys::SOCKET_MODE)?;
    if (mode == GatewaySocketMode::Group) != has_group && mode != GatewaySocketMode::All {
        let problem = if has_group {
            "shuts out the `group`".to_owned()
        } else {
            "admits a group, and no `group` is named".to_owned()
        };
        let accepted = "\"0600\" without `group`, \"0660\" with it, or \"0666\"".to_owned();
        source.record_fault(&section.key_path(keys::SOCKET_MODE.name), problem, accepted);
    }
    Some(mode)
}

/// Reads a table `[job.NAME]`; `None` when a value is at fault.
fn read_region_job_table(
    source: &ConfigSource<'_>,
    name: &str,
    section: &Section<'_>,
) -> Option<JobConfig> {
    let token = section.read_required(&keys::JOB_TOKEN).map(|path| source.resolve_path(&path));
    let memory = section.read_required(&keys::JOB_MEMORY);
    let weight = section.read_optional(&keys::JOB_WEIGHT).unwrap_or(NonZeroU32::MIN);
    section.report_unknown_keys();
    Some(JobConfig { name: name.to_owned(), token: token?, memory: memory?.0, weight })
}
