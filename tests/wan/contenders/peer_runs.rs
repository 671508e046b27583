//! The runs of peers: iperf3, PyTorch's Gloo and Open MPI.

use super::gateways::parsed;
use crate::lab::error::LabError;
use crate::lab::processes::{Begins, Processes};
use crate::lab::program_output::RunTimes;
use crate::lab::testbed::{LAB_NETWORK, Lab, SITES};
use crate::row::COMMON;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

pub fn iperf(lab: &Lab, flows: u32) -> Result<RunTimes, LabError> {
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
    Ok(RunTimes { seconds, cpu_seconds })
}

/// Long enough to leave slow start behind at 200 ms.
const IPERF_SECONDS: &str = "3";

/// The all-reduce of PyTorch's Gloo.
const GLOO: &str = include_str!("gloo.py");

pub fn gloo(lab: &Lab, python: &Path) -> Result<RunTimes, LabError> {
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
    ranks.run_times(lab, "gloo", Begins::WithALine)
}

pub fn open_mpi(lab: &Lab, program: &Path) -> Result<RunTimes, LabError> {
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
    ranks.run_times(lab, "mpi", Begins::WithALine)
}

/// 3 runs of Landbridge and its peers, up to the common size; controls run once.
pub const RUNS: u32 = 3;
