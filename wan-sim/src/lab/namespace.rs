//! A site's network namespace.

use super::error::{IP_COMMAND_MISSING, LabError};
use super::tun::Tun;
use crate::topology::topology_path_site_addresses;
use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A named network namespace; dropping it removes it and what is in it.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace, with a hosts file that knows all sites.
    pub(super) fn create(name: String, hosts: &str) -> Result<Self, LabError> {
        run_ip_namespace_command(&["netns", "add", &name])?;
        let namespace = Self { name };
        let directory = namespace.etc_folder();
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("hosts"), hosts)?;
        Ok(namespace)
    }

    /// Takes over a namespace that exists, so that dropping the value removes it.
    pub(super) fn from_existing(name: String) -> Self {
        Self { name }
    }

    /// Makes the site's TUN device in the namespace and gives it the site's addresses. `site` is
    /// the index of the site, `mtu` the longest IP packet in bytes.
    pub(super) fn create_device(&self, site: usize, mtu: u16) -> Result<Tun, LabError> {
        let path = format!("/run/netns/{}", self.name);
        let tun = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let made = thread.spawn_scoped(scope, || create_tun_in_namespace(&path))?;
            made.join().unwrap_or_else(|_| {
                Err(io::Error::other("the thread that makes the device panicked"))
            })
        });
        let tun = tun.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
                LabError::Unprivileged { what: "cannot make a TUN device", source: error }
            }
            _ => error.into(),
        })?;
        let on = |rest: &[&str]| run_ip_namespace_command(&[&["-n", &self.name], rest].concat());
        let (v4, v6) = topology_path_site_addresses(site);
        on(&["addr", "add", &format!("{v4}/16"), "dev", DEVICE_NAME])?;
        on(&["addr", "add", &format!("{v6}/64"), "dev", DEVICE_NAME, "nodad"])?;
        on(&["link", "set", "lo", "up"])?;
        let queue = DEVICE_QUEUE_PACKETS.to_string();
        on(&["link", "set", DEVICE_NAME, "mtu", &mtu.to_string(), "txqueuelen", &queue, "up"])?;
        Ok(tun)
    }

    /// Ends the programs in the namespace by SIGTERM, then SIGKILL, since they would keep the
    /// namespace alive.
    fn end_programs(&self) {
        let Some(here) = namespace_identity(&format!("/run/netns/{}", self.name)) else { return };
        for signal in [Signal::TERM, Signal::KILL] {
            for program in programs_in_namespace(here) {
                // One that is gone already needs no signal.
                let _ = kill_process(program, signal);
            }
            for _ in 0..PROGRAM_END_CHECKS_MAX {
                if programs_in_namespace(here).is_empty() {
                    return;
                }
                let _ = rustix::event::poll(&mut [], Some(&PROGRAM_END_CHECK_INTERVAL));
            }
        }
    }

    /// Returns the folder below /etc/netns in which `ip netns exec` finds the hosts file.
    fn etc_folder(&self) -> PathBuf {
        PathBuf::from("/etc/netns").join(&self.name)
    }
}

impl Drop for Namespace {
    /// Ends the programs in the namespace, then removes its hosts file and the namespace; ignores
    /// errors.
    fn drop(&mut self) {
        self.end_programs();
        // Nothing can be done about what does not go: `lab down` tries again.
        let _ = fs::remove_dir_all(self.etc_folder());
        let _ = run_ip_namespace_command(&["netns", "del", &self.name]);
        // Goes only when it is empty.
        let _ = fs::remove_dir("/etc/netns");
    }
}

/// Returns the name of a site's network namespace: the lab's prefix and the site.
pub fn namespace_name(prefix: &str, site: &str) -> String {
    format!("{prefix}{site}")
}

