//! The exchange over quinn alone between two sites, as two processes.

use crate::testbed::error::LabError;
use crate::testbed::gateways::make_certificates;
use crate::testbed::processes::Processes;
use crate::testbed::site::{FABRIC, Testbed};
use std::path::{Path, PathBuf};
use std::process::Command;
use units::ByteCount;

/// Ports of the first connection: the sites' addresses may be on one machine.
const PORT: u16 = 7_600;

/// The settings of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Number of exchanges.
    pub iterations: u32,
    /// Number of connections.
    pub lanes: u16,
    /// UDP payload of a packet in bytes; quinn looks for it otherwise.
    pub mtu: Option<u16>,
    /// Bytes in flight of each connection; quinn's CUBIC otherwise.
    pub window: Option<u64>,
}

/// Returns the program `bare-quinn`, which is built with this one.
pub fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("bare-quinn")
}

/// Starts both sides of the exchange. Each prints a line at its begin, and one after each exchange.
///
/// # Errors
/// Keys cannot be made, or a program cannot be started.
pub fn start_exchanges(
    on: &dyn Testbed,
    program: &Path,
    set: &Setting,
) -> Result<Processes, LabError> {
    make_certificates(on)?;
    let (sites, addresses) = (on.sites(), on.addresses());
    let at = |number: usize| format!("{}:{PORT}", addresses[number]);
    let command = |number: usize| -> Command {
        let [me, peer] = [number, 1 - number].map(|number| format!("{}-0", sites[number]));
        let mut command = on.at(sites[number], program);
        command.arg("--keys").arg(on.path("keys"));
        command.args(["--fabric", FABRIC, "--me", &me, "--peer", &peer, "--at", &at(number)]);
        command.args(["--size", &ByteCount::new(set.bytes).to_string()]);
        command.args(["--iterations", &set.iterations.to_string()]);
        command.args(["--lanes", &set.lanes.to_string()]);
        if number == 0 {
            command.args(["--dial", &at(1)]);
        }
        if !on.has_segmentation_offload() {
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
    Ok(Processes::start(on.folder(), vec![command(0), command(1)], "quinn")?)
}
