//! The ground that all processes run on: a loopback device of the bench's own, whose MTU it sets.

use crate::row::{MANY_PEERS, Row};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use scenarios::testbed::error::LabError;
use scenarios::testbed::site::{FabricText, Testbed};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use units::Fraction;

/// The loopback device that everything is measured over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// That of a network namespace of the bench's own, whose MTU is the row's.
    OwnDevice,
    /// The machine's, whose MTU is its own.
    MachineDevice,
}

impl Ground {
    /// Moves this thread, and all processes that it starts from now on, into a network namespace
    /// that goes away with them.
    ///
    /// # Errors
    /// No root, or no iproute2.
    pub fn enter_namespace() -> Result<Self, LabError> {
        let name = format!("lbcost{}", std::process::id());
        run_ip_command(&["netns", "add", &name])?;
        let entered = rustix::fs::open(
            format!("/run/netns/{name}"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .and_then(|file| move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)));
        // Whoever is inside keeps the namespace, and a name that is left does no harm.
        let _ = run_ip_command(&["netns", "del", &name]);
        entered.map_err(|error| LabError::Unavailable(format!("network namespace: {error}")))?;
        Ok(Self::OwnDevice)
    }

    /// Gives the loopback device this MTU in bytes, where it is the bench's own.
    ///
    /// # Errors
    /// The system refuses.
    pub fn set_mtu(self, mtu: u16) -> Result<(), LabError> {
        match self {
            Self::OwnDevice => {
                run_ip_command(&["link", "set", "dev", "lo", "mtu", &mtu.to_string(), "up"])
            }
            Self::MachineDevice => Ok(()),
        }
    }
}

/// Runs `ip` of iproute2.
fn run_ip_command(arguments: &[&str]) -> Result<(), LabError> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| LabError::Unavailable(format!("ip: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Unavailable(format!("ip {}: {said}", arguments.join(" "))))
}

/// Names of all sites; a row uses the first of them.
static SITES: [&str; MANY_PEERS + 1] = ["center", "east", "north", "south", "west"];

/// Addresses of all sites on the loopback device.
static ADDRESSES: [&str; MANY_PEERS + 1] =
    ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"];

/// The sites of a row, all on one loopback device.
pub struct LoopbackSites {
    /// Folder of configs, sockets and outputs.
    folder: TempDir,
    /// The program `landbridge` that is measured.
    landbridge: PathBuf,
    /// Number of sites.
    count: usize,
}

impl LoopbackSites {
    /// Makes the sites of a row, with their fabric file.
    ///
    /// # Errors
    /// The system refuses a file.
    pub fn new(landbridge: &Path, row: &Row) -> Result<Self, LabError> {
        let (folder, landbridge) = (tempfile::tempdir()?, landbridge.to_owned());
        let sites = Self { folder, landbridge, count: row.peers + 1 };
        let fabric = FabricText {
            sites: sites.sites(),
            addresses: sites.addresses(),
            mtu: row.mtu,
            rate: row.link_rate(),
            rtt: row.rtt(),
            loss: Fraction::default(),
            controller: "dedicated",
        };
        std::fs::write(sites.path("fabric.toml"), fabric.to_toml())?;
        Ok(sites)
    }
}

impl Testbed for LoopbackSites {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn landbridge(&self) -> &Path {
        &self.landbridge
    }

    fn sites(&self) -> &[&'static str] {
        &SITES[..self.count]
    }

    fn addresses(&self) -> &[&'static str] {
        &ADDRESSES[..self.count]
    }

    fn at(&self, _: &str, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        command
    }
}
