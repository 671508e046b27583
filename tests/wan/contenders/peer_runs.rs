//! The runs of peers: iperf3, PyTorch's Gloo and Open MPI; and the packets that lanes of ours lost.

use crate::arms::simulated;
use crate::cell::CUT_AFTER;
use crate::lab::testbed::{DEVICE, LAB_NETWORK, Lab, SITES};
use crate::row::COMMON;
use scenarios::testbed::collective_runs::CollectiveRuns;
use scenarios::testbed::controls::gloo::start_gloo;
use scenarios::testbed::error::LabError;
use scenarios::testbed::processes::{Begins, Processes};
use scenarios::testbed::run_times::RunTimes;
use scenarios::testbed::site::Testbed;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

/// Runs `iperf3` from the first site to the second with further arguments. Returns the bits per
/// second that were received, and all that it tells of the end; no rate where it was cut.
fn iperf_rate(lab: &Lab, arguments: &[&str]) -> Result<(Option<f64>, Value), LabError> {
    let iperf3 = Path::new("iperf3");
    let mut server = lab.at(SITES[1], iperf3);
    server.args(["-s", "-1", "--forceflush"]);
    let _server = Processes::start(lab.folder(), vec![server], "server")?;
    std::thread::sleep(Duration::from_millis(300));
    let mut client = lab.at(SITES[0], iperf3);
    client.args(["-c", lab.addresses[1], "-J"]).args(arguments);
    let client = Processes::start(lab.folder(), vec![client], "iperf")?;
    let outputs = client.outputs(Begins::WithoutAWord, CUT_AFTER)?;
    let end = parsed(&outputs.texts[0])["end"].take();
    let rate = end["sum_received"]["bits_per_second"].as_f64();
    if outputs.complete && rate.is_none() {
        return Err(LabError::Failed("iperf: tells of no rate".to_owned()));
    }
    Ok((rate, end))
}

pub fn iperf(lab: &Lab, flows: u32) -> Result<RunTimes, LabError> {
    let (rate, end) = iperf_rate(lab, &["-P", &flows.to_string(), "-t", IPERF_SECONDS])?;
    let seconds: Vec<f64> = rate.map(|rate| COMMON as f64 * 8.0 / rate).into_iter().collect();
    // Both ends tell how much of one processor they took.
    let sides = ["host_total", "remote_total"];
    let percent = sides.map(|side| end["cpu_utilization_percent"][side].as_f64());
    let percent: Option<f64> = percent.into_iter().sum();
    let cpu_seconds = percent.map(|percent| percent / 100.0 * seconds.iter().sum::<f64>());
    Ok(RunTimes { seconds, cpu_seconds, wakeups: None })
}

/// Long enough to leave slow start behind at 200 ms.
const IPERF_SECONDS: &str = "3";

pub fn gloo(lab: &Lab, python: &Path, runs: &CollectiveRuns) -> Result<RunTimes, LabError> {
    start_gloo(lab, python, DEVICE, runs)?.run_times(Begins::WithALine, CUT_AFTER)
}

pub fn open_mpi(lab: &Lab, program: &Path, runs: &CollectiveRuns) -> Result<RunTimes, LabError> {
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
    command.arg(program).args(runs.arguments());
    let ranks = Processes::start(lab.folder(), vec![command], "mpi")?;
    ranks.run_times(Begins::WithALine, CUT_AFTER)
}

/// 3 runs of Landbridge and its peers, up to the common size; controls run once.
pub const RUNS: u32 = 3;

/// Packets that the lanes of both gateways have lost so far.
pub fn lost_packets(lab: &Lab) -> Option<u64> {
    std::thread::sleep(simulated::COUNTED_WITHIN);
    let of_site = |site: &&str| {
        let mut command = lab.landbridge_at(site);
        command.args(["status", "--json", "--config"]).arg(lab.config(site));
        let status = parsed(&String::from_utf8_lossy(&command.output().ok()?.stdout));
        let peers = status["peers"].as_array()?.clone();
        peers.iter().map(|peer| peer["lost_packets"].as_u64()).sum::<Option<u64>>()
    };
    SITES.iter().map(of_site).sum()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_default()
}
