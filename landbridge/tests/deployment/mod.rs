//! Two gateways as processes, with their files in a temporary folder.

mod log;
mod team;

use gateway::client::AttachTlsGateway;
use gateway::local::protocol::Token;
use gateway::loopback::port_block;
use gateway::loopback::two_regions::{Region, TwoRegions};
use log::Log;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
pub use team::Team;

pub const BINARY: &str = env!("CARGO_BIN_EXE_landbridge");

/// A deployment. Its gateways are killed when it is dropped.
pub struct Deployment {
    folder: tempfile::TempDir,
    /// True if gateways log at level `debug`.
    pub debug: bool,
    pub gateways: Vec<RunningGateway>,
    /// Address at which west's gateway listens.
    pub west: SocketAddr,
    /// Address of west in the fabric, at which east connects.
    pub west_wan: SocketAddr,
}

/// The process of a gateway, and its log.
pub struct RunningGateway {
    pub process: Child,
    pub log: Arc<Log>,
}

/// Ranks, link and jobs of a deployment of two regions.
pub struct Layout<'a> {
    /// Number of ranks of east.
    pub east: u32,
    /// Number of ranks of west.
    pub west: u32,
    /// Names of the jobs.
    pub jobs: &'a [&'a str],
    /// Rate of each gateway's port.
    pub port_rate: &'a str,
    /// Rate of the link.
    pub rate: &'a str,
    /// Round-trip time of the link.
    pub rtt: &'a str,
    /// Random loss of the link.
    pub loss: Option<&'a str>,
    /// True if east connects to ports of a relay, which the test starts.
    pub relayed: bool,
    /// Memory of a job in a region.
    pub job_memory: &'a str,
}

impl Layout<'static> {
    /// A layout with the job `train` over a link of 1 Gbit/s and 2 ms.
    pub const fn of(east: u32, west: u32) -> Self {
        Self {
            east,
            west,
            jobs: &["train"],
            port_rate: "1 Gbit/s",
            rate: "1 Gbit/s",
            rtt: "2 ms",
            loss: None,
            relayed: false,
            job_memory: MEMORY,
        }
    }
}

/// Part of the log line of a gateway that serves trainers.
pub const UP_LINE: &str = "is up; trainers attach at";
/// Memory of each gateway.
const MEMORY: &str = "256 MiB";

impl Drop for Deployment {
    fn drop(&mut self) {
        for gateway in &mut self.gateways {
            let _ = gateway.process.kill();
            let _ = gateway.process.wait();
        }
    }
}

/// Returns the first address of a block of free ports on loopback.
fn free_address() -> SocketAddr {
    port_block::free_port_block().expect("free ports")
}

impl Deployment {
    /// Writes files and keys of two regions. Nothing runs yet.
    pub fn new(layout: &Layout<'_>) -> Self {
        let region = |ranks: u32, relayed: bool| {
            let listen = free_address();
            let wan = if relayed { free_address() } else { listen };
            Region { speeds: vec![1.0; ranks as usize], wan, listen, status: free_address() }
        };
        let (east, west) = (region(layout.east, false), region(layout.west, layout.relayed));
        let mut deployment = Self::without_files();
        (deployment.west, deployment.west_wan) = (west.listen, west.wan);
        let files = TwoRegions {
            fabric: "two",
            east,
            west,
            port_rate: &layout.port_rate,
            link_rate: &layout.rate,
            rtt: &layout.rtt,
            loss: layout.loss.as_ref().map(|loss| loss as &dyn std::fmt::Display),
            memory: MEMORY,
            jobs: layout.jobs,
            job_memory: layout.job_memory,
        };
        files.write_files(deployment.folder.path()).expect("written");
        deployment.certs("keys", layout.jobs);
        deployment
    }

    /// Makes the folder. It has no files, and the addresses of west are not set.
    pub fn without_files() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { folder, debug: false, gateways: vec![], west: nowhere, west_wan: nowhere }
    }

    /// Makes a CA, certificates and tokens in a folder.
    pub fn certs(&self, out: &str, jobs: &[&str]) {
        let output = Command::new(BINARY)
            .args(["certs", "--fabric"])
            .arg(self.path("fabric.toml"))
            .arg("--out")
            .arg(self.path(out))
            .args(jobs.iter().flat_map(|job| ["--job", job]))
            .output()
            .expect("runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the token of a job.
    pub fn token(&self, job: &str) -> Token {
        let text = std::fs::read_to_string(self.path(&format!("keys/{job}.token")));
        let text = text.expect("a token");
        let digits = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16);
        Token(std::array::from_fn(|at| digits(at).expect("hexadecimal")))
    }

    /// Lets the gateway of a region serve trainers of other hosts, with `more` keys in its table. Returns
    /// the way to it.
    pub fn serve_hosts(&self, region: &str, more: &str) -> AttachTlsGateway {
        let (file, address) = (self.path(&format!("{region}.toml")), free_address());
        let text = std::fs::read_to_string(&file).expect("readable");
        let keys = format!("attach = \"{address}\"\n{more}\nstatus = ");
        let text = text.replacen("status = ", &keys, 1);
        std::fs::write(&file, text).expect("written");
        let address = format!("tls://{address}").parse().expect("an address");
        AttachTlsGateway::new(address, self.path("keys/ca.pem"))
    }

    /// Returns the path of a file or socket in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts both gateways.
    pub fn run_gateways(&mut self) {
        for name in ["east", "west"] {
            self.run_gateway(name);
        }
    }

    /// Starts the gateway of a region.
    pub fn run_gateway(&mut self, name: &str) {
        self.run_gateway_by(name, Command::new(BINARY));
    }

    /// Starts the gateway of a region file with a command that ends in the binary, and waits until
    /// it is up.
    pub fn run_gateway_by(&mut self, name: &str, binary: Command) {
        let gateway = self.spawn_gateway_by(name, binary);
        gateway.log.line_with(UP_LINE);
        self.gateways.push(gateway);
    }

    /// Starts the gateway of a region file with a command that ends in the binary.
    pub fn spawn_gateway_by(&self, name: &str, mut binary: Command) -> RunningGateway {
        let mut process = binary
            .args(["run", "--config"])
            .arg(self.path(&format!("{name}.toml")))
            .env("LANDBRIDGE_LOG", if self.debug { "debug" } else { "info" })
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let log = Arc::<Log>::default();
        let (reader, stderr) = (Arc::clone(&log), process.stderr.take().expect("piped"));
        std::thread::spawn(move || reader.read(stderr));
        RunningGateway { process, log }
    }
}
