//! The quickstart's deployment: a folder with fabric, region files, keys and sockets.

use super::error::QuickstartError;
use super::messages::JOB_NAME;
use super::quickstart_options::QuickstartOptions;
use gateway::access::SOCKET_PATH_BYTES_MAX;
use gateway::certs::{self, CertificateOptions, CertificateValidity};
use gateway::config::{ConfigFaults, FabricFile, Fault};
use gateway::loopback::port_block;
use gateway::loopback::two_regions::{Region, TwoRegions};
use hier_collectives::topology::Fabric;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Compute speeds of ranks 0 to 3 of a quickstart relative to each other; further ranks repeat
/// them. They are unequal, so that wrong weights in averages are noticed.
/// Tested by `unweighted_averages_miss_the_reference`.
const RANK_SPEEDS: [f64; 4] = [1.0, 1.0, 0.5, 2.0];

/// 1 GiB: the key `memory` in the config of each gateway of a quickstart, which bounds the
/// gateway's windows and partials. The size is chosen.
const GATEWAY_MEMORY_LIMIT: &str = "1 GiB";

/// 80 GiB: the key `memory` of a quickstart's job in each region: ranks whose arenas exceed it are
/// refused. It allows the arenas of 8 ranks with the largest buffer.
const JOB_MEMORY_LIMIT: &str = "80 GiB";

/// The names of the quickstart's two regions, which region files, logs and sockets have too.
pub(super) const REGION_NAMES: [&str; 2] = ["east", "west"];

/// Temporary folder with the files of a quickstart, removed on drop, and the addresses in them.
pub(super) struct QuickstartDeployment {
    folder: tempfile::TempDir,
    pub fabric: Fabric,
    /// The address of the relay before west, and the address that it forwards to.
    pub forward: (SocketAddr, SocketAddr),
    /// Status addresses of east and west.
    pub status: [SocketAddr; 2],
}

impl QuickstartDeployment {
    /// Makes a temporary folder with fabric, region files, certificates and token, for free ports
    /// of loopback.
    pub fn create(options: &QuickstartOptions) -> Result<Self, QuickstartError> {
        let folder = tempfile::Builder::new().prefix("landbridge-").tempdir();
        let folder = folder.map_err(|source| QuickstartError::TemporaryFolder {
            parent: std::env::temp_dir(),
            source,
        })?;
        for name in REGION_NAMES {
            let path = folder.path().join(format!("{name}.sock"));
            if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                return Err(QuickstartError::SocketPath { path });
            }
        }
        let block = || {
            port_block::free_port_block()
                .map_err(QuickstartError::system("no free ports on loopback"))
        };
        let (east, west, relay, status) = (block()?, block()?, block()?, [block()?, block()?]);
        let (east_speeds, west_speeds) = {
            let mut all = deployment_rank_speeds(options);
            let west = all.split_off(options.ranks.0 as usize);
            (all, west)
        };
        let files = TwoRegions {
            fabric: "quickstart",
            east: Region { speeds: east_speeds, wan: east, listen: east, status: status[0] },
            // East reaches west through the relay.
            west: Region { speeds: west_speeds, wan: relay, listen: west, status: status[1] },
            port_rate: &options.rate,
            link_rate: &options.rate,
            rtt: &options.rtt,
            loss: Some(&options.loss),
            memory: GATEWAY_MEMORY_LIMIT,
            jobs: &[JOB_NAME],
            job_memory: JOB_MEMORY_LIMIT,
        };
        files.write_files(folder.path()).map_err(|source| QuickstartError::TemporaryFolder {
            parent: folder.path().to_owned(),
            source,
        })?;
        let file = FabricFile::load(&folder.path().join("fabric.toml"));
        let fabric = file.map_err(name_options_in_deployment_faults)?.fabric().clone();
        let jobs = [JOB_NAME.to_owned()];
        let order = CertificateOptions {
            validity: CertificateValidity::days(1),
            jobs: &jobs,
            force: false,
            renew_days: 0,
        };
        certs::make_certificate_files(&fabric, &folder.path().join("keys"), &order)?;
        Ok(Self { forward: (relay, west), folder, fabric, status })
    }

    /// Returns the path of a file or socket in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of the token file of the job.
    pub fn token_path(&self) -> PathBuf {
        self.path("keys").join(format!("{JOB_NAME}.token"))
    }
}

/// Returns the relative speeds of all ranks, those of east first.
pub(super) fn deployment_rank_speeds(options: &QuickstartOptions) -> Vec<f64> {
    let ranks = (options.ranks.0 + options.ranks.1) as usize;
    RANK_SPEEDS.into_iter().cycle().take(ranks).collect()
}

/// Names the option, such as `--rtt`, in each fault of a key of the generated fabric file that
/// comes from an option. Other faults stay as they are.
fn name_options_in_deployment_faults(faults: ConfigFaults) -> ConfigFaults {
    let option = |key: &str| match key.rsplit('.').next()? {
        "rtt" => Some("--rtt"),
        "loss" => Some("--loss"),
        "rate" | "egress" | "ingress" => Some("--rate"),
        _ => None,
    };
    let named = faults.iter().cloned().map(|fault| match option(&fault.key) {
        Some(key) => {
            let file = "landbridge quickstart".into();
            Fault { file, line: None, key: key.to_owned(), ..fault }
        }
        None => fault,
    });
    ConfigFaults::collect(named).unwrap_or(faults)
}
