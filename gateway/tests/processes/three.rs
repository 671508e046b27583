//! Three regions of unequal size behind relays, two gateways and a sidecar in one of them, each
//! gateway and each rank a process.

use super::deployment::{BINARY, Deployment, free_block, free_tcp};
use super::outcome;
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

/// Relays end when their input does.
struct Site {
    deployment: Deployment,
    relays: Vec<Child>,
}

impl Drop for Site {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            let _ = relay.kill();
            let _ = relay.wait();
        }
    }
}

impl Site {
    fn start() -> Self {
        let mut blocks = Vec::new();
        while blocks.len() < 12 {
            let block = free_block();
            if !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        let (mut fabric, mut relays) = ("name = \"three\"\nmtu = 1500\n".to_owned(), vec![]);
        let mut files: Vec<(String, String)> = Vec::new();
        for (region, name, ranks, port) in GATEWAYS {
            if !fabric.contains(&format!("[region.{region}]")) {
                let of_it = GATEWAYS.iter().filter(|gateway| gateway.0 == region);
                let all: u32 = of_it.map(|gateway| gateway.2).sum();
                fabric += &format!("[region.{region}]\nranks = {all}\n");
            }
            let (own, seen, lan) = (blocks.pop(), blocks.pop(), free_lan(&mut blocks));
            let (own, seen) = (own.expect("enough"), seen.expect("enough"));
            fabric += &format!("[region.{region}.gateway.{name}]\nranks = {ranks}\n");
            if region == "cairo" {
                fabric += &format!("lan = \"127.0.0.1:{lan}\"\n");
            }
            let mut listen = String::new();
            if port {
                fabric += &format!(
                    "wan = \"127.0.0.1:{seen}\"\negress = \"200 Mbit/s\"\ningress = \"200 Mbit/s\"\n"
                );
                listen = format!("listen = \"127.0.0.1:{own}\"\n");
                relays.push(relay(seen, own));
            }
            let text = format!(
                "fabric = \"fabric.toml\"\n[gateway.{name}]\nsocket = \"{name}.sock\"\n{listen}\
                 status = \"127.0.0.1:{}\"\ncertificate = \"keys/{name}.pem\"\n\
                 key = \"keys/{name}.key\"\nca = \"keys/ca.pem\"\nmemory = \"256 MiB\"\n\
                 [job.train]\ntoken = \"keys/train.token\"\nmemory = \"256 MiB\"\n",
                free_tcp()
            );
            files.push((format!("{name}.toml"), text));
        }
        for pair in ["cairo-lima", "cairo-oslo", "lima-oslo"] {
            fabric += &format!("[link.{pair}]\nrate = \"200 Mbit/s\"\nrtt = \"20 ms\"\n");
        }
        files.push(("fabric.toml".to_owned(), fabric));
        let mut deployment = Deployment::of_files(&files, &["train"]);
        for (_, name, ..) in GATEWAYS {
            deployment.run_gateway(name);
        }
        Self { deployment, relays }
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

/// One more block, for a gateway's LAN.
fn free_lan(blocks: &mut Vec<u16>) -> u16 {
    loop {
        let block = free_block();
        if !blocks.contains(&block) {
            blocks.insert(0, block);
            return blocks.remove(0);
        }
    }
}

/// 10 ms each way, 200 Mbit/s, before a gateway.
fn relay(seen: u16, own: u16) -> Child {
    let forward = |lane| format!("--forward=127.0.0.1:{}=127.0.0.1:{}", seen + lane, own + lane);
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
    let site = Site::start();
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
