//! Three regions of unequal size behind relays or in a lab. One region has two gateways and a
//! sidecar. Each gateway and each rank is a process.

use super::deployment::{BINARY, Deployment};
use super::outcome;
use super::skipping::skip;
use gateway::loopback::port_block;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// A gateway of the deployment.
struct GatewayRow {
    region: &'static str,
    name: &'static str,
    ranks: u32,
    /// True if it has a WAN port.
    has_port: bool,
}

/// Returns a row of the table of gateways.
const fn row(region: &'static str, name: &'static str, ranks: u32, has_port: bool) -> GatewayRow {
    GatewayRow { region, name, ranks, has_port }
}

/// All gateways in their order.
const GATEWAYS: [GatewayRow; 5] = [
    row("cairo", "cairo-0", 2, true),
    row("cairo", "cairo-1", 1, true),
    row("cairo", "cairo-2", 1, false),
    row("lima", "lima-0", 1, true),
    row("oslo", "oslo-0", 3, true),
];

/// The emulation between the regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// A relay before each gateway.
    Relays,
    /// Links of a lab, of which each region is a site.
    Lab,
}

/// A running deployment. Relays end when their stdin closes.
struct ThreeRegions {
    relays: Vec<Child>,
    between: Between,
    deployment: Deployment,
}

impl Drop for ThreeRegions {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            let _ = relay.kill();
            let _ = relay.wait();
        }
        if self.between == Between::Lab {
            // Its gateways end with the lab.
            let _ = lab(&self.deployment, "down").output();
        }
    }
}

impl ThreeRegions {
    /// Starts all gateways; `None` where the system allows no lab.
    fn start(between: Between) -> Option<Self> {
        let (mut fabric, mut relays) = ("name = \"three\"\nmtu = 1500\n".to_owned(), vec![]);
        let mut files: Vec<(String, String)> = Vec::new();
        for GatewayRow { region, name, ranks, has_port } in GATEWAYS {
            if !fabric.contains(&format!("[region.{region}]")) {
                let in_region = GATEWAYS.iter().filter(|gateway| gateway.region == region);
                let all: u32 = in_region.map(|gateway| gateway.ranks).sum();
                fabric += &format!("[region.{region}]\nranks = {all}\n");
            }
            fabric += &format!("[region.{region}.gateway.{name}]\nranks = {ranks}\n");
            if region == "cairo" {
                fabric += &format!("lan = \"127.0.0.1:{}\"\n", free_port());
            }
            let mut listen = String::new();
            if has_port {
                let (own, mut seen) = (free_port(), format!("127.0.0.1:{}", free_port()));
                if between == Between::Relays {
                    listen = format!("listen = \"127.0.0.1:{own}\"\n");
                    relays.push((seen.clone(), own));
                } else {
                    seen = format!("{}:{own}", address_of(region));
                }
                fabric += &format!(
                    "wan = \"{seen}\"\negress = \"200 Mbit/s\"\ningress = \"200 Mbit/s\"\n"
                );
            }
            let text = format!(
                "fabric = \"fabric.toml\"\n[gateway.{name}]\nsocket = \"{name}.sock\"\n{listen}\
                 status = \"127.0.0.1:{}\"\ncertificate = \"keys/{name}.pem\"\n\
                 key = \"keys/{name}.key\"\nca = \"keys/ca.pem\"\nmemory = \"256 MiB\"\n\
                 [job.train]\ntoken = \"keys/train.token\"\nmemory = \"256 MiB\"\n",
                free_port()
            );
            files.push((format!("{name}.toml"), text));
        }
        for pair in ["cairo-lima", "cairo-oslo", "lima-oslo"] {
            fabric += &format!("[link.{pair}]\nrate = \"200 Mbit/s\"\nrtt = \"20 ms\"\n");
        }
        files.push(("fabric.toml".to_owned(), fabric));
        let deployment = Deployment::without_files();
        for (name, text) in &files {
            std::fs::write(deployment.path(name), text).expect("written");
        }
        deployment.certs("keys", &["train"]);
        if between == Between::Lab && !lab_is_up(&deployment) {
            return None;
        }
        let relays = relays.iter().map(|(seen, own)| relay(seen, *own)).collect();
        let mut running = Self { relays, between, deployment };
        for GatewayRow { region, name, .. } in GATEWAYS {
            let command = running.binary_in(region);
            running.deployment.run_gateway_by(name, command);
        }
        Some(running)
    }

    /// Returns a command that runs the binary in a region.
    fn binary_in(&self, region: &str) -> Command {
        match self.between {
            Between::Relays => Command::new(BINARY),
            Between::Lab => {
                let mut command = lab(&self.deployment, "exec");
                command.args([region, "--", BINARY]);
                command
            }
        }
    }

