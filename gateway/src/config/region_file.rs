//! A region's file: the fabric it belongs to, and what its gateways use on their hosts.

use super::fabric_file::FabricFile;
use super::fault::Faults;
use super::reader::{self, Section, Source};
use super::values::{Bind, Budget, FromValue, LaneBind, Name, is_name};
use crate::wan::connect::addresses::LaneAddresses;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use units::ByteCount;

/// One region's gateways and jobs, with the fabric.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionFile {
    path: PathBuf,
    fabric: FabricFile,
    gateways: BTreeMap<String, GatewayConfig>,
    jobs: BTreeMap<String, JobConfig>,
}

/// What one gateway uses on its host. Paths are resolved against the file's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Its number in the fabric.
    pub id: GatewayId,
    /// Its name in the fabric.
    pub name: String,
    /// Unix socket where its ranks attach.
    pub socket: PathBuf,
    /// Where its lanes bind when that is not the fabric's address: behind NAT or a relay.
    pub listen: Option<LaneAddresses>,
    /// Whether packets may be handed to the system many at once. A qdisc such as netem takes those
    /// for one, and loses them as one.
    pub segmentation_offload: bool,
    /// Where `/metrics`, `/status`, `/healthz` and `/readyz` are served.
    pub status: SocketAddr,
    /// Its certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificate of the CA that all gateways trust, PEM.
    pub ca: PathBuf,
    /// What it may hold beside its ranks' own: windows and lanes, of which `landbridge check` says
    /// how much, and in what they leave, or in half of it, partials of its ranks, all jobs together.
    pub memory: ByteCount,
}

/// One training job that may attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobConfig {
    /// Its name.
    pub name: String,
    /// File with the token that its ranks present.
    pub token: PathBuf,
    /// Memory it may use on one gateway.
    pub memory: ByteCount,
    /// Its share of a link against that of other jobs; 1 unless given.
    pub weight: NonZeroU32,
}

impl RegionFile {
    /// Reads and checks a region file and the fabric that it names.
    ///
    /// # Errors
    /// Every fault of both files.
    pub fn load(path: &Path) -> Result<Self, Faults> {
        let text = reader::read_text(path)?;
        Self::parse(path, &text)
    }

    /// Checks the text of a region file; `path` says where the fabric is looked for.
    ///
    /// # Errors
    /// Every fault of the text and of the fabric that it names.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Faults> {
        Source::new(path, text).read(|source, root| read_region(path, source, root))
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fabric that the region belongs to.
    pub fn fabric(&self) -> &FabricFile {
        &self.fabric
    }

    /// The gateways of this file, in name order; at least one, all of one region.
    pub fn gateways(&self) -> impl Iterator<Item = &GatewayConfig> {
        self.gateways.values()
    }

    /// The jobs that may attach, in name order; at least one.
    pub fn jobs(&self) -> impl Iterator<Item = &JobConfig> {
        self.jobs.values()
    }

    /// The gateway of that name, or the only one of the file when none is named.
    ///
    /// # Errors
    /// No such gateway, or several and none named: the caller's fault.
    pub fn gateway(&self, name: Option<&str>) -> Result<&GatewayConfig, GatewayChoiceError> {
        let names = || self.gateways.keys().cloned().collect::<Vec<_>>().join(", ");
        let file = || self.path.clone();
        match name {
            Some(name) => self.gateways.get(name).ok_or_else(|| GatewayChoiceError::Unknown {
                file: file(),
                name: name.to_owned(),
                known: names(),
            }),
            None => match self.gateways.values().collect::<Vec<_>>().as_slice() {
                [only] => Ok(only),
                _ => Err(GatewayChoiceError::Several { file: file(), known: names() }),
            },
        }
    }
}

/// A gateway that the command line does not name as it must. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayChoiceError {
    /// A name that the file does not have.
    #[error("{} has no gateway `{name}`; it has: {known}", file.display())]
    Unknown {
        /// The region file.
        file: PathBuf,
        /// The name given.
        name: String,
        /// The names it has.
        known: String,
    },
    /// No name where the file has several.
    #[error("{} has several gateways; choose one with --gateway: {known}", file.display())]
    Several {
        /// The region file.
        file: PathBuf,
        /// The names it has.
        known: String,
    },
}

