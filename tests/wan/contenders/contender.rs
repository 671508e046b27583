//! Who is measured in the lab: we and our peers, each as its users run it.

use crate::arms::simulated;
use crate::contenders::quinn;
use crate::lab::program_output::Told;
use crate::lab::testbed::{Begins, Ground, LAB_NETWORK, Lab, LabError, Processes, SITES};
use crate::row::{COMMON, Cell, Row};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use units::ByteCount;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Landbridge,
    /// Ours, with the whole buffer as one segment.
    OneSegment,
    /// Ours, with quinn's CUBIC in place of `link-share`.
    Cubic,
    /// One connection with quinn's defaults, or with so many bytes in flight.
    Quinn {
        window: Option<u64>,
    },
    /// So many flows of `iperf3` with CUBIC, one way.
    Iperf {
        flows: u32,
    },
    /// PyTorch's Gloo.
    Gloo {
        congestion: &'static str,
    },
    /// Open MPI with four TCP connections for each peer.
    OpenMpi {
        congestion: &'static str,
    },
}

/// Where programs and peers are.
#[derive(Debug)]
pub struct Tools {
    pub landbridge: PathBuf,
    /// The exchange over quinn alone.
    pub quinn: PathBuf,
    /// Python with torch.
    pub python: Option<PathBuf>,
    /// The compiled all-reduce of MPI.
    pub mpi: Option<PathBuf>,
}

impl Contender {
    pub const ALL: [Self; 11] = [
        Self::Landbridge,
        Self::OneSegment,
        Self::Cubic,
        Self::Quinn { window: None },
        Self::Quinn { window: Some(quinn::FIXED_WINDOW) },
        Self::Gloo { congestion: "cubic" },
        Self::Gloo { congestion: "bbr" },
        Self::OpenMpi { congestion: "cubic" },
        Self::OpenMpi { congestion: "bbr" },
        Self::Iperf { flows: 1 },
        Self::Iperf { flows: 8 },
    ];

    pub fn name(self) -> String {
        match self {
            Self::Landbridge => "landbridge".to_owned(),
            Self::OneSegment => simulated::ONE_SEGMENT.to_owned(),
            Self::Cubic => simulated::CUBIC.to_owned(),
            Self::Quinn { window: None } => "quinn, defaults".to_owned(),
            Self::Quinn { window: Some(bytes) } => {
                format!("quinn, window of {}", ByteCount::new(bytes))
            }
            Self::Iperf { flows } => format!("iperf3 x{flows}, cubic"),
            Self::Gloo { congestion } => format!("Gloo, {congestion}"),
            Self::OpenMpi { congestion } => format!("Open MPI, {congestion}"),
        }
    }

