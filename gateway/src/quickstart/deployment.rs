//! The quickstart's deployment: a folder with fabric, region files, keys and sockets.

use super::rank::JOB;
use super::{Options, QuickstartError, ports};
use crate::certs::{self, Order, Validity};
use crate::config::{FabricFile, Fault, Faults};
use hier_collectives::plan;
use hier_collectives::topology::Fabric;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Relative speeds of the ranks, in turn.
const SPEEDS: [f64; 4] = [1.0, 1.0, 0.5, 2.0];

/// A folder that goes away when this is dropped, and what is in it.
pub(super) struct Deployment {
    folder: tempfile::TempDir,
    pub fabric: Fabric,
    /// Where the relay listens for each of west's lanes, and where it passes on to.
    pub forwards: Vec<(SocketAddr, SocketAddr)>,
    /// Status addresses of east and west.
    pub status: [SocketAddr; 2],
}

impl Deployment {
    /// Makes the folder and everything in it.
    pub fn make(options: &Options) -> Result<Self, QuickstartError> {
        let folder = tempfile::Builder::new().prefix("landbridge-").tempdir();
        let folder = folder.map_err(QuickstartError::system("cannot make a folder"))?;
        let block = || ports::block().map_err(QuickstartError::system("no free ports on loopback"));
        let (east, west, relay, status) = (block()?, block()?, block()?, [block()?, block()?]);
        let fabric_path = folder.path().join("fabric.toml");
        write(&fabric_path, &fabric_text(options, east, relay))?;
        // West is reached through the relay, so it listens elsewhere than the fabric says.
        let regions = [("east", east, status[0]), ("west", west, status[1])];
        for (name, listen, status) in regions {
            write(&folder.path().join(format!("{name}.toml")), &region_text(name, listen, status))?;
        }
        let file = FabricFile::load(&fabric_path).map_err(of_options)?;
        let fabric = file.fabric().clone();
        let jobs = [JOB.to_owned()];
        let order = Order { validity: Validity::days(1), jobs: &jobs, force: false };
        certs::make(&fabric, &folder.path().join("keys"), &order)?;
        let lane = |first: SocketAddr, lane| SocketAddr::new(first.ip(), first.port() + lane);
        let forwards = (0..plan::lanes(&fabric)).map(|i| (lane(relay, i), lane(west, i)));
        Ok(Self { forwards: forwards.collect(), folder, fabric, status })
    }

    /// A file or socket of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The job's token.
    pub fn token(&self) -> PathBuf {
        self.path("keys").join(format!("{JOB}.token"))
    }
}

/// Speeds of all ranks.
pub(super) fn speeds(options: &Options) -> Vec<f64> {
    let ranks = (options.ranks.0 + options.ranks.1) as usize;
    SPEEDS.into_iter().cycle().take(ranks).collect()
}

fn fabric_text(options: &Options, east: SocketAddr, west: SocketAddr) -> String {
    let Options { rtt, rate, loss, ranks, .. } = options;
    let speeds = speeds(options);
    let (first, second) = speeds.split_at(ranks.0 as usize);
    let region = |name: &str, ranks: u32, speeds: &[f64], wan: SocketAddr| {
        format!(
            "[region.{name}]\nranks = {ranks}\nspeeds = {speeds:?}\n\
             [region.{name}.gateway.{name}-0]\nwan = \"{wan}\"\n\
             egress = \"{rate}\"\ningress = \"{rate}\"\n\n"
        )
    };
    format!(
        "name = \"quickstart\"\nmtu = 1500\n\n{}{}[link.east-west]\n\
         rate = \"{rate}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\"\n",
        region("east", ranks.0, first, east),
        region("west", ranks.1, second, west),
    )
}

/// Says of the options what is wrong in the file that was made of them: nobody has written it, and
/// it is gone before anybody reads of it.
fn of_options(faults: Faults) -> Faults {
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

fn region_text(name: &str, listen: SocketAddr, status: SocketAddr) -> String {
    format!(
        "fabric = \"fabric.toml\"\n\n[gateway.{name}-0]\nsocket = \"{name}.sock\"\n\
         listen = \"{listen}\"\nstatus = \"{status}\"\ncertificate = \"keys/{name}-0.pem\"\n\
         key = \"keys/{name}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"1 GiB\"\n\n\
         [job.{JOB}]\ntoken = \"keys/{JOB}.token\"\nmemory = \"80 GiB\"\n"
    )
}

fn write(path: &Path, text: &str) -> Result<(), QuickstartError> {
    std::fs::write(path, text).map_err(QuickstartError::system("cannot write a config"))
}