    /// Runs all ranks of one benchmark.
    fn bench(&self, arguments: &[&str]) -> Vec<Output> {
        let served = GATEWAYS.iter().flat_map(|gateway| {
            std::iter::repeat_n(gateway.name, usize::try_from(gateway.ranks).expect("few"))
        });
        let start = |(rank, name): (usize, &str)| {
            Command::new(BINARY)
                .args(["bench", arguments[0], "--json", "--iterations", "2", "--rank"])
                .arg(rank.to_string())
                .arg("--config")
                .arg(self.deployment.path(&format!("{name}.toml")))
                .args(&arguments[1..])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("starts")
        };
        let ranks: Vec<Child> = served.enumerate().map(start).collect();
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("ends")).collect()
    }
}

/// Returns the first of a block of free ports.
fn free_port() -> u16 {
    port_block::free_port_block().expect("free ports").port()
}

/// Returns the address of a region in a lab, which numbers its sites by name.
fn address_of(region: &str) -> String {
    let mut regions: Vec<&str> = GATEWAYS.iter().map(|gateway| gateway.region).collect();
    regions.dedup();
    let index = regions.iter().position(|known| *known == region).expect("known");
    format!("10.77.0.{}", index + 1)
}

/// Returns a command `wan-sim lab` for the file of the deployment.
fn lab(deployment: &Deployment, what: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["wan-sim", "lab", what]).arg(deployment.path("fabric.toml"));
    command
}

/// Starts the lab. Without the privilege for labs it returns false, and the test counts as skipped.
fn lab_is_up(deployment: &Deployment) -> bool {
    let output = lab(deployment, "up").output().expect("runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(UNPRIVILEGED) {
        skip(stderr);
        return false;
    }
    assert!(output.status.success(), "lab up: {stderr}");
    true
}

/// Exit code of `wan-sim lab` where the system allows no lab.
const UNPRIVILEGED: i32 = 77;

/// Starts a relay before a gateway: 10 ms each way, 200 Mbit/s.
fn relay(seen: &str, own: u16) -> Child {
    let mut relay = Command::new(BINARY)
        .args(["wan-sim", "--exit-with-parent", "relay", "--control"])
        .args(["--rtt", "20 ms", "--rate", "200 Mbit/s", "--queue", "100 ms"])
        .arg(format!("--forward={seen}=127.0.0.1:{own}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut up = String::new();
    BufReader::new(relay.stdout.take().expect("piped")).read_line(&mut up).expect("a line");
    relay
}

#[test]
fn unequal_regions_with_several_gateways_agree() {
    agree(&ThreeRegions::start(Between::Relays).expect("relays need no privilege"));
}

#[test]
fn unequal_regions_with_several_gateways_agree_in_a_lab() {
    if let Some(running) = ThreeRegions::start(Between::Lab) {
        agree(&running);
    }
}

/// Log and status of every gateway show the plan that `landbridge plan` prints for the same file.
#[test]
fn gateways_follow_the_plan_that_the_command_prints() {
    let running = ThreeRegions::start(Between::Relays).expect("relays need no privilege");
    let json = |arguments: &[&str], file: &str| {
        let mut command = Command::new(BINARY);
        command.args(arguments).arg(running.deployment.path(file)).arg("--json");
        outcome(&command.output().expect("runs"))
    };
    let printed = json(&["plan", "--fabric"], "fabric.toml");
    let hash = printed["plan_hash"].as_str().expect("a hash");
    for (process, GatewayRow { name, .. }) in running.deployment.gateways.iter().zip(GATEWAYS) {
        let line = process.log.line_with("began: ");
        assert!(line.contains(&format!("plan {hash}")), "{hash} printed, {name} logged {line}");
        let status = json(&["status", "--config"], &format!("{name}.toml"));
        let followed = &status["jobs"][0]["plan"];
        assert_eq!(followed["hash"], printed["plan_hash"], "{name}");
        assert_eq!(followed["reason"], printed["reason"], "{name}");
        assert_eq!(followed["algorithm"], printed["algorithm"], "{name}");
    }
}

/// Runs benchmarks of all operations. All ranks pass their own check, and all digests are equal.
fn agree(running: &ThreeRegions) {
    for arguments in [
        &["all-reduce", "--size", "4 MiB"][..],
        &["all-reduce", "--size", "1003 B", "--dtype", "u8", "--op", "max"],
        &["all-reduce", "--size", "100006 B", "--dtype", "bf16", "--op", "avg"],
        &["broadcast", "--size", "1 MiB", "--root", "4"],
        &["reduce", "--size", "1 MiB", "--root", "3"],
        &["barrier"],
    ] {
        let outcomes: Vec<_> = running.bench(arguments).iter().map(outcome).collect();
        let root = usize::from(arguments[0] == "reduce") * 3;
        for (rank, outcome) in outcomes.iter().enumerate() {
            let same = outcome["digest"] == outcomes[root]["digest"];
            assert_eq!(same, arguments[0] != "reduce" || rank == root, "{arguments:?}: {outcome}");
        }
    }
}
