//! The grounds of real processes: two sites with a link between them, as `wan-sim lab` makes them,
//! or as the kernel's netem does by the commands that `wan-sim tc` renders.

use crate::lab::interrupt;
use crate::lab::program_output::Told;
use crate::row::{CUT_AFTER_S, Row};
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The sites' addresses in every lab of two.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// The sites' addresses where nothing is between them.
const LOOPBACK: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
/// The network that all of a lab are in.
pub const LAB_NETWORK: &str = "10.77.0.0/16";
/// The sites, which are also the regions.
pub const SITES: [&str; 2] = ["east", "west"];

/// For what a program does before and after what is measured.
const SET_UP: Duration = Duration::from_secs(30);

/// Name of every fabric here.
pub const FABRIC: &str = "bench";

/// Most that TCP may hold for one socket: several of the largest BDP.
const SOCKET_BYTES: &str = "4096 1048576 268435456";

/// Two sites that are up, and the folder of everything that belongs to them.
pub struct Lab {
    pub folder: tempfile::TempDir,
    pub landbridge: PathBuf,
    pub addresses: [&'static str; 2],
    pub ground: Ground,
}

/// What is between the sites.
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
    /// Its name in a cell.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Lab => "lab",
            Self::Netem => "netem",
        }
    }
}

/// The sites' device.
const DEVICE: &str = "wan0";
/// What a command says that this machine cannot do.
pub const UNAVAILABLE: u8 = 77;

/// Of IP packets, on every Ethernet.
const MTU: u16 = 1500;

/// Lets sites choose among these congestion controls; the machine's own setting comes back when
/// this is dropped.
pub struct Allowed(String);

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

impl Allowed {
    /// Where the kernel has them.
    ///
    /// # Errors
    /// The kernel's settings are not ours to change.
    pub fn widen() -> Result<Self, LabError> {
        let widen = || {
            let before = fs::read_to_string(ALLOWED)?.trim().to_owned();
            let available = fs::read_to_string(AVAILABLE)?;
            fs::write(ALLOWED, available.trim())?;
            Ok(Self(before))
        };
        widen().map_err(|error: io::Error| LabError::Unavailable(format!("{ALLOWED}: {error}")))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        let _ = fs::write(ALLOWED, &self.0);
    }
}

/// What the lab has seen.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub queue_bytes_peak: Option<u64>,
    pub void: Option<String>,
}

impl Seen {
    /// From what `wan-sim lab status` printed: void as well where it does not say that it is not.
    fn of(status: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(status).unwrap_or_default();
        let links = status["links"].as_array().map(Vec::as_slice).unwrap_or_default();
        let peaks = links.iter().filter_map(|link| link["queue_bytes_peak"].as_u64());
        let void = match status["fidelity"]["void"].as_array() {
            Some(reasons) if reasons.is_empty() => None,
            Some(reasons) => Some(Value::from(reasons.clone()).to_string()),
            None => Some("the emulator does not answer".to_owned()),
        };
        Self { queue_bytes_peak: peaks.max(), void }
    }
}

/// Why a lab is not up.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It cannot be on this machine.
    #[error("{0}")]
    Unavailable(String),
    /// It should have been.
    #[error("{0}")]
    Failed(String),
    /// The system said no.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

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
        let mut lab = Self { folder, landbridge, addresses, ground: Ground::Loopback };
        fs::write(lab.path("fabric.toml"), fabric(row, MTU, addresses, controller))?;
        match ground {
            Ground::Loopback => {}
            Ground::Lab => {
                passed(&lab.wan_sim("up", &[])?)?;
                // From here on there is something to take down.
                lab.ground = ground;
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
            passed(&tc.args(["--site", site, "--device", DEVICE, "--apply"]).output()?)?;
        }
        Ok(())
    }

    /// Sites with nothing between them, whose link is told to be as `row` says.
    pub fn loopback(landbridge: &Path, row: &Row, mtu: u16) -> io::Result<Self> {
        let (folder, landbridge) = (tempfile::tempdir()?, landbridge.to_owned());
        let lab = Self { folder, landbridge, addresses: LOOPBACK, ground: Ground::Loopback };
        fs::write(lab.path("fabric.toml"), fabric(row, mtu, LOOPBACK, "link-share"))?;
        Ok(lab)
    }

    /// A file of the lab's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Both sites send TCP with this congestion control.
    pub fn tcp(&self, congestion: &str) -> Result<(), LabError> {
        let setting = format!("net.ipv4.tcp_congestion_control={congestion}");
        SITES.iter().try_for_each(|site| self.set(site, &setting))
    }

    /// A program at a site. The process is the program's own.
    pub fn at(&self, site: &str, program: &Path) -> Command {
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

    /// A program of ours at a site.
    pub fn landbridge_at(&self, site: &str) -> Command {
        self.at(site, &self.landbridge)
    }

    /// Segments that TCP has sent again so far, both sites.
    pub fn tcp_resent(&self) -> Option<u64> {
        SITES.iter().map(|site| self.resent_at(site)).sum()
    }

    /// What the link has seen so far; netem tells nothing.
    pub fn seen(&self) -> Result<Seen, LabError> {
        if self.ground != Ground::Lab {
            return Ok(Seen { queue_bytes_peak: None, void: None });
        }
        let output = self.wan_sim("status", &[])?;
        let status = output.status.success().then_some(output.stdout);
        Ok(Seen::of(&status.unwrap_or_default()))
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

/// Of a site that netem shapes; several of us may run.
fn namespace(site: &str) -> String {
    format!("lbbench{}-{site}", std::process::id())
}

/// Whether a command of ours did what it should.
fn passed(output: &Output) -> Result<(), LabError> {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(UNAVAILABLE) => Err(LabError::Unavailable(said)),
        _ => Err(LabError::Failed(said)),
    }
}

/// How one knows that the runs of processes have begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// The first of them prints a line then.
    WithALine,
    /// They print nothing until they are done, and may take as long as any to set up.
    WithoutAWord,
}

