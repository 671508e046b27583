//! Trainers on another host of a gateway's site, which attach over TCP and TLS, beside TCP alone.
//!
//! The gateway of a site has two ranks. One attaches at its host, the other over the path that is
//! measured. That one contributes its block of a gather to the first, or gets its block of a scatter.

use crate::cell::CUT_AFTER;
use crate::contenders::peer_runs::{RUNS, iperf_rate};
use crate::contenders::peers::Tools;
use crate::lab::testbed::{Ground, Lab, SITES};
use crate::row::Row;
use scenarios::testbed::error::{LabError, check};
use scenarios::testbed::processes::{Begins, Processes};
use scenarios::testbed::programs::is_installed;
use scenarios::testbed::site::{Testbed as _, status_address};
use serde::Serialize;
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
    /// Medians of the trainer's transfers, in Gbit/s.
    pub gbit: f64,
    /// Medians of TCP alone, in Gbit/s.
    pub tcp_gbit: f64,
    /// Why the emulator calls it void.
    pub void: Option<String>,
}

/// 64 and 256 MiB: the transfers that are measured.
const SIZES: [u64; 2] = [64 << 20, 256 << 20];

/// Port at which the trainer attaches.
const PORT: u16 = 7480;

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
    if !is_installed("iperf3") {
        return Err(LabError::Unavailable("install iperf3".to_owned()));
    }
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
    let gbit = |seconds: f64| transfer.bytes as f64 * 8e-9 / seconds;
    // The memory of both ranks is mapped by the first.
    let times = collect(lab, transfer, 1 + RUNS)?;
    let ours = median(times.into_iter().skip(1).map(gbit));
    let bytes = transfer.bytes.to_string();
    let reverse: &[&str] = if transfer.way == Way::Down { &["-R"] } else { &[] };
    let mut alone = Vec::new();
    for _ in 0..RUNS {
        let (rate, _) = iperf_rate(lab, &[&["-n", &bytes][..], reverse].concat())?;
        alone.extend(rate.map(|rate| rate / 1e9));
    }
    let missing = || LabError::Failed(format!("{}: took too long", transfer.label()));
    let (gbit, tcp_gbit) = ours.zip(median(alone)).ok_or_else(missing)?;
    Ok(Attached { transfer, gbit, tcp_gbit, void: lab.seen()?.void })
}

/// Runs the collective that transfers the bytes; returns the seconds of each run.
fn collect(lab: &Lab, transfer: Transfer, iterations: u32) -> Result<Vec<f64>, LabError> {
    let (operation, root) = match transfer.way {
        Way::Up => ("gather", "1"),
        Way::Down => ("scatter", "1"),
    };
    let address = format!("tls://{}:{PORT}", lab.addresses[1]);
    let of_rank = |(rank, site): (&str, &str)| {
        let mut command = lab.landbridge_at(site);
        command.args(["bench", operation, "--json", "--root", root, "--rank", rank, "--config"]);
        command.arg(lab.path("site.toml"));
        // Each rank has one block of two.
        command.args(["--size", &ByteCount::new(2 * transfer.bytes).to_string()]);
        command.args(["--iterations", &iterations.to_string()]);
        command
    };
    let mut remote = of_rank(("0", SITES[0]));
    remote.args(["--attach", &address]);
    let ranks = Processes::start(lab.folder(), vec![remote, of_rank(("1", SITES[1]))], "attach")?;
    Ok(ranks.run_times(Begins::WithoutAWord, CUT_AFTER)?.seconds)
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
