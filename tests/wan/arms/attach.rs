//! Trainers on another host of a gateway's site, which attach over TCP, beside TCP and TLS alone.
//!
//! The program `attach-stream` moves the bytes: between a rank and its gateway, or over one connection
//! between two of its own processes. Contenders take turns, so that all see the same machine.

use crate::cell::CUT_AFTER;
use crate::contenders::peer_runs::RUNS;
use crate::contenders::peers::Tools;
use crate::lab::testbed::{Ground, Lab, SITES};
use crate::row::Row;
use scenarios::testbed::error::{LabError, check};
use scenarios::testbed::processes::{Begins, Processes};
use scenarios::testbed::run_times::RunTimes;
use scenarios::testbed::site::{Testbed as _, status_address};
use serde::Serialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use units::ByteCount;

/// The way of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From the trainer to its gateway.
    Up,
    /// From the gateway to its trainer.
    Down,
}

/// One transfer: the path, the way and the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    pub ground: Ground,
    pub way: Way,
    pub bytes: u64,
}

/// A transfer as it was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Attached {
    #[serde(skip)]
    pub transfer: Transfer,
    /// Rate of the trainer's transfers, in Gbit/s.
    pub gbit: f64,
    /// Rate of TCP alone, in Gbit/s.
    pub tcp_gbit: f64,
    /// Rate of TLS alone, in Gbit/s.
    pub tls_gbit: f64,
    /// Why the emulator calls it void.
    pub void: Option<String>,
}

/// A contender that moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mover {
    /// A trainer and its gateway.
    Trainer,
    /// TCP alone.
    Tcp,
    /// TLS over TCP alone.
    Tls,
}

/// 64 and 256 MiB: the transfers that are measured.
const SIZES: [u64; 2] = [64 << 20, 256 << 20];

/// Port at which the trainer attaches.
const PORT: u16 = 7480;
/// Port of TCP and TLS alone.
const ALONE_PORT: u16 = 7481;

/// 3 turns of each contender: medians are over the runs of all turns.
const TURNS: u32 = 3;

/// 5 s, within which a gateway makes its socket.
const SOCKET_WITHIN: Duration = Duration::from_secs(5);

/// The fabric of the site: one gateway with two ranks, and nothing beyond it.
const FABRIC: &str =
    "name = \"site\"\nmtu = 1500\n[region.site]\nranks = 2\n[region.site.gateway.site-0]\n";

impl Transfer {
    /// Returns all transfers that are measured.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for ground in [Ground::Loopback, Ground::Lab] {
            for way in [Way::Up, Way::Down] {
                all.extend(SIZES.map(|bytes| Self { ground, way, bytes }));
            }
        }
        all
    }

    /// Returns the transfer in words.
    pub fn label(&self) -> String {
        let way = match self.way {
            Way::Up => "to the gateway",
            Way::Down => "from the gateway",
        };
        format!("{}, {way}, {}", self.ground.name(), ByteCount::new(self.bytes))
    }
}

impl Attached {
    /// Returns the trainer's rate over that of TCP alone; `None` where the run is void.
    pub fn ratio(&self) -> Option<f64> {
        self.void.is_none().then_some(self.gbit / self.tcp_gbit)
    }
}

/// Measures all transfers over one kind of path.
///
/// # Errors
/// [`LabError`]; there are no figures then.
pub fn measure(tools: &Tools, ground: Ground) -> Result<Vec<Attached>, LabError> {
    let near = &Row::of_operations()[0];
    let lab = match ground {
        Ground::Loopback => Lab::loopback(&tools.landbridge, near, 1500)?,
        Ground::Lab | Ground::Netem => Lab::up(&tools.landbridge, near, ground, "dedicated")?,
    };
    let _gateway = start_gateway(&lab)?;
    let transfers = Transfer::all().into_iter().filter(|transfer| transfer.ground == ground);
    transfers.map(|transfer| measure_transfer(&lab, transfer)).collect()
}

