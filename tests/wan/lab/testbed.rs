//! The testbeds of real processes: two sites with a link between them, as `wan-sim lab` makes
//! them, or as the kernel's netem does by the commands that `wan-sim tc` renders.

use super::emulator::EmulatorMeter;
use super::link_state::LinkState;
use crate::row::Row;
use scenarios::testbed::error::{LabError, check};
use scenarios::testbed::site::{FabricText, Testbed};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The sites' addresses in every lab of two.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// The sites' addresses where nothing is between them.
const LOOPBACK: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The network that all of a lab are in.
pub const LAB_NETWORK: &str = "10.77.0.0/16";

/// The sites, which are also the regions.
pub const SITES: [&str; 2] = ["east", "west"];

/// Most that TCP may hold for one socket: several of the largest BDP.
const SOCKET_BYTES: &str = "4096 1048576 268435456";

/// Two sites that are up, and the folder of everything that belongs to them.
pub struct Lab {
    pub folder: tempfile::TempDir,
    pub landbridge: PathBuf,
    pub addresses: [&'static str; 2],
    pub ground: Ground,
    /// Process of `wan-sim lab`; `None` on other grounds.
    emulator: Option<u32>,
}

/// The kind of path between the sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Nothing: both are this machine's loopback.
    Loopback,
    /// A link that `wan-sim lab` emulates, between namespaces.
    Lab,
    /// Two devices of the kernel, between namespaces, which netem shapes.
    Netem,
}

impl Ground {
    /// The name in a cell.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Lab => "lab",
            Self::Netem => "netem",
        }
    }
}

/// The sites' device.
pub const DEVICE: &str = "wan0";

/// 1500 bytes: the MTU of Ethernet.
const MTU: u16 = 1500;

impl Lab {
    /// Makes the sites and starts the link.
    pub fn up(
        landbridge: &Path,
        row: &Row,
        ground: Ground,
        controller: &str,
    ) -> Result<Self, LabError> {
        let folder = tempfile::tempdir()?;
        let (landbridge, addresses) = (landbridge.to_owned(), ADDRESSES);
        let (ground_so_far, emulator) = (Ground::Loopback, None);
        let mut lab = Self { folder, landbridge, addresses, ground: ground_so_far, emulator };
        fs::write(lab.path("fabric.toml"), fabric(row, MTU, addresses, controller))?;
        match ground {
            Ground::Loopback => {}
            Ground::Lab => {
                check(&lab.wan_sim("up", &[])?)?;
                // From here on there is something to take down.
                lab.ground = ground;
                lab.emulator = lab.emulator_process()?;
            }
            Ground::Netem => {
                lab.ground = ground;
                lab.join_namespaces()?;
            }
        }
        for site in SITES {
            for name in ["tcp_rmem", "tcp_wmem"] {
                lab.set(site, &format!("net.ipv4.{name}={SOCKET_BYTES}"))?;
            }
        }
        Ok(lab)
    }

    /// Namespaces with a pair of devices between them, each of which shapes what it sends.
    fn join_namespaces(&self) -> Result<(), LabError> {
        let [east, west] = SITES.map(namespace);
        let ip = |words: &str| -> Result<(), LabError> {
            let output = Command::new("ip").args(words.split(' ')).output();
            let output = output.map_err(|error| LabError::Unavailable(format!("ip: {error}")))?;
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if output.status.success() { Ok(()) } else { Err(LabError::Unavailable(said)) }
        };
        ip(&format!("netns add {east}"))?;
        ip(&format!("netns add {west}"))?;
        ip(&format!("link add {DEVICE} netns {east} type veth peer name {DEVICE} netns {west}"))?;
        for (site, address) in SITES.iter().zip(self.addresses) {
            let netns = namespace(site);
            ip(&format!("-n {netns} addr add {address}/16 dev {DEVICE}"))?;
            ip(&format!("-n {netns} link set {DEVICE} up"))?;
            ip(&format!("-n {netns} link set lo up"))?;
            let mut tc = self.landbridge_at(site);
            tc.args(["wan-sim", "tc"]).arg(self.path("fabric.toml"));
            check(&tc.args(["--site", site, "--device", DEVICE, "--apply"]).output()?)?;
        }
        Ok(())
    }

    /// Sites on loopback, whose fabric file describes the link of `row`.
    pub fn loopback(landbridge: &Path, row: &Row, mtu: u16) -> io::Result<Self> {
        let (folder, landbridge) = (tempfile::tempdir()?, landbridge.to_owned());
        let (addresses, ground, emulator) = (LOOPBACK, Ground::Loopback, None);
        let lab = Self { folder, landbridge, addresses, ground, emulator };
        fs::write(lab.path("fabric.toml"), fabric(row, mtu, LOOPBACK, "dedicated"))?;
        Ok(lab)
    }