    /// Why it cannot run here.
    pub fn missing(self, tools: &Tools) -> Option<&'static str> {
        match self {
            Self::Landbridge | Self::OneSegment | Self::Cubic | Self::Quinn { .. } => None,
            Self::Iperf { .. } => (!runs("iperf3")).then_some("install iperf3"),
            Self::Gloo { .. } => tools.python.is_none().then_some(
                "no torch in target/peers/torch: install python3-venv, and see that pip can have it",
            ),
            Self::OpenMpi { .. } => tools.mpi.is_none().then_some(
                "no mpicc and mpirun: install openmpi-bin and libopenmpi-dev",
            ),
        }
    }

    /// What it is measured with.
    pub fn sizes(self, row: &Row) -> &'static [u64] {
        if self == Self::Landbridge { row.sizes } else { &[COMMON] }
    }

    /// Runs these sizes over a link, in a lab of its own.
    ///
    /// # Errors
    /// What went wrong; nothing is known of any of them then.
    pub fn measure(
        self,
        tools: &Tools,
        row: &Row,
        ground: Ground,
        sizes: &[u64],
    ) -> Result<Vec<Cell>, LabError> {
        let controller = if self == Self::Cubic { "cubic" } else { "link-share" };
        let lab = Lab::up(&tools.landbridge, row, ground, controller)?;
        match self {
            Self::Landbridge | Self::Cubic => self.landbridge(&lab, row, sizes, &[]),
            Self::OneSegment => {
                self.landbridge(&lab, row, sizes, &["--segment", &format!("{COMMON} B")])
            }
            Self::Quinn { window } => self.quinn(tools, &lab, row, window),
            Self::Iperf { flows } => {
                lab.tcp("cubic")?;
                self.peer(&lab, row, |lab| iperf(lab, flows))
            }
            Self::Gloo { congestion } => {
                lab.tcp(congestion)?;
                let python = tools.python.as_deref().unwrap_or(Path::new("python3"));
                self.peer(&lab, row, |lab| gloo(lab, python))
            }
            Self::OpenMpi { congestion } => {
                lab.tcp(congestion)?;
                let program = tools.mpi.as_deref().unwrap_or(Path::new("all_reduce"));
                self.peer(&lab, row, |lab| open_mpi(lab, program))
            }
        }
    }

    fn landbridge(
        self,
        lab: &Lab,
        row: &Row,
        sizes: &[u64],
        arguments: &[&str],
    ) -> Result<Vec<Cell>, LabError> {
        let gateways = gateways(lab, arguments)?;
        let (mut cells, mut lost) = (Vec::new(), lost_packets(lab));
        for bytes in sizes {
            let once = *bytes > COMMON || self != Self::Landbridge;
            let iterations = if once { 1 } else { RUNS };
            let cpu = gateways.cpu_seconds();
            let seconds = bench(lab, *bytes, iterations)?;
            let cpu = gateways.cpu_seconds() - cpu;
            let is_cut = seconds.is_empty();
            let mut cell = self.cell(lab, row, *bytes, seconds)?;
            if is_cut {
                cells.push(cell);
                break;
            }
            let moved = *bytes as f64 * f64::from(iterations) / 1e9;
            cell.cpu_seconds_per_gb = Some(cpu / moved).filter(|_| cpu >= CPU_SECONDS_MIN);
            let before = std::mem::replace(&mut lost, lost_packets(lab));
            let packets = lost.zip(before).map(|(after, before)| after - before);
            let of_run = |packets| packets * simulated::PACKET_PAYLOAD / u64::from(iterations);
            cell.retransmitted_bytes = packets.map(of_run);
            cells.push(cell);
        }
        Ok(cells)
    }

    fn quinn(
        self,
        tools: &Tools,
        lab: &Lab,
        row: &Row,
        window: Option<u64>,
    ) -> Result<Vec<Cell>, LabError> {
        let set = quinn::Setting { bytes: COMMON, iterations: 1, lanes: 1, mtu: None, window };
        Ok(vec![self.of_common(lab, row, quinn::exchanges(lab, &tools.quinn, &set)?)?])
    }

    /// Anybody else: one size.
    fn peer(
        self,
        lab: &Lab,
        row: &Row,
        run: impl FnOnce(&Lab) -> Result<Told, LabError>,
    ) -> Result<Vec<Cell>, LabError> {
        let before = lab.tcp_resent();
        let told = run(lab)?;
        let runs = told.seconds.len().max(1) as u64;
        let mut cell = self.of_common(lab, row, told)?;
        let resent = lab.tcp_resent().zip(before).map(|(after, before)| after - before);
        cell.retransmitted_bytes = resent.map(|segments| segments * 1448 / runs);
        Ok(vec![cell])
    }

    /// Of whoever measures its own processor time.
    fn of_common(self, lab: &Lab, row: &Row, told: Told) -> Result<Cell, LabError> {
        let cpu_seconds_per_gb = told.cpu_seconds_per_gb(COMMON);
        Ok(Cell { cpu_seconds_per_gb, ..self.cell(lab, row, COMMON, told.seconds)? })
    }

    fn cell(self, lab: &Lab, row: &Row, bytes: u64, seconds: Vec<f64>) -> Result<Cell, LabError> {
        let bound = row.bound(&row.shape().fabric(), bytes);
        let mut cell = Cell::new(&self.name(), lab.ground.name(), bytes, seconds, bound);
        let seen = lab.seen()?;
        (cell.queue_bytes_peak, cell.void) = (seen.queue_bytes_peak, seen.void);
        Ok(cell)
    }
}

