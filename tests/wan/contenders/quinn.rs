//! The exchange over quinn alone, as two processes.

use super::gateways::certificates;
use crate::lab::error::LabError;
use crate::lab::processes::{Begins, Processes};
use crate::lab::program_output::RunTimes;
use crate::lab::testbed::{FABRIC, Ground, Lab, SITES};
use std::path::Path;
use std::process::Command;
use units::ByteCount;

/// Ports of the first connection: the sites' addresses may be on one machine.
const PORT: u16 = 7_600;

/// The settings of an exchange.
pub struct Setting {
    pub bytes: u64,
    pub iterations: u32,
    pub lanes: u16,
    /// UDP payload of a packet; quinn looks for it otherwise.
    pub mtu: Option<u16>,
    /// Bytes in flight of each connection; quinn's CUBIC otherwise.
    pub window: Option<u64>,
}

/// Both sides; what is missing took longer than a cell may.
pub fn exchanges(lab: &Lab, program: &Path, set: &Setting) -> Result<RunTimes, LabError> {
    certificates(lab)?;
    let at = |number: usize| format!("{}:{PORT}", lab.addresses[number]);
    let command = |number: usize| -> Command {
        let [me, peer] = [number, 1 - number].map(|number| format!("{}-0", SITES[number]));
        let mut command = lab.at(SITES[number], program);
        command.arg("--keys").arg(lab.path("keys"));
        command.args(["--fabric", FABRIC, "--me", &me, "--peer", &peer, "--at", &at(number)]);
        command.args(["--size", &ByteCount::new(set.bytes).to_string()]);
        command.args(["--iterations", &set.iterations.to_string()]);
        command.args(["--lanes", &set.lanes.to_string()]);
        if number == 0 {
            command.args(["--dial", &at(1)]);
        }
        if lab.ground == Ground::Netem {
            command.arg("--one-by-one");
        }
        if let Some(mtu) = set.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        if let Some(window) = set.window {
            command.args(["--window", &ByteCount::new(window).to_string()]);
        }
        command
    };
    let processes = Processes::start(lab, vec![command(0), command(1)], "quinn")?;
    processes.run_times(lab, "quinn", Begins::WithALine)
}
