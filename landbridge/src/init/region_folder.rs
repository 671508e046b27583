//! The folder of one region: its config, its keys and tokens, its firewall rules and a page for its
//! operator.

use super::deployment_spec::{DeployedRegion, DeploymentSpec, FABRIC_FILE, SocketPlace};
use super::error::InitError;
use super::operator_page::operator_page;
use crate::firewall::{firewall_rules, nftables_script};
use gateway::config::{FabricFile, RegionFile};
use gateway::daemon::{least_memory_budget, reserved_memory_budget};
use hier_collectives::plan::Plan;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use units::ByteCount;

/// 1 GiB: the least value of the key `memory` that `landbridge init` writes for a gateway. A
/// gateway whose windows and lanes take more than half of it gets a larger value. The size is
/// chosen.
const GATEWAY_MEMORY_LEAST: ByteCount = ByteCount::new(1 << 30);

/// The folder of a region, for its operator. The field names are keys of the JSON output.
#[derive(Debug, Serialize)]
pub(crate) struct RegionFolder {
    /// Name of the region, of its folder, and of its config without `.toml`.
    pub region: String,
    /// Names of its gateways.
    pub gateways: Vec<String>,
    /// Number of its first rank.
    pub first_rank: u32,
    /// Number of its ranks.
    pub ranks: u32,
}

/// Writes the folders of regions.
pub(super) struct RegionFolderWriter<'a> {
    pub spec: &'a DeploymentSpec,
    pub file: &'a FabricFile,
    pub plan: &'a Plan,
    /// The folder with certificates, keys and tokens of all regions.
    pub authority: &'a Path,
    /// The folder for those of the regions.
    pub draft: &'a Path,
}

impl RegionFolderWriter<'_> {
    /// Writes the folder of one region: fabric file, config, keys and tokens, firewall rules and
    /// README.md. Reads the config back, so that its faults are errors.
    pub fn write_region_folder(
        &self,
        region: &DeployedRegion,
        fabric_text: &str,
    ) -> Result<RegionFolder, InitError> {
        let folder = self.draft.join(&region.name);
        let keys = folder.join("keys");
        std::fs::create_dir_all(&keys).map_err(InitError::path(&keys))?;
        write_region_folder_file(&folder.join(FABRIC_FILE), fabric_text)?;
        let config = folder.join(format!("{}.toml", region.name));
        write_region_folder_file(&config, &self.region_text(region))?;
        for name in self.key_files(region) {
            let (from, to) = (self.authority.join(&name), keys.join(&name));
            // The copy is readable by as few users as the original.
            std::fs::copy(&from, &to).map_err(InitError::path(&to))?;
        }
        let read = RegionFile::load(&config)?;
        for gateway in read.gateways() {
            let rules = nftables_script(&firewall_rules(&read, gateway));
            write_region_folder_file(
                &folder.join(format!("firewall-{}.nft", gateway.name)),
                &rules,
            )?;
        }
        let page = operator_page(self.spec, region, self.file.fabric());
        write_region_folder_file(&folder.join("README.md"), &page)?;
        let fabric = self.file.fabric();
        let ranks = fabric.regions().iter().find(|found| found.name == region.name);
        let ranks = ranks.map_or(0..0, |found| found.ranks.clone());
        Ok(RegionFolder {
            region: region.name.clone(),
            gateways: region.gateways.iter().map(|gateway| gateway.name.clone()).collect(),
            first_rank: ranks.start,
            ranks: ranks.end - ranks.start,
        })
    }

    /// Returns the text of a region file.
    fn region_text(&self, region: &DeployedRegion) -> String {
        let mut text = format!(
            "# The gateways of region `{}`. Paths are relative to this file.\n\nfabric = \
             \"{FABRIC_FILE}\"\n",
            region.name
        );
        for gateway in &region.gateways {
            let name = &gateway.name;
            let folder = match self.spec.sockets {
                SocketPlace::BesideRegionFile => "run".to_owned(),
                SocketPlace::SystemService => format!("/run/landbridge/{}", region.name),
            };
            let _ = write!(
                text,
                "\n[gateway.{name}]\nsocket = \"{folder}/{name}.sock\"\nstatus = \
                 \"127.0.0.1:{}\"\ncertificate = \"keys/{name}.pem\"\nkey = \"keys/{name}.key\"\n\
                 ca = \"keys/ca.pem\"\nmemory = \"{}\"\n",
                gateway.status_port,
                self.gateway_memory(name)
            );
        }
        for job in &self.spec.jobs {
            let _ = write!(
                text,
                "\n[job.{job}]\ntoken = \"keys/{job}.token\"\nmemory = \"{}\"\n",
                self.spec.job_memory
            );
        }
        text
    }

    /// Returns the value of the key `memory` for a gateway: twice what its windows and lanes
    /// reserve, in whole MiB, but at least [`GATEWAY_MEMORY_LEAST`].
    fn gateway_memory(&self, gateway: &str) -> ByteCount {
        let Some(id) = self.file.fabric().gateway_named(gateway) else {
            return GATEWAY_MEMORY_LEAST;
        };
        let counts = (self.spec.jobs.len(), self.file.count_lane_networks(id));
        let reserved = reserved_memory_budget(self.plan, self.file.fabric(), id, counts);
        least_memory_budget(GATEWAY_MEMORY_LEAST, reserved).unwrap_or(GATEWAY_MEMORY_LEAST)
    }

    /// Returns the names of the certificates, keys and tokens of a region.
    fn key_files(&self, region: &DeployedRegion) -> Vec<String> {
        let gateways = region.gateways.iter();
        let gateways =
            gateways.flat_map(|of| [format!("{}.pem", of.name), format!("{}.key", of.name)]);
        let tokens = self.spec.jobs.iter().map(|job| format!("{job}.token"));
        ["ca.pem".to_owned()].into_iter().chain(gateways).chain(tokens).collect()
    }
}

/// Writes a file of the deployment.
pub(super) fn write_region_folder_file(path: &Path, text: &str) -> Result<(), InitError> {
    std::fs::write(path, text).map_err(InitError::path(path))
}
