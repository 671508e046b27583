//! Three regions of unequal size behind relays or in a lab, two gateways and a sidecar in one of
//! them, each gateway and each rank a process.

use super::deployment::{BINARY, Deployment, free_port};
use super::outcome;
use super::skipping::skip;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// Gateways in their order, each with its ranks and whether it has a port. The relay stands
/// before whoever is dialled over the long haul.
const GATEWAYS: [(&str, &str, u32, bool); 5] = [
    ("cairo", "cairo-0", 2, true),
    ("cairo", "cairo-1", 1, true),
    ("cairo", "cairo-2", 1, false),
    ("lima", "lima-0", 1, true),
    ("oslo", "oslo-0", 3, true),
];
const LANES: u16 = 4;

/// What is between the regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// A relay before each gateway.
    Relays,
    /// Links of a lab, of which each region is a site.
    Lab,
}

/// Relays end when their input does.
struct Site {
    relays: Vec<Child>,
    between: Between,
    deployment: Deployment,
}

impl Drop for Site {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            let _ = relay.kill();
            let _ = relay.wait();
        }
        if self.between == Between::Lab {
            // Gateways end with it.
            let _ = lab(&self.deployment, "down").output();
        }
    }
}

impl Site {
    /// `None` where there can be no lab.
    fn start(between: Between) -> Option<Self> {
        let (mut fabric, mut relays) = ("name = \"three\"\nmtu = 1500\n".to_owned(), vec![]);
        let mut files: Vec<(String, String)> = Vec::new();
        for (region, name, ranks, port) in GATEWAYS {
            if !fabric.contains(&format!("[region.{region}]")) {
                let of_it = GATEWAYS.iter().filter(|gateway| gateway.0 == region);
                let all: u32 = of_it.map(|gateway| gateway.2).sum();
                fabric += &format!("[region.{region}]\nranks = {all}\n");
            }
            fabric += &format!("[region.{region}.gateway.{name}]\nranks = {ranks}\n");
            if region == "cairo" {
                fabric += &format!("lan = \"127.0.0.1:{}\"\n", free_port());
            }
            let mut listen = String::new();
            if port {
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
        let deployment = Deployment::of_files(&files, &["train"]);
        if between == Between::Lab && !lab_is_up(&deployment) {
            return None;
        }
        let relays = relays.iter().map(|(seen, own)| relay(seen, *own)).collect();
        let mut site = Self { relays, between, deployment };
        for (region, name, ..) in GATEWAYS {
            let command = site.at(region);
            site.deployment.run_gateway_by(name, command);
        }
        Some(site)
    }

    /// The binary in a region.
    fn at(&self, region: &str) -> Command {
        match self.between {
            Between::Relays => Command::new(BINARY),
            Between::Lab => {
                let mut command = lab(&self.deployment, "exec");
                command.args([region, "--", BINARY]);
                command
            }
        }
    }

    /// Every rank's process of one benchmark.
    fn bench(&self, arguments: &[&str]) -> Vec<Output> {
        let served = GATEWAYS.iter().flat_map(|(_, name, ranks, _)| {
            std::iter::repeat_n(*name, usize::try_from(*ranks).expect("few"))
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

/// A site's address in a lab: sites are numbered by name.
fn address_of(region: &str) -> String {
    let mut regions: Vec<&str> = GATEWAYS.iter().map(|gateway| gateway.0).collect();
    regions.dedup();
    let place = regions.iter().position(|known| *known == region).expect("known");
    format!("10.77.0.{}", place + 1)
}

fn lab(deployment: &Deployment, what: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["wan-sim", "lab", what]).arg(deployment.path("fabric.toml"));
    command
}

/// Whether the lab is up. Without the privilege for labs the calling test says that it is skipped.
fn lab_is_up(deployment: &Deployment) -> bool {
    let output = lab(deployment, "up").output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(UNPRIVILEGED) {
        skip(said);
        return false;
    }
    assert!(output.status.success(), "lab up: {said}");
    true
}

/// The exit code of a lab that the system does not allow.
const UNPRIVILEGED: i32 = 77;

/// 10 ms each way, 200 Mbit/s, before a gateway.
fn relay(seen: &str, own: u16) -> Child {
    let (host, port) = seen.split_once(':').expect("an address");
    let port: u16 = port.parse().expect("a port");
    let forward = |lane| format!("--forward={host}:{}=127.0.0.1:{}", port + lane, own + lane);
    let mut relay = Command::new(BINARY)
        .args(["wan-sim", "--exit-with-parent", "relay", "--control"])
        .args(["--rtt", "20 ms", "--rate", "200 Mbit/s", "--queue", "100 ms"])
        .args((0..LANES).map(forward))
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
    agree(&Site::start(Between::Relays).expect("relays need no privilege"));
}

#[test]
fn unequal_regions_with_several_gateways_agree_in_a_lab() {
    if let Some(site) = Site::start(Between::Lab) {
        agree(&site);
    }
}

/// What every gateway follows, in its log and its status, is the plan that `landbridge plan` prints
/// of the same file.
#[test]
fn gateways_follow_the_plan_that_the_command_prints() {
    let site = Site::start(Between::Relays).expect("relays need no privilege");
    let json = |arguments: &[&str], file: &str| {
        let mut command = Command::new(BINARY);
        command.args(arguments).arg(site.deployment.path(file)).arg("--json");
        outcome(&command.output().expect("runs"))
    };
    let printed = json(&["plan", "--fabric"], "fabric.toml");
    let hash = printed["plan_hash"].as_str().expect("a hash");
    for (running, (_, name, ..)) in site.deployment.gateways.iter().zip(GATEWAYS) {
        let line = running.log.line_with("began: ");
        assert!(line.contains(&format!("plan {hash}")), "{hash} printed, {name} logged {line}");
        let status = json(&["status", "--config"], &format!("{name}.toml"));
        let followed = &status["jobs"][0]["plan"];
        assert_eq!(followed["hash"], printed["plan_hash"], "{name}");
        assert_eq!(followed["reason"], printed["reason"], "{name}");
        assert_eq!(followed["algorithm"], printed["algorithm"], "{name}");
    }
}

fn agree(site: &Site) {
    for arguments in [
        &["all-reduce", "--size", "4 MiB"][..],
        &["all-reduce", "--size", "1003 B", "--dtype", "u8", "--op", "max"],
        &["all-reduce", "--size", "100006 B", "--dtype", "bf16", "--op", "avg"],
        &["broadcast", "--size", "1 MiB", "--root", "4"],
        &["reduce", "--size", "1 MiB", "--root", "3"],
        &["barrier"],
    ] {
        let outcomes: Vec<_> = site.bench(arguments).iter().map(outcome).collect();
        let root = usize::from(arguments[0] == "reduce") * 3;
        for (rank, outcome) in outcomes.iter().enumerate() {
            let same = outcome["digest"] == outcomes[root]["digest"];
            assert_eq!(same, arguments[0] != "reduce" || rank == root, "{arguments:?}: {outcome}");
        }
    }
}
