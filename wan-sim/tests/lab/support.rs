//! Labs for tests: their files, their start by library or command, and sockets at their sites.

use super::skipping::skip;
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wan_sim::lab::{LabError, LinkStatus, RunningLab, namespace_name};
use wan_sim::recording::Recorder;
use wan_sim::topology::Topology;

pub const A: &str = "10.77.0.1";
pub const B: &str = "10.77.0.2";
pub const B6: &str = "fd77::2";

pub fn topology(directory: &Path, link: &str) -> (PathBuf, Topology) {
    let file = directory.join("lab.toml");
    fs::write(&file, format!("[site.a]\n[site.b]\n[site.c]\n[link.a-b]\nnetem = '{link}'\n"))
        .unwrap();
    let topology = Topology::load(&file).unwrap();
    (file, topology)
}

/// Returns a prefix that no other lab uses.
pub fn prefix() -> String {
    static LABS: AtomicU32 = AtomicU32::new(0);
    let lab = LABS.fetch_add(1, Ordering::Relaxed);
    format!("wstest-{}-{lab}-", std::process::id())
}

pub fn start(topology: &Topology, prefix: &str, recorder: Option<Recorder>) -> Option<RunningLab> {
    match RunningLab::start(topology, prefix, recorder) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::Unprivileged { .. }) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs `act` at a site.
pub fn at<T: Send>(prefix: &str, site: &str, act: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{}", namespace_name(prefix, site));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = File::open(path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

pub fn udp(prefix: &str, site: &str, ip: &str) -> UdpSocket {
    let address = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 7000);
    let socket = at(prefix, site, || UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Receives this number of datagrams.
pub fn receive(socket: &UdpSocket, packets: usize) {
    for _ in 0..packets {
        socket.recv_from(&mut [0; 2000]).unwrap();
    }
}

pub fn seen(lab: &RunningLab, from: &str) -> LinkStatus {
    lab.status().into_iter().find(|link| link.from.as_deref() == Some(from)).unwrap()
}

pub fn wan_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wan-sim")).args(arguments).output().unwrap()
}

/// Brings a lab up in the background; prints a skip and returns `None` without the privilege.
pub fn up(file: &str) -> Option<()> {
    let output = wan_sim(&["lab", "up", file]);
    if output.status.code() == Some(77) {
        skip(String::from_utf8_lossy(&output.stderr));
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"ready: a, b, c\n");
    Some(())
}

pub fn pid_and_prefix(file: &Path) -> (Pid, String) {
    // The folder is named after a hash of the path, as the namespaces are.
    let id = fs::read_dir("/run/wan-sim").unwrap().flatten().find_map(|entry| {
        let pid = fs::read_to_string(entry.path().join("pid")).ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8(command).ok()?;
        let id = entry.file_name().into_string().ok()?;
        command.contains(file.to_str()?).then_some((pid, id))
    });
    let (pid, id) = id.unwrap();
    (Pid::from_raw(pid.parse().unwrap()).unwrap(), format!("wansim-{id}-"))
}