/// Checks that this process may run programs in a network namespace.
///
/// # Errors
/// [`LabError::Unprivileged`]; [`LabError::System`] where this process does not see the namespace.
pub fn check_namespace_entry(namespace: &str) -> Result<(), LabError> {
    try_enter_namespace(namespace).map_err(|source| match source.kind() {
        // What is bound there is not seen from here.
        io::ErrorKind::InvalidInput => io::Error::other(format!(
            "{namespace} was made by a program at another site: enter it from that program"
        ))
        .into(),
        _ => LabError::Unprivileged { what: "cannot enter a network namespace", source },
    })
}

/// Removes the namespaces that a killed lab with this prefix left behind. Returns their names.
///
/// # Errors
/// [`LabError::Left`], where any is still there.
pub fn remove_orphan_namespaces(prefix: &str) -> Result<Vec<String>, LabError> {
    let names = list_namespaces(prefix);
    names.iter().for_each(|name| drop(Namespace::from_existing(name.clone())));
    let left = list_namespaces(prefix);
    if left.is_empty() { Ok(names) } else { Err(LabError::Left(left.join(", "))) }
}

/// Returns the names of the network namespaces that begin with `prefix`, in alphabetical order.
pub fn list_namespaces(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// Enters a network namespace with a thread of its own, which then ends. An error means that it
/// could not.
fn try_enter_namespace(name: &str) -> io::Result<()> {
    let path = format!("/run/netns/{name}");
    let enter = || {
        let fd = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, enter)?;
        Ok(thread.join().unwrap_or(Err(rustix::io::Errno::IO))?)
    })
}

/// Returns the device and inode numbers that identify the namespace at `path`.
fn namespace_identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Returns the processes in the network namespace with this identity, except this one.
fn programs_in_namespace(namespace: (u64, u64)) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|number| *number != std::process::id());
    let inside = others
        .filter(|number| namespace_identity(&format!("/proc/{number}/ns/net")) == Some(namespace));
    inside.filter_map(|number| Pid::from_raw(number.cast_signed())).collect()
}

/// Moves the calling thread into the namespace at this path, and makes the TUN device there.
fn create_tun_in_namespace(namespace: &str) -> io::Result<Tun> {
    let fd = rustix::fs::open(namespace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?;
    // Room for a long link's window; this namespace's own settings.
    for name in ["tcp_rmem", "tcp_wmem"] {
        fs::write(format!("/proc/sys/net/ipv4/{name}"), TCP_MEMORY_BYTES)?;
    }
    Tun::create(DEVICE_NAME)
}

/// Runs `ip` of iproute2 with `arguments`.
fn run_ip_namespace_command(arguments: &[&str]) -> Result<(), LabError> {
    // Standard input is the lab's lock: what outlives a lab that was killed holds it still.
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::inherit())
        .output()
        .map_err(|source| LabError::Unprivileged { what: IP_COMMAND_MISSING, source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let failed = io::Error::other(format!("ip {}: {said}", arguments.join(" ")));
    if said.contains("Operation not permitted") || said.contains("Permission denied") {
        let what = "cannot make network namespaces";
        return Err(LabError::Unprivileged { what, source: failed });
    }
    Err(failed.into())
}

/// The name of the TUN device in the network namespace of each site, as programs at a site see it.
pub(super) const DEVICE_NAME: &str = "wan0";
/// 10,000 packets (GSO buffers): the length of the TUN device's queue (`txqueuelen`), for times
/// when the thread that reads the device is busy. The kernel drops packets beyond it. The length is
/// chosen.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;
/// The least, initial and largest size in bytes of a TCP socket's buffers in a lab, as the settings
/// `tcp_rmem` and `tcp_wmem` take them. The largest, 256 MiB, holds the window of a long fast link.
const TCP_MEMORY_BYTES: &str = "4096 1048576 268435456";
/// 10 ms: the interval between two checks whether the programs of a network namespace have ended
/// after SIGTERM or SIGKILL. The time is chosen.
const PROGRAM_END_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// 100 checks at an interval of 10 ms, hence one second: the longest wait for the programs of a
/// network namespace to end after SIGTERM. SIGKILL and as long a wait follow. The time is chosen.
const PROGRAM_END_CHECKS_MAX: u32 = 100;