fn read_region(path: &Path, source: &Source<'_>, root: &mut Section<'_>) -> Option<RegionFile> {
    let fabric = root.required::<PathBuf>("fabric").map(|path| source.resolve(&path));
    let fabric = fabric.and_then(|path| match FabricFile::load(&path) {
        Ok(fabric) => Some(fabric),
        Err(faults) => {
            source.adopt(faults);
            None
        }
    });
    let mut gateways = BTreeMap::new();
    let mut region = None;
    for (name, section) in some_tables(root, "gateway", "a table such as [gateway.east-0]") {
        let id = fabric.as_ref().and_then(|fabric| find(source, &section, fabric.fabric(), &name));
        if let (Some(fabric), Some(id)) = (&fabric, id) {
            let of = fabric.fabric().gateway(id).region;
            if *region.get_or_insert(of) != of {
                let problem = "is of another region than the gateways before it".to_owned();
                source.fault_at(section.key(), problem, "one file per region".to_owned());
            }
        }
        if let (Some(fabric), Some(id)) = (&fabric, id) {
            check_meets(source, &section, fabric, id);
        }
        let no_port = |id| fabric.as_ref().is_some_and(|fabric| fabric.address(id).is_none());
        let sidecar = id.is_some_and(no_port);
        let config = read_gateway(source, (&name, id), section, sidecar);
        gateways.extend(config.map(|config| (name, config)));
    }
    let mut jobs = BTreeMap::new();
    for (name, section) in some_tables(root, "job", "a table such as [job.train]") {
        if !is_name(&name) {
            let problem = format!("`{name}` is no usable name");
            source.fault_at(section.key(), problem, Name::ACCEPTED.to_owned());
        }
        jobs.extend(read_job(source, &name, section).map(|job| (name, job)));
    }
    Some(RegionFile { path: path.to_owned(), fabric: fabric?, gateways, jobs })
}

fn some_tables<'a>(
    root: &mut Section<'a>,
    name: &'static str,
    accepted: &str,
) -> Vec<(String, Section<'a>)> {
    let tables = root.tables(name);
    if tables.is_empty() {
        root.missing(name, accepted);
    }
    tables
}

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

/// Gateways of one region meet over the LAN, or from port to port where both have one.
fn check_meets(source: &Source<'_>, section: &Section<'_>, file: &FabricFile, id: GatewayId) {
    let fabric = file.fabric();
    let others = fabric.region(fabric.gateway(id).region).gateways.clone().map(GatewayId);
    let apart = |other: &GatewayId| *other != id && file.meets_at(id, *other).is_none();
    let Some(other) = others.into_iter().find(apart) else { return };
    let (own, other) = (&fabric.gateway(id).name, &fabric.gateway(other).name);
    let problem = format!("has no way to gateway `{other}` of its region");
    let accepted = format!("`lan` for {own} and {other} in {}", file.path().display());
    source.fault_at(section.key(), problem, accepted);
}

fn read_gateway(
    source: &Source<'_>,
    (name, id): (&str, Option<GatewayId>),
    mut section: Section<'_>,
    sidecar: bool,
) -> Option<GatewayConfig> {
    let mut path = |name| section.required::<PathBuf>(name).map(|path| source.resolve(&path));
    let (socket, certificate, key, ca) =
        (path("socket"), path("certificate"), path("key"), path("ca"));
    let listen = section.optional::<LaneBind>("listen").map(|bind| bind.0);
    let segmentation_offload = section.optional("segmentation_offload").unwrap_or(true);
    let status = section.required::<Bind>("status");
    let memory = section.required::<Budget>("memory");
    let too_long = |path: &&PathBuf| path.as_os_str().len() > SOCKET_PATH_MAX_BYTES;
    if let Some(long) = socket.as_ref().filter(too_long) {
        let problem = format!("is {} bytes long as {}", long.as_os_str().len(), long.display());
        let accepted = format!("a path of at most {SOCKET_PATH_MAX_BYTES} bytes");
        source.fault_at(&section.key_of("socket"), problem, accepted);
    }
    if listen.is_some() && sidecar {
        let problem = "the gateway has no WAN port in the fabric".to_owned();
        source.fault_at(&section.key_of("listen"), problem, "no `listen` key".to_owned());
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

fn read_job(source: &Source<'_>, name: &str, mut section: Section<'_>) -> Option<JobConfig> {
    let token = section.required::<PathBuf>("token").map(|path| source.resolve(&path));
    let memory = section.required::<Budget>("memory");
    let weight = section.optional::<NonZeroU32>("weight").unwrap_or(NonZeroU32::MIN);
    section.close();
    Some(JobConfig { name: name.to_owned(), token: token?, memory: memory?.0, weight })
}

/// What `sockaddr_un` holds on Linux, less the terminating zero.
const SOCKET_PATH_MAX_BYTES: usize = 107;