fn measure_transfer(lab: &Lab, transfer: Transfer) -> Result<Attached, LabError> {
    let movers = [Mover::Trainer, Mover::Tcp, Mover::Tls];
    let mut seconds = movers.map(|_| Vec::new());
    for _ in 0..TURNS {
        for (mover, seconds) in movers.iter().zip(&mut seconds) {
            // The first run of each meets windows and caches that are not warm.
            seconds.extend(mover.move_bytes(lab, transfer)?.seconds.into_iter().skip(1));
        }
    }
    let gbit = |seconds: f64| transfer.bytes as f64 * 8e-9 / seconds;
    let missing = || LabError::Failed(format!("{}: took too long", transfer.label()));
    let rates = seconds.map(|seconds| median(seconds).map(gbit).ok_or_else(missing));
    let [gbit, tcp_gbit, tls_gbit] = rates;
    let (gbit, tcp_gbit, tls_gbit) = (gbit?, tcp_gbit?, tls_gbit?);
    Ok(Attached { transfer, gbit, tcp_gbit, tls_gbit, void: lab.seen()?.void })
}

/// Returns the program `attach-stream`, which is built with this one.
fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("attach-stream")
}

impl Mover {
    /// Moves the bytes once, and then as often as is measured; returns the times of all.
    fn move_bytes(self, lab: &Lab, transfer: Transfer) -> Result<RunTimes, LabError> {
        let [near, far] = SITES;
        let commands = match self {
            Self::Trainer => {
                let mut trainer = with_runs(lab.at(near, &program()), "trainer", transfer);
                trainer.arg("--attach").arg(format!("tls://{}:{PORT}", lab.addresses[1]));
                trainer.arg("--socket").arg(lab.path("site.sock"));
                trainer.arg("--keys").arg(lab.path("site-keys"));
                vec![trainer]
            }
            Self::Tcp | Self::Tls => [near, far]
                .map(|site| {
                    let mut end = with_runs(lab.at(site, &program()), "alone", transfer);
                    end.arg("--at").arg(format!("{}:{ALONE_PORT}", lab.addresses[1]));
                    if site == near {
                        end.arg("--dial");
                    }
                    if self == Self::Tls {
                        end.arg("--keys").arg(lab.path("site-keys"));
                    }
                    end
                })
                .into(),
        };
        let processes = Processes::start(lab.folder(), commands, "attach")?;
        processes.run_times(Begins::WithoutAWord, CUT_AFTER)
    }
}

/// Returns the command with what is to be moved.
fn with_runs(mut command: Command, what: &str, transfer: Transfer) -> Command {
    let way = match transfer.way {
        Way::Up => "up",
        Way::Down => "down",
    };
    command.args([what, "--way", way, "--size", &ByteCount::new(transfer.bytes).to_string()]);
    command.args(["--iterations", &(1 + RUNS).to_string()]);
    command
}

/// Starts the gateway of the site, and waits for its socket.
fn start_gateway(lab: &Lab) -> Result<Processes, LabError> {
    let (fabric, region) = (lab.path("site-fabric.toml"), lab.path("site.toml"));
    std::fs::write(&fabric, FABRIC)?;
    let region_text = format!(
        "fabric = \"site-fabric.toml\"\n[gateway.site-0]\nsocket = \"site.sock\"\n\
         attach = \"{}:{PORT}\"\nstatus = \"{}\"\ncertificate = \"site-keys/site-0.pem\"\n\
         key = \"site-keys/site-0.key\"\nca = \"site-keys/ca.pem\"\nmemory = \"1 GiB\"\n\
         [job.train]\ntoken = \"site-keys/train.token\"\nmemory = \"8 GiB\"\n",
        lab.addresses[1],
        status_address(1)
    );
    std::fs::write(&region, region_text)?;
    let mut certs = lab.landbridge_at(SITES[1]);
    certs.args(["certs", "--fabric"]).arg(&fabric).arg("--out").arg(lab.path("site-keys"));
    check(&certs.output()?)?;
    let mut gateway = lab.landbridge_at(SITES[1]);
    gateway.args(["run", "--config"]).arg(&region);
    let mut gateway = Processes::start(lab.folder(), vec![gateway], "site")?;
    let begun = Instant::now();
    while !lab.path("site.sock").exists() && begun.elapsed() < SOCKET_WITHIN {
        if gateway.are_done()? {
            return Err(LabError::Failed("the gateway has ended".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(gateway)
}

fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
