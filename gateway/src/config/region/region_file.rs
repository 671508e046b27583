//! A checked region file: the gateways of one region on their hosts, and the jobs they serve.

use super::bound_addresses::{lan_bound_addresses, wan_bound_addresses};
use super::gateway_config::{GatewayConfig, JobConfig};
use super::keys;
use super::lane_peer::LanePeer;
use super::region_tables::{RegionTables, read_region_tables};
use crate::config::config_faults::ConfigFaults;
use crate::config::config_source::{self, ConfigSource};
use crate::config::fabric::FabricFile;
use crate::config::section::read_root_section;
use crate::wan::connect::lane_addresses::{LaneAddresses, dials_lane_addresses};
use hier_collectives::ids::GatewayId;
use std::collections::BTreeMap;
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

impl RegionFile {
    /// Reads and checks a region file and the fabric that it names.
    ///
    /// # Errors
    /// Every fault of both files.
    pub fn load(path: &Path) -> Result<Self, ConfigFaults> {
        let text = config_source::read_config_source(path)?;
        Self::parse(path, &text)
    }

    /// Checks the text of a region file; relative paths in it start at the folder of `path`.
    ///
    /// # Errors
    /// Every fault of the text and of the fabric that it names.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigFaults> {
        if config_source::config_source_has_root_key(text, "region") {
            return Err(ConfigFaults::file_of_other_kind(path, "fabric", "region"));
        }
        let source = ConfigSource::new(path, text);
        let RegionTables { fabric, gateways, jobs } =
            read_root_section(&source, &keys::REGION_FILE_TABLE, read_region_tables)?;
        Ok(Self { path: path.to_owned(), fabric, gateways, jobs })
    }

    /// Returns the path of the file that the region was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the fabric file that the region file names, read and checked.
    pub fn fabric(&self) -> &FabricFile {
        &self.fabric
    }

    /// Iterates over the gateways of this file, in name order; at least one, all of one region.
    pub fn gateways(&self) -> impl Iterator<Item = &GatewayConfig> {
        self.gateways.values()
    }

    /// Iterates over the jobs that may attach, in name order; none at a witness, elsewhere at least one.
    pub fn jobs(&self) -> impl Iterator<Item = &JobConfig> {
        self.jobs.values()
    }

    /// Returns the memory that the arenas of all jobs may take at a gateway.
    pub fn arenas_memory(&self) -> ByteCount {
        let jobs = self.jobs().map(|job| job.memory.get());
        ByteCount::new(jobs.fold(0, u64::saturating_add))
    }

    /// Returns the gateway named `name`, or the only one of the file when `name` is `None`.
    ///
    /// # Errors
    /// There is no such gateway, or there are several and `name` is `None`.
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

    /// Returns the addresses that a gateway's lanes have on this host for other regions: `listen`, else
    /// `wan`, else any with the port of `wan`; `None` without a WAN port.
    pub fn wan_addresses_to_bind(&self, gateway: &GatewayConfig) -> Option<LaneAddresses> {
        wan_bound_addresses(&self.fabric, gateway)
    }

    /// Returns the addresses that a gateway's lanes have on this host for its own region: `lan`, or any
    /// with its port; `None` without a `lan`.
    pub fn lan_addresses_to_bind(&self, gateway: &GatewayConfig) -> Option<LaneAddresses> {
        lan_bound_addresses(&self.fabric, gateway)
    }

    /// Returns the peers to which a gateway of the file has lanes: those of linked regions with a
    /// WAN port, if it has one, and all of its own region.
    pub fn lane_peers(&self, gateway: &GatewayConfig) -> Vec<LanePeer> {
        let (file, me) = (self.fabric(), gateway.id);
        let fabric = file.fabric();
        let here = fabric.gateway(me).region;
        let can_be_dialled = |id| file.lane_addresses(id).is_some();
        let peer = |id: GatewayId| {
            let there = fabric.gateway(id).region;
            let link = fabric.link(here, there).cloned();
            let lan = file.lan_addresses(me).zip(file.lan_addresses(id));
            if let Some((own, theirs)) = lan.filter(|_| here == there) {
                let (own_seen_at, theirs) = (Some(own.clone()), Some(theirs.clone()));
                let own = self.lan_addresses_to_bind(gateway)?;
                return Some(LanePeer { id, link, dials: me < id, own, own_seen_at, theirs });
            }
            let have_ports = fabric.gateway(me).wan.and(fabric.gateway(id).wan).is_some();
            let is_joined = link.is_some() || (here == there && can_be_dialled(me));
            if !have_ports || !is_joined {
                return None;
            }
            let own = self.wan_addresses_to_bind(gateway)?;
            let dials = dials_lane_addresses((me, can_be_dialled(me)), (id, can_be_dialled(id)));
            let of = |id| file.lane_addresses(id).cloned();
            Some(LanePeer { id, link, dials, own, own_seen_at: of(me), theirs: of(id) })
        };
        fabric.gateway_ids().filter(|id| *id != me).filter_map(peer).collect()
    }
}

/// Why no gateway of a region file was chosen. The caller's fault.
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
