//! The quickstart's deployment: a folder with fabric, region files, keys and sockets.

use super::error::QuickstartError;
use super::messages::JOB;
use super::options::QuickstartOptions;
use gateway::certs::{self, CertificateOptions, Validity};
use gateway::config::{FabricFile, Fault, Faults};
use gateway::loopback::ports;
use gateway::loopback::two_regions::{Region, TwoRegions};
use hier_collectives::plan;
use hier_collectives::topology::Fabric;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Relative speeds of the ranks, repeated as needed: unequal, so that wrong weights show.
/// Tested by `unweighted_averages_miss_the_reference`.
const SPEEDS: [f64; 4] = [1.0, 1.0, 0.5, 2.0];

/// Memory of a gateway.
const GATEWAY_MEMORY: &str = "1 GiB";

/// Memory of the job in a region: arenas of 8 ranks for the largest buffer.
const JOB_MEMORY: &str = "80 GiB";

/// A folder that is removed when this is dropped, and the addresses of its deployment.
pub(super) struct Deployment {
    folder: tempfile::TempDir,
    pub fabric: Fabric,
    /// For each of west's lanes, the address of the relay and the address that it forwards to.
    pub forwards: Vec<(SocketAddr, SocketAddr)>,
    /// Status addresses of east and west.
    pub status: [SocketAddr; 2],
}

impl Deployment {
    /// Makes the folder and everything in it.
    pub fn make(options: &QuickstartOptions) -> Result<Self, QuickstartError> {
        let folder = tempfile::Builder::new().prefix("landbridge-").tempdir();
        let folder = folder.map_err(QuickstartError::system("cannot make a folder"))?;
        let block = || ports::block().map_err(QuickstartError::system("no free ports on loopback"));
        let (east, west, relay, status) = (block()?, block()?, block()?, [block()?, block()?]);
        let (east_speeds, west_speeds) = {
            let mut all = speeds(options);
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
            memory: GATEWAY_MEMORY,
            jobs: &[JOB],
            job_memory: JOB_MEMORY,
        };
        files.write(folder.path()).map_err(QuickstartError::system("cannot write a config"))?;
        let file = FabricFile::load(&folder.path().join("fabric.toml"));
        let fabric = file.map_err(name_options)?.fabric().clone();
        let jobs = [JOB.to_owned()];
        let order = CertificateOptions { validity: Validity::days(1), jobs: &jobs, force: false };
        certs::make(&fabric, &folder.path().join("keys"), &order)?;
        let lane = |first: SocketAddr, lane| SocketAddr::new(first.ip(), first.port() + lane);
        let forwards = (0..plan::lanes(&fabric)).map(|i| (lane(relay, i), lane(west, i)));
        Ok(Self { forwards: forwards.collect(), folder, fabric, status })
    }

    /// Returns the path of a file or socket of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of the job's token.
    pub fn token(&self) -> PathBuf {
        self.path("keys").join(format!("{JOB}.token"))
    }
}

/// Returns the speeds of all ranks, east first.
pub(super) fn speeds(options: &QuickstartOptions) -> Vec<f64> {
    let ranks = (options.ranks.0 + options.ranks.1) as usize;
    SPEEDS.into_iter().cycle().take(ranks).collect()
}

/// Names the option in place of the key in the generated file, which the user did not write.
fn name_options(faults: Faults) -> Faults {
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
    Faults::collect(named).unwrap_or(faults)
}
