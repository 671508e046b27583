//! Controls that only stream, one connection each way: TCP in clear, and TLS 1.3 over TCP.

use super::gateways::spent_by_all;
use super::running::Running;
use crate::ground::LoopbackSites;
use crate::measured::Sample;
use crate::row::Contender;
use scenarios::testbed::counters::Counters;
use scenarios::testbed::error::LabError;
use scenarios::testbed::gateways::make_certificates;
use scenarios::testbed::processes::Processes;
use scenarios::testbed::site::Testbed;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Port of the first server; the other way uses the next one.
const PORT: u16 = 5_201;

/// 500 ms until servers listen, and again until connections have left slow start.
const WARM_UP: Duration = Duration::from_millis(500);

/// 3 s for which streams are measured.
const SPAN: Duration = Duration::from_secs(3);

/// The cipher of gateways, so that only the transport differs.
const CIPHER: &str = "TLS_AES_128_GCM_SHA256";

/// Two connections between two sites, one each way.
pub struct Streams {
    /// Processes that send.
    clients: Processes,
    /// Processes that receive.
    servers: Processes,
    /// Folder of keys and outputs, which goes away last.
    _sites: LoopbackSites,
}

impl Streams {
    /// Starts a stream each way between two sites.
    ///
    /// # Errors
    /// A program does not start.
    pub fn start(who: Contender, sites: LoopbackSites) -> Result<Self, LabError> {
        let is_tls = who == Contender::Tls;
        if is_tls {
            make_certificates(&sites)?;
        }
        let server: MakeServer = if is_tls { tls_server } else { tcp_server };
        let client: MakeClient = if is_tls { tls_client } else { tcp_client };
        let servers = vec![server(&sites, 0), server(&sites, 1)];
        let servers = Processes::start(sites.folder(), servers, "server")?;
        std::thread::sleep(WARM_UP);
        let clients = vec![client(&sites, 0)?, client(&sites, 1)?];
        let clients = Processes::start(sites.folder(), clients, "client")?;
        std::thread::sleep(WARM_UP);
        Ok(Self { clients, servers, _sites: sites })
    }

    /// Reads the counters of servers and clients.
    fn counters(&mut self) -> Result<[Vec<Counters>; 2], LabError> {
        // A stream ends only when its program has failed.
        if self.clients.are_done()? || self.servers.are_done()? {
            return Err(LabError::Failed("a stream has ended early".to_owned()));
        }
        Ok([self.servers.counters()?, self.clients.counters()?])
    }
}

/// Makes the command of the server at one site.
type MakeServer = fn(&LoopbackSites, usize) -> Command;

/// Makes the command of the client at one site, which sends to the server at the other.
type MakeClient = fn(&LoopbackSites, usize) -> Result<Command, LabError>;

impl Running for Streams {
    fn ids(&self) -> Vec<u32> {
        self.servers.ids().chain(self.clients.ids()).collect()
    }

    fn sample(&mut self) -> Result<Sample, LabError> {
        let (before, begun) = (self.counters()?, Instant::now());
        std::thread::sleep(SPAN);
        let (after, seconds) = (self.counters()?, begun.elapsed().as_secs_f64());
        let [servers, clients] = [0, 1].map(|side| spent_by_all(&before[side], &after[side]));
        // The buffer crosses both ways at once.
        let gigabytes = clients.written_bytes / 2.0 / 1e9;
        if gigabytes <= 0.0 {
            return Err(LabError::Failed("a stream sends nothing".to_owned()));
        }
        let both = servers + clients;
        Ok(Sample {
            gigabytes,
            gbit: 8.0 * gigabytes / seconds,
            cpu_seconds: both.cpu_seconds,
            wakeups: Some(both.wakeups),
            ..Sample::default()
        })
    }
}

/// Returns address and port of the server at a site.
fn server_at(sites: &LoopbackSites, number: usize) -> (&'static str, String) {
    (sites.addresses()[number], (usize::from(PORT) + number).to_string())
}

/// Returns the server of `iperf3` at a site.
fn tcp_server(sites: &LoopbackSites, number: usize) -> Command {
    let (address, port) = server_at(sites, number);
    let mut command = sites.at(sites.sites()[number], Path::new("iperf3"));
    command.args(["-s", "-1", "-B", address, "-p", &port]);
    command
}

/// Returns the client of `iperf3` at a site.
fn tcp_client(sites: &LoopbackSites, number: usize) -> Result<Command, LabError> {
    let (address, port) = server_at(sites, 1 - number);
    let mut command = sites.at(sites.sites()[number], Path::new("iperf3"));
    command.args(["-c", address, "-p", &port, "-B", sites.addresses()[number]]);
    // Until it is killed.
    command.args(["-t", "600"]);
    Ok(command)
}

/// Returns the server of `openssl` at a site, with the keys of the gateway there.
fn tls_server(sites: &LoopbackSites, number: usize) -> Command {
    let (address, port) = server_at(sites, number);
    let name = sites.sites()[number];
    let mut command = sites.at(name, Path::new("sh"));
    // Its output is what it receives.
    command.args(["-c", "exec openssl s_server \"$@\" > /dev/null", "sh"]);
    command.args(["-quiet", "-tls1_3", "-ciphersuites", CIPHER]);
    command.args(["-accept", &format!("{address}:{port}")]);
    command.arg("-cert").arg(sites.path(&format!("keys/{name}-0.pem")));
    command.arg("-key").arg(sites.path(&format!("keys/{name}-0.key")));
    // At the end of its input it would ask for more without a pause.
    command.stdin(Stdio::piped());
    command
}

/// Returns the client of `openssl` at a site.
fn tls_client(sites: &LoopbackSites, number: usize) -> Result<Command, LabError> {
    let (address, port) = server_at(sites, 1 - number);
    let mut command = sites.at(sites.sites()[number], Path::new("openssl"));
    command.args(["s_client", "-quiet", "-tls1_3", "-ciphersuites", CIPHER]);
    command.args(["-connect", &format!("{address}:{port}")]);
    command.stdin(File::open("/dev/zero")?);
    Ok(command)
}
