//! Two gateways, a relay and three ranks, each a process, in a folder of their own.

use super::fault::{EAST_RANKS, RANKS, Victim};
use gateway::loopback::port_block;
use gateway::loopback::two_regions::{Region, TwoRegions};
use gateway::observe::fetch_status::fetch_status;
use rustix::process::{Pid, Signal, kill_process};
use scenarios::faults::Direction;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Elements of each all-reduce: 16 MiB of i64, 1.4 s at 100 Mbit/s.
const ELEMENTS: u64 = 16 << 17;
/// Bytes of each all-reduce.
pub const BYTES: u64 = ELEMENTS * 8;

/// The link as netem takes it, without its delay.
const LINK: &str = "rate 100mbit queue 40ms";

/// 10 s for the answer of the relay to a command.
const RELAY_PATIENCE: Duration = Duration::from_secs(10);

/// A line that a rank printed.
pub struct Line {
    pub rank: usize,
    pub text: String,
}

/// Two gateways, a relay and three ranks. Dropping it kills all that still run.
pub struct Deployment {
    folder: tempfile::TempDir,
    landbridge: PathBuf,
    /// The ports of the relay and of west's gateway.
    ports: [u16; 2],
    status: [SocketAddr; 2],
    relay: Option<Child>,
    gateways: [Option<Child>; 2],
    ranks: [Option<Child>; RANKS],
    lines: mpsc::Sender<Line>,
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let all = self.ranks.iter_mut().chain(&mut self.gateways).chain([&mut self.relay]);
        for child in all.flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Deployment {
    /// Starts all processes; the lines of the ranks come over the channel.
    pub fn start(landbridge: &Path) -> io::Result<(Self, mpsc::Receiver<Line>)> {
        let folder = tempfile::tempdir()?;
        let (east, west, relay) = (
            port_block::free_port_block()?,
            port_block::free_port_block()?,
            port_block::free_port_block()?,
        );
        let status = [port_block::free_port_block()?, port_block::free_port_block()?];
        let (lines, receiver) = mpsc::channel();
        let speeds = |ranks: usize| vec![1.0; ranks];
        let files = TwoRegions {
            fabric: "faults",
            east: Region { speeds: speeds(EAST_RANKS), wan: east, listen: east, status: status[0] },
            west: Region {
                speeds: speeds(RANKS - EAST_RANKS),
                wan: relay,
                listen: west,
                status: status[1],
            },
            port_rate: &"100 Mbit/s",
            link_rate: &"100 Mbit/s",
            rtt: &"40 ms",
            loss: None,
            memory: "256 MiB",
            jobs: &["train"],
            job_memory: "1 GiB",
        };
        files.write_files(folder.path())?;
        let mut deployment = Self {
            landbridge: landbridge.to_owned(),
            ports: [relay.port(), west.port()],
            status,
            relay: None,
            gateways: [None, None],
            ranks: [const { None }; RANKS],
            lines,
            folder,
        };
        deployment.certs()?;
        deployment.revive(Victim::Relay)?;
        for gateway in 0..2 {
            deployment.revive(Victim::Gateway(gateway))?;
        }
        for rank in 0..RANKS {
            deployment.revive(Victim::Rank(rank))?;
        }
        Ok((deployment, receiver))
    }

    /// Starts a process that was killed.
    pub fn revive(&mut self, victim: Victim) -> io::Result<()> {
        match victim {
            Victim::Relay => self.relay = Some(self.start_relay()?),
            Victim::Gateway(gateway) => {
                let name = ["east", "west"][gateway];
                let mut command = Command::new(&self.landbridge);
                command.arg("run").arg("--config").arg(self.path(&format!("{name}.toml")));
                self.gateways[gateway] = Some(self.spawn(command, &format!("{name}.log"))?);
            }
            Victim::Rank(rank) => self.ranks[rank] = Some(self.start_rank(rank)?),
        }
        Ok(())
    }

    /// Kills a process and waits for its end.
    pub fn kill(&mut self, victim: Victim) -> io::Result<()> {
        if let Some(mut child) = self.child(victim).take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends a signal to a process.
    pub fn signal(&mut self, victim: Victim, signal: Signal) -> io::Result<()> {
        let child = self.child(victim).as_ref().ok_or(io::ErrorKind::NotFound)?;
        kill_process(Pid::from_child(child), signal)?;
        Ok(())
    }

    /// Drops all packets in these directions from now on.
    pub fn cut(&mut self, way: Direction) -> io::Result<()> {
        let side = match way {
            Direction::Both => "netem",
            Direction::There => "netem-there",
            Direction::Back => "netem-back",
        };
        self.tell_relay(&format!("set {side} {LINK} delay 20ms loss 100%"))
    }

    /// Passes all packets from now on; with `disorder`, 1 % are copied and neighbours change
    /// places.
    pub fn join(&mut self, disorder: bool) -> io::Result<()> {
        let how = if disorder { " 300us order free duplicate 1%" } else { "" };
        self.tell_relay(&format!("set netem {LINK} delay 20ms{how}"))
    }

    /// Sends a command to the relay and waits for its answer.
    fn tell_relay(&mut self, line: &str) -> io::Result<()> {
        let answers = |log: &str| log.lines().filter(|line| line.starts_with('{')).count();
        let read = |this: &Self| std::fs::read_to_string(this.path("relay.log"));
        let before = answers(&read(self)?);
        let input = self.relay.as_mut().and_then(|relay| relay.stdin.as_mut());
        writeln!(input.ok_or(io::ErrorKind::BrokenPipe)?, "{line}")?;
        let patience = Instant::now() + RELAY_PATIENCE;
        loop {
            let log = read(self)?;
            let answer = log.lines().filter(|line| line.starts_with('{')).nth(before);
            match answer {
                Some(answer) if answer.starts_with("{\"done\"") => return Ok(()),
                Some(refused) => return Err(io::Error::other(format!("relay: {refused}"))),
                None if Instant::now() > patience => {
                    return Err(io::Error::other(format!("the relay did not answer `{line}`")));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Returns the payload bytes that the gateway of east has sent so far, without retransmissions.
    pub fn sent(&self) -> Option<u64> {
        let status = fetch_status(self.status[0]).ok()?;
        Some(status.peers.iter().map(|peer| peer.sent_bytes).sum())
    }

    /// Returns true if the gateway of a region has logged these words.
    pub fn has_logged(&self, region: &str, words: &str) -> bool {
        let log = std::fs::read_to_string(self.path(&format!("{region}.log")));
        log.is_ok_and(|text| text.contains(words))
    }

    /// Returns the last lines that the gateways logged, for a report.
    pub fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.len().saturating_sub(25);
            format!("{name}:\n  {}\n", lines[last..].join("\n  "))
        };
        ["east.log", "west.log", "relay.log"].map(tail).concat()
    }

    fn child(&mut self, victim: Victim) -> &mut Option<Child> {
        match victim {
            Victim::Relay => &mut self.relay,
            Victim::Gateway(gateway) => &mut self.gateways[gateway],
            Victim::Rank(rank) => &mut self.ranks[rank],
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spawn(&self, mut command: Command, log: &str) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(self.path(log))?;
        let output = log.try_clone()?;
        command.stdin(Stdio::piped()).stdout(output).stderr(log).spawn()
    }

    fn certs(&self) -> io::Result<()> {
        let mut command = Command::new(&self.landbridge);
        command.args(["certs", "--fabric"]).arg(self.path("fabric.toml"));
        let output = command.arg("--out").arg(self.path("keys")).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(io::Error::other(text)) }
    }

    fn start_relay(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.landbridge);
        command.args(["wan-sim", "relay", "--rate", "100 Mbit/s", "--rtt", "40 ms"]);
        command.args(["--names", "east,west", "--control"]);
        let [relay, west] = self.ports;
        for lane in 0..4 {
            let (from, to) = (relay + lane, west + lane);
            command.arg("--forward").arg(format!("127.0.0.1:{from}=127.0.0.1:{to}"));
        }
        self.spawn(command, "relay.log")
    }

    fn start_rank(&self, rank: usize) -> io::Result<Child> {
        let region = if rank < EAST_RANKS { "east" } else { "west" };
        let mut child = Command::new(std::env::current_exe()?)
            .arg("rank")
            .arg("--socket")
            .arg(self.path(&format!("{region}.sock")))
            .arg("--token")
            .arg(self.path("keys/train.token"))
            .args(["--rank", &rank.to_string(), "--world-size", &RANKS.to_string()])
            .args(["--elements", &ELEMENTS.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let (lines, output) = (self.lines.clone(), child.stdout.take());
        std::thread::spawn(move || {
            for text in output.into_iter().flat_map(|out| BufReader::new(out).lines()).flatten() {
                // Nobody listens at the end.
                let _ = lines.send(Line { rank, text });
            }
        });
        Ok(child)
    }
}
