//! Two sites with a link between them, and programs that run there.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use wan_sim::FidelityReport;
use wan_sim::lab::{LabError, RunningLab, namespace_name};
use wan_sim::topology::Topology;

/// IP address of site `a`, in a lab and at one end of a plain cable.
pub const A: &str = "10.77.0.1";
/// IP address of site `b`, in a lab and at the other end of a plain cable.
pub const B: &str = "10.77.0.2";

/// Beginning of the names of this bench's network namespaces; the process id follows.
const PREFIX: &str = "wsbench-";

/// The path between the sites.
pub enum World {
    Lab { prefix: String, lab: RunningLab },
    Cable { prefix: String },
}

impl World {
    /// Starts a lab whose link from a to b is as netem's words say; the way back only has the
    /// delay.
    pub fn start(words: &str) -> Result<Self, LabError> {
        Self::seeded(words, 1)
    }

    /// Starts a lab whose links are described by `words`, with a seed.
    pub fn seeded(words: &str, seed: u64) -> Result<Self, LabError> {
        let delay = words.split(' ').nth(1).expect("delay TIME first");
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("lab.toml");
        let text = format!(
            "seed = {seed}\n[site.a]\n[site.b]\n[link.a-b.forward]\nnetem = '{words}'\n\
             [link.a-b.backward]\nnetem = 'delay {delay} limit none'\n"
        );
        fs::write(&file, text)?;
        let topology = Topology::load(&file).expect("a lab file");
        let prefix = prefix();
        let lab = RunningLab::start(&topology, &prefix, None)?;
        Ok(Self::Lab { prefix, lab })
    }

    /// A plain veth pair, its kernel's memory for TCP as in a lab.
    pub fn cable() -> Self {
        let prefix = prefix();
        let world = Self::Cable { prefix };
        let [a, b] = ["a", "b"].map(|site| world.namespace(site));
        for namespace in [&a, &b] {
            ip(&format!("netns add {namespace}"));
        }
        ip(&format!("link add veth0 netns {a} type veth peer name veth0 netns {b}"));
        for (namespace, address) in [(&a, A), (&b, B)] {
            ip(&format!("-n {namespace} addr add {address}/16 dev veth0"));
            ip(&format!("-n {namespace} link set veth0 up"));
        }
        for site in ["a", "b"] {
            world.at(site, || {
                for name in ["tcp_rmem", "tcp_wmem"] {
                    let path = format!("/proc/sys/net/ipv4/{name}");
                    fs::write(path, "4096 1048576 268435456").expect("written");
                }
            });
        }
        world
    }

    /// The fidelity report of a lab; `None` for a cable.
    pub fn fidelity(&self) -> Option<FidelityReport> {
        match self {
            Self::Lab { lab, .. } => Some(lab.fidelity()),
            Self::Cable { .. } => None,
        }
    }

    /// Runs `act` at a site, on a thread of its own.
    pub fn at<T: Send>(&self, site: &str, act: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.namespace(site));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let namespace = File::open(path).expect("a site");
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("moved");
                act()
            });
            thread.join().expect("no panic")
        })
    }

    /// A program at a site.
    pub fn command(&self, site: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(site), program]);
        command
    }

    /// Runs one iperf3 TCP flow from a to b. Returns the Mbit/s received and the segments
    /// retransmitted. The first `omitted` seconds do not count.
    pub fn tcp(&self, seconds: u32, omitted: u32) -> (f64, u64) {
        let mut server = Server::start(self);
        let output = self
            .command("a", "iperf3")
            .args(["-c", B, "-J", "-C", "cubic", "-t", &seconds.to_string()])
            .args(["-O", &omitted.to_string()])
            .output()
            .expect("iperf3 runs");
        let _ = server.0.wait();
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let end = &report["end"];
        let bits = end["sum_received"]["bits_per_second"].as_f64();
        let retransmits = end["sum_sent"]["retransmits"].as_u64().unwrap_or_default();
        (bits.unwrap_or_else(|| panic!("{report}")) / 1e6, retransmits)
    }

    fn namespace(&self, site: &str) -> String {
        let (Self::Lab { prefix, .. } | Self::Cable { prefix }) = self;
        namespace_name(prefix, site)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Self::Cable { .. } = self {
            for site in ["a", "b"] {
                ip(&format!("netns del {}", self.namespace(site)));
            }
        }
    }
}

/// An iperf3 server that serves once.
struct Server(Child);

impl Server {
    fn start(world: &World) -> Self {
        let mut command = world.command("b", "iperf3");
        command.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped());
        let mut server = command.spawn().expect("iperf3 runs");
        let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
        while !lines.next().expect("it says so").expect("text").contains("listening") {}
        // Its later output must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Self(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes what a bench that was killed left behind.
pub fn remove_orphans() {
    for name in wan_sim::lab::list_namespaces(PREFIX) {
        let process = name[PREFIX.len()..].split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(process).exists() {
            wan_sim::lab::remove_orphan_namespaces(&name).unwrap();
        }
    }
}

fn prefix() -> String {
    /// Number of paths between sites that this process has made, for unique names of namespaces.
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let world = WORLDS.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{world}-", std::process::id())
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}