    /// Both sites send TCP with this congestion control.
    pub fn tcp(&self, congestion: &str) -> Result<(), LabError> {
        let setting = format!("net.ipv4.tcp_congestion_control={congestion}");
        SITES.iter().try_for_each(|site| self.set(site, &setting))
    }

    /// A shell script that runs a command line, from the second argument on, at the site that is
    /// the first.
    pub fn agent(&self) -> String {
        let enter = match self.ground {
            Ground::Loopback => String::new(),
            Ground::Lab => {
                let file = self.path("fabric.toml");
                format!(
                    "'{}' wan-sim lab exec '{}' $site --",
                    self.landbridge.display(),
                    file.display()
                )
            }
            Ground::Netem => format!("ip netns exec {}", namespace("$site")),
        };
        format!("#!/bin/sh\nsite=$1\nshift\nexec {enter} sh -c \"$*\"\n")
    }

    /// Segments that TCP has retransmitted so far, both sites.
    pub fn tcp_resent(&self) -> Option<u64> {
        SITES.iter().map(|site| self.resent_at(site)).sum()
    }

    /// The state of the link so far; unknown with netem.
    pub fn seen(&self) -> Result<LinkState, LabError> {
        if self.ground != Ground::Lab {
            return Ok(LinkState { queue_bytes_peak: None, void: None });
        }
        let output = self.wan_sim("status", &[])?;
        let status = output.status.success().then_some(output.stdout);
        Ok(LinkState::of(&status.unwrap_or_default()))
    }

    /// Begins to measure the emulator, where there is one.
    pub fn emulator_meter(&self) -> Option<EmulatorMeter> {
        self.emulator.map(EmulatorMeter::start)
    }

    /// Returns the process of the emulator, as its status tells it.
    fn emulator_process(&self) -> io::Result<Option<u32>> {
        let status: Value =
            serde_json::from_slice(&self.wan_sim("status", &[])?.stdout).unwrap_or_default();
        Ok(status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()))
    }

    fn resent_at(&self, site: &str) -> Option<u64> {
        let output = self.at(site, Path::new("cat")).arg("/proc/net/snmp").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut tcp = text.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (tcp.next()?, tcp.next()?);
        let column = names.split(' ').position(|name| name == "RetransSegs")?;
        values.split(' ').nth(column)?.parse().ok()
    }

    fn set(&self, site: &str, setting: &str) -> Result<(), LabError> {
        let output = self.at(site, Path::new("sysctl")).args(["-q", "-w", setting]).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(LabError::Unavailable(format!("{setting}: {said}")))
    }

    fn wan_sim(&self, what: &str, arguments: &[&str]) -> io::Result<Output> {
        let mut command = Command::new(&self.landbridge);
        command.args(["wan-sim", "lab", what]).arg(self.path("fabric.toml")).args(arguments);
        command.stdin(Stdio::null()).output()
    }
}

impl Testbed for Lab {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn landbridge(&self) -> &Path {
        &self.landbridge
    }

    fn sites(&self) -> &[&'static str] {
        &SITES
    }

    fn addresses(&self) -> &[&'static str] {
        &self.addresses
    }

    fn at(&self, site: &str, program: &Path) -> Command {
        let mut command = match self.ground {
            Ground::Loopback => Command::new(program),
            Ground::Lab => {
                let mut command = Command::new(&self.landbridge);
                command.args(["wan-sim", "lab", "exec"]).arg(self.path("fabric.toml")).arg(site);
                command.arg("--").arg(program);
                command
            }
            Ground::Netem => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace(site)]).arg(program);
                command
            }
        };
        command.stdin(Stdio::null());
        command
    }

    fn has_segmentation_offload(&self) -> bool {
        self.ground != Ground::Netem
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        match self.ground {
            Ground::Loopback => {}
            Ground::Lab => {
                let _ = self.wan_sim("down", &[]);
            }
            Ground::Netem => {
                for site in SITES {
                    // The devices go with it.
                    let _ = Command::new("ip").args(["netns", "del", &namespace(site)]).output();
                }
            }
        }
    }
}

/// The namespace of a site that netem shapes; unique for each bench process.
fn namespace(site: &str) -> String {
    format!("lbbench{}-{site}", std::process::id())
}

/// Returns the text of the fabric file with the link of `row`.
fn fabric(row: &Row, mtu: u16, addresses: [&'static str; 2], controller: &str) -> String {
    let Row { rate, rtt, loss, .. } = *row;
    FabricText { sites: &SITES, addresses: &addresses, mtu, rate, rtt, loss, controller }.to_toml()
}
