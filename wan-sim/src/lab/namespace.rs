//! A site's network namespace.

use super::error::{LabError, NO_IP};
use super::tun::Tun;
use crate::topology::addresses;
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
        ip(&["netns", "add", &name])?;
        let namespace = Self { name };
        let directory = namespace.etc();
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("hosts"), hosts)?;
        Ok(namespace)
    }

    /// One that is there already, to remove it.
    pub(super) fn found(name: String) -> Self {
        Self { name }
    }

    /// Makes the site's device and gives it the site's addresses.
    pub(super) fn device(&self, site: usize, mtu: u16) -> Result<Tun, LabError> {
        let path = format!("/run/netns/{}", self.name);
        let tun = std::thread::scope(|scope| {
            scope.spawn(|| create_in(&path)).join().unwrap_or_else(|_| {
                Err(io::Error::other("the thread that makes the device panicked"))
            })
        });
        let tun = tun.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
                LabError::Unprivileged { what: "cannot make a TUN device", source: error }
            }
            _ => error.into(),
        })?;
        let on = |rest: &[&str]| ip(&[&["-n", &self.name], rest].concat());
        let (v4, v6) = addresses(site);
        on(&["addr", "add", &format!("{v4}/16"), "dev", DEVICE])?;
        on(&["addr", "add", &format!("{v6}/64"), "dev", DEVICE, "nodad"])?;
        on(&["link", "set", "lo", "up"])?;
        let queue = DEVICE_QUEUE_PACKETS.to_string();
        on(&["link", "set", DEVICE, "mtu", &mtu.to_string(), "txqueuelen", &queue, "up"])?;
        Ok(tun)
    }

    /// Ends what runs at the site: it would keep the namespace alive without its name.
    fn end_programs(&self) {
        let Some(here) = identity(&format!("/run/netns/{}", self.name)) else { return };
        for signal in [Signal::TERM, Signal::KILL] {
            for program in programs_in(here) {
                // One that is gone already needs no signal.
                let _ = kill_process(program, signal);
            }
            for _ in 0..END_CHECKS_MAX {
                if programs_in(here).is_empty() {
                    return;
                }
                let _ = rustix::event::poll(&mut [], Some(&END_CHECKED_EVERY));
            }
        }
    }

    fn etc(&self) -> PathBuf {
        PathBuf::from("/etc/netns").join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.end_programs();
        // Nothing can be done about what does not go: `lab down` tries again.
        let _ = fs::remove_dir_all(self.etc());
        let _ = ip(&["netns", "del", &self.name]);
        // Goes only when it is empty.
        let _ = fs::remove_dir("/etc/netns");
    }
}

/// The network namespace of a site.
pub fn namespace_name(prefix: &str, site: &str) -> String {
    format!("{prefix}{site}")
}

/// Whether this process may run programs at a site.
///
/// # Errors
/// [`LabError::Unprivileged`]; [`LabError::System`] where this process does not see it.
pub fn may_enter(namespace: &str) -> Result<(), LabError> {
    try_to_enter(namespace).map_err(|source| match source.kind() {
        // What is bound there is not seen from here.
        io::ErrorKind::InvalidInput => io::Error::other(format!(
            "{namespace} was made by a program at another site: enter it from that program"
        ))
        .into(),
        _ => LabError::Unprivileged { what: "cannot enter a network namespace", source },
    })
}

/// Removes what a lab with this prefix left behind when it was killed. Returns the names of
/// the namespaces removed.
///
/// # Errors
/// [`LabError::Left`], where any is still there.
pub fn remove_orphans(prefix: &str) -> Result<Vec<String>, LabError> {
    let names = namespaces(prefix);
    names.iter().for_each(|name| drop(Namespace::found(name.clone())));
    let left = namespaces(prefix);
    if left.is_empty() { Ok(names) } else { Err(LabError::Left(left.join(", "))) }
}

/// Names of the network namespaces that a lab with this prefix has or left behind, in order.
pub fn namespaces(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// Enters the namespace with a thread of its own, which ends at once.
fn try_to_enter(name: &str) -> io::Result<()> {
    let path = format!("/run/netns/{name}");
    let enter = || {
        let fd = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))
    };
    let tried = std::thread::scope(|scope| scope.spawn(enter).join());
    Ok(tried.unwrap_or(Err(rustix::io::Errno::IO))?)
}

/// The device and inode numbers that identify a namespace.
fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// All programs in a network namespace, except this one.
fn programs_in(namespace: (u64, u64)) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|number| *number != std::process::id());
    let inside =
        others.filter(|number| identity(&format!("/proc/{number}/ns/net")) == Some(namespace));
    inside.filter_map(|number| Pid::from_raw(number.cast_signed())).collect()
}

fn create_in(namespace: &str) -> io::Result<Tun> {
    let fd = rustix::fs::open(namespace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?;
    // Room for a long link's window; this namespace's own settings.
    for name in ["tcp_rmem", "tcp_wmem"] {
        fs::write(format!("/proc/sys/net/ipv4/{name}"), TCP_MEMORY)?;
    }
    Tun::create(DEVICE)
}

fn ip(arguments: &[&str]) -> Result<(), LabError> {
    // Standard input is the lab's lock: what outlives a lab that was killed holds it still.
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::inherit())
        .output()
        .map_err(|source| LabError::Unprivileged { what: NO_IP, source })?;
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

/// Name of the device in each namespace.
pub(super) const DEVICE: &str = "wan0";
/// Buffers that the device holds while the pump is busy.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;
/// Least, first and most bytes of a TCP socket's buffer.
const TCP_MEMORY: &str = "4096 1048576 268435456";
/// How often, and how many times, the end of a site's programs is looked for, after each
/// signal: for a second.
const END_CHECKED_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// 100 checks after each signal, hence one second.
const END_CHECKS_MAX: u32 = 100;
