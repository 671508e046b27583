//! Gateways of ours in a lab: their start, their all-reduces, and the packets their lanes lost.

use crate::arms::simulated;
use crate::lab::error::LabError;
use crate::lab::processes::{Begins, Processes};
use crate::lab::testbed::{Ground, Lab, SITES};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

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
    Ok(ranks.run_times(lab, "bench", Begins::WithoutAWord)?.seconds)
}

/// Packets that the lanes of both gateways have lost so far.
pub fn lost_packets(lab: &Lab) -> Option<u64> {
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

pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_default()
}

/// The region file of a site. Segmentation offload is off for netem, which would drop a whole
/// buffer as one packet.
fn region(site: &str, number: u8, ground: Ground) -> String {
    let at_once = ground != Ground::Netem;
    format!(
        "fabric = \"fabric.toml\"\n[gateway.{site}-0]\nsocket = \"{site}.sock\"\n\
         status = \"127.0.0.{number}:9400\"\ncertificate = \"keys/{site}-0.pem\"\n\
         key = \"keys/{site}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"1 GiB\"\n\
         segmentation_offload = {at_once}\n[job.train]\ntoken = \"keys/train.token\"\nmemory = \"8 GiB\"\n"
    )
}