/// Starts both gateways and waits until they have met.
pub fn gateways(lab: &Lab, arguments: &[&str]) -> Result<Processes, LabError> {
    certificates(lab)?;
    let mut commands = Vec::new();
    for (number, site) in (1..).zip(SITES) {
        let file = lab.path(&format!("{site}.toml"));
        std::fs::write(&file, region(site, number, lab.ground))?;
        let mut command = lab.landbridge_at(site);
        command.arg("run").arg("--config").arg(file).args(arguments);
        commands.push(command);
    }
    let gateways = Processes::start(lab, commands, "gateway")?;
    // A rank attaches once the gateways have met; the first all-reduce warms memory up.
    for _ in 0..50 {
        if SITES.iter().all(|site| lab.path(&format!("{site}.sock")).exists()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    if bench(lab, 1 << 20, 1)?.is_empty() {
        return Err(LabError::Failed("the first all-reduce of gateways did not end".to_owned()));
    }
    Ok(gateways)
}

/// Keys of both gateways, in `keys`.
pub fn certificates(lab: &Lab) -> Result<(), LabError> {
    let mut certs = lab.landbridge_at(SITES[0]);
    certs.args(["certs", "--fabric"]).arg(lab.path("fabric.toml"));
    let made = certs.arg("--out").arg(lab.path("keys")).output()?;
    if !made.status.success() {
        return Err(LabError::Failed(String::from_utf8_lossy(&made.stderr).into_owned()));
    }
    Ok(())
}

/// Seconds of all-reduces, from the last post to the last result; none where they take too long.
pub fn bench(lab: &Lab, bytes: u64, iterations: u32) -> Result<Vec<f64>, LabError> {
    let command = |(rank, site): (usize, &&str)| {
        let mut command = lab.landbridge_at(site);
        command.args(["bench", "all-reduce", "--json", "--config"]);
        command.arg(lab.path(&format!("{site}.toml"))).args(["--rank", &rank.to_string()]);
        command.args(["--size", &format!("{bytes} B"), "--iterations", &iterations.to_string()]);
        command
    };
    let commands: Vec<Command> = SITES.iter().enumerate().map(command).collect();
    let ranks = Processes::start(lab, commands, "bench")?;
    Ok(ranks.told(lab, "bench", Begins::WithoutAWord)?.seconds)
}

/// What the lanes of both gateways have lost so far.
fn lost_packets(lab: &Lab) -> Option<u64> {
    std::thread::sleep(simulated::COUNTED_WITHIN);
    let of_site = |site: &&str| {
        let mut command = lab.landbridge_at(site);
        command.args(["status", "--json", "--config"]).arg(lab.path(&format!("{site}.toml")));
        let status = parsed(&String::from_utf8_lossy(&command.output().ok()?.stdout));
        let peers = status["peers"].as_array()?.clone();
        peers.iter().map(|peer| peer["lost_packets"].as_u64()).sum::<Option<u64>>()
    };
    SITES.iter().map(of_site).sum()
}

fn iperf(lab: &Lab, flows: u32) -> Result<Told, LabError> {
    let iperf3 = Path::new("iperf3");
    let mut server = lab.at(SITES[1], iperf3);
    server.args(["-s", "-1", "--forceflush"]);
    let _server = Processes::start(lab, vec![server], "server")?;
    std::thread::sleep(Duration::from_millis(300));
    let mut client = lab.at(SITES[0], iperf3);
    client.args(["-c", lab.addresses[1], "-J", "-P", &flows.to_string()]);
    client.args(["-t", IPERF_SECONDS]);
    let client = Processes::start(lab, vec![client], "iperf")?;
    let outputs = client.outputs(lab, "iperf", Begins::WithoutAWord)?;
    let end = &parsed(&outputs.texts[0])["end"];
    let rate = end["sum_received"]["bits_per_second"].as_f64();
    if outputs.complete && rate.is_none() {
        return Err(LabError::Failed("iperf: tells of no rate".to_owned()));
    }
    let seconds: Vec<f64> = rate.map(|rate| COMMON as f64 * 8.0 / rate).into_iter().collect();
    // Both ends tell how much of one processor they took.
    let sides = ["host_total", "remote_total"];
    let percent = sides.map(|side| end["cpu_utilization_percent"][side].as_f64());
    let percent: Option<f64> = percent.into_iter().sum();
    let cpu_seconds = percent.map(|percent| percent / 100.0 * seconds.iter().sum::<f64>());
    Ok(Told { seconds, cpu_seconds })
}

/// Long enough to leave slow start behind at 200 ms.
const IPERF_SECONDS: &str = "3";

/// The kernel counts processor time in hundredths of a second: less than this is mostly rounding.
const CPU_SECONDS_MIN: f64 = 0.2;

/// Of ours and of our peers, up to the common size; controls run once.
const RUNS: u32 = 3;

const GLOO: &str = include_str!("gloo.py");

fn gloo(lab: &Lab, python: &Path) -> Result<Told, LabError> {
    let script = lab.path("gloo.py");
    std::fs::write(&script, GLOO)?;
    let command = |(rank, site): (usize, &&str)| {
        let mut command = lab.at(site, python);
        command.arg(&script).args([
            &rank.to_string(),
            lab.addresses[0],
            &COMMON.to_string(),
            &RUNS.to_string(),
        ]);
        command.env("GLOO_SOCKET_IFNAME", "wan0");
        command
    };
    let commands = SITES.iter().enumerate().map(command).collect();
    let ranks = Processes::start(lab, commands, "gloo")?;
    ranks.told(lab, "gloo", Begins::WithALine)
}

fn open_mpi(lab: &Lab, program: &Path) -> Result<Told, LabError> {
    // How `mpirun` gets to a site: its first argument.
    let agent = lab.path("agent");
    std::fs::write(&agent, lab.agent())?;
    std::fs::set_permissions(&agent, Permissions::from_mode(0o700))?;
    let mut command = lab.at(SITES[0], Path::new("mpirun"));
    command.args(["--allow-run-as-root", "--host", "east:1,west:1", "-np", "2"]);
    command.arg("--mca").arg("plm_rsh_agent").arg(&agent);
    for (name, value) in [
        ("plm_rsh_no_tree_spawn", "1"),
        ("oob_tcp_if_include", LAB_NETWORK),
        ("pml", "ob1"),
        ("btl", "tcp,self"),
        ("btl_tcp_links", "4"),
        ("btl_tcp_if_include", LAB_NETWORK),
        ("btl_tcp_sndbuf", "0"),
        ("btl_tcp_rcvbuf", "0"),
    ] {
        command.args(["--mca", name, value]);
    }
    command.arg(program).args([&COMMON.to_string(), &RUNS.to_string()]);
    let ranks = Processes::start(lab, vec![command], "mpi")?;
    ranks.told(lab, "mpi", Begins::WithALine)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_default()
}

/// Whether a program is there.
pub fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// netem loses what is handed over at once as one packet.
fn region(site: &str, number: u8, ground: Ground) -> String {
    let at_once = ground != Ground::Netem;
    format!(
        "fabric = \"fabric.toml\"\n[gateway.{site}-0]\nsocket = \"{site}.sock\"\n\
         status = \"127.0.0.{number}:9400\"\ncertificate = \"keys/{site}-0.pem\"\n\
         key = \"keys/{site}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"1 GiB\"\n\
         segmentation_offload = {at_once}\n[job.train]\ntoken = \"keys/train.token\"\nmemory = \"8 GiB\"\n"
    )
}