/// Processes that end together.
pub struct Processes(Vec<Child>);

/// What they printed.
pub struct Outputs {
    pub texts: Vec<String>,
    /// Whether all had come to their end.
    pub complete: bool,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    /// Starts them, each with its output in a file of its own.
    pub fn start(lab: &Lab, commands: Vec<Command>, name: &str) -> io::Result<Self> {
        let mut processes = Self(Vec::new());
        for (number, mut command) in (0..).zip(commands) {
            let out = File::create(lab.path(&format!("{name}-{number}.out")))?;
            let log = File::create(lab.path(&format!("{name}-{number}.log")))?;
            processes.0.push(command.stdout(out).stderr(log).spawn()?);
        }
        Ok(processes)
    }

    /// What they tell of their runs, none of them where they took longer than a cell may.
    ///
    /// # Errors
    /// As [`Self::outputs`]; or all are done and tell of nothing.
    pub fn told(self, lab: &Lab, name: &str, begins: Begins) -> Result<Told, LabError> {
        let outputs = self.outputs(lab, name, begins)?;
        let told = Told::of(&outputs.texts);
        if outputs.complete && told.seconds.is_empty() {
            return Err(LabError::Failed(format!("{name}: tells of no run")));
        }
        Ok(told)
    }

    /// What each printed, once all are done or took longer than a cell may. Whoever prints a line
    /// when it begins, and one after each run, is cut when all its runs together take too long.
    ///
    /// # Errors
    /// One of them failed, with what it said; or runs were to begin and did not, which says nothing
    /// of how long they take; or we were interrupted.
    pub fn outputs(mut self, lab: &Lab, name: &str, begins: Begins) -> Result<Outputs, LabError> {
        let cut = Duration::from_secs(CUT_AFTER_S);
        let read =
            |number: usize, kind| fs::read_to_string(lab.path(&format!("{name}-{number}.{kind}")));
        let started = Instant::now();
        let mut begun = (begins == Begins::WithoutAWord).then_some(started + SET_UP);
        loop {
            let mut complete = true;
            if interrupt::came() {
                return Err(LabError::Interrupted);
            }
            for (number, child) in self.0.iter_mut().enumerate() {
                match child.try_wait()? {
                    Some(status) if !status.success() => {
                        let log = read(number, "log")?;
                        return Err(LabError::Failed(format!("{name}: {status}: {}", log.trim())));
                    }
                    done => complete &= done.is_some(),
                }
            }
            let now = Instant::now();
            if complete || begun.is_some_and(|begun| now > begun + cut) {
                let texts = (0..self.0.len()).map(|number| read(number, "out"));
                return Ok(Outputs { texts: texts.collect::<Result<_, _>>()?, complete });
            }
            if begun.is_none() && !read(0, "out")?.is_empty() {
                begun = Some(now);
            }
            if begun.is_none() && now > started + SET_UP {
                let text = format!("{name}: no run had begun after {SET_UP:?}");
                return Err(LabError::Failed(text));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Processor time that they have taken so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        self.0.iter().map(|child| cpu_ticks(child.id()) as f64 / ticks).sum()
    }
}

/// User and system time of a process and its threads.
fn cpu_ticks(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let times = fields.split_ascii_whitespace().skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

fn fabric(row: &Row, mtu: u16, addresses: [&str; 2], controller: &str) -> String {
    let Row { rate, rtt, loss, .. } = row;
    let regions = SITES.iter().zip(addresses).map(|(name, address)| {
        format!(
            "[region.{name}]\nranks = 1\n[region.{name}.gateway.{name}-0]\n\
             wan = \"{address}:7400\"\negress = \"{rate}\"\ningress = \"{rate}\"\n"
        )
    });
    format!(
        "name = \"{FABRIC}\"\nmtu = {mtu}\n{}[link.east-west]\nrate = \"{rate}\"\nrtt = \"{rtt}\"\n\
         loss = \"{loss}\"\ncontroller = \"{controller}\"\n",
        regions.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn an_emulator_that_does_not_say_that_a_run_is_good_has_spoilt_it() {
        let good = r#"{"links": [{"queue_bytes_peak": 7}], "fidelity": {"void": []}}"#;
        assert_eq!(Seen::of(good.as_bytes()), Seen { queue_bytes_peak: Some(7), void: None });
        for bad in ["", "{", "{}", r#"{"fidelity": {}}"#, r#"{"fidelity": {"void": ["late"]}}"#] {
            assert!(Seen::of(bad.as_bytes()).void.is_some(), "{bad}");
        }
    }
}
