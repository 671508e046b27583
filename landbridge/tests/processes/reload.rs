//! Region files that change while their gateways run.

use super::deployment::{BINARY, Deployment, Layout, Team};
use super::outcome;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;

const LAYOUT: Layout<'static> = Layout::of(1, 1);

impl Deployment {
    /// Replaces the region file of a gateway, signals it, and waits for a line of its log.
    fn reload(&self, gateway: usize, text: &str, line: &str) {
        let file = self.path(["east.toml", "west.toml"][gateway]);
        std::fs::write(file, text).expect("written");
        let pid = Pid::from_child(&self.gateways[gateway].process);
        kill_process(pid, Signal::HUP).expect("signalled");
        self.gateways[gateway].log.line_with(line);
    }

    /// Returns the status of a gateway as JSON.
    pub(super) fn status(&self, gateway: usize) -> serde_json::Value {
        let mut status = Command::new(BINARY);
        let file = ["east.toml", "west.toml"][gateway];
        status.args(["status", "--json", "--config"]).arg(self.path(file));
        outcome(&status.output().expect("runs"))
    }
}

#[test]
fn a_job_added_to_both_files_begins_on_a_signal() {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let team = runtime.block_on(Team::attach(&deployment, &LAYOUT, "train"));
    let epoch = team.epoch();
    deployment.certs("keys", &["train", "zoo"]);
    let files = ["east.toml", "west.toml"]
        .map(|file| std::fs::read_to_string(deployment.path(file)).expect("there"));
    deployment.reload(0, "no TOML", "jobs were not read again");
    // `landbridge status` reads the file for the address.
    std::fs::write(deployment.path("east.toml"), &files[0]).expect("written");
    let found = deployment.status(0)["problems"][0].clone();
    assert_eq!((&found["cause"], &found["blocks"]), (&"files".into(), &false.into()), "{found}");
    let text = found["found"].as_str().expect("a text");
    assert!(text.contains("east.toml:1: "), "{text}");
    let zoo = "\n[job.zoo]\ntoken = \"keys/zoo.token\"\nmemory = \"64 MiB\"\n";
    for (gateway, file) in files.iter().enumerate() {
        deployment.reload(gateway, &format!("{file}{zoo}"), "added zoo");
    }
    assert_eq!(deployment.status(0)["problems"].as_array().map(Vec::len), Some(0));
    let other = runtime.block_on(Team::attach(&deployment, &LAYOUT, "zoo"));
    runtime.block_on(other.sum(&[3, 4], 1000)).expect("a sum");
    runtime.block_on(team.sum(&[1, 2], 1000)).expect("a sum");
    assert_eq!(team.epoch(), epoch);

    let smaller = files[0].replace("memory = \"256 MiB\"", "memory = \"255 MiB\"");
    assert_ne!(smaller, files[0]);
    deployment.reload(0, &smaller, "a restart only: gateway.east-0.memory");
    deployment.gateways[0].log.line_with("removed zoo");
    let status = deployment.status(0);
    assert_eq!(status["restart_needed"][0], "gateway.east-0.memory", "{status}");
    assert_eq!(status["jobs"][1]["removed"], true, "{status}");
    runtime.block_on(team.sum(&[5, 6], 1000)).expect("a sum");

    let fabric = std::fs::read_to_string(deployment.path("fabric.toml")).expect("there");
    let other = fabric.replacen("rtt = \"", "rtt = \"1", 1);
    assert_ne!(other, fabric);
    std::fs::write(deployment.path("fabric.toml"), other).expect("written");
    deployment.reload(0, &files[0], "a restart only: link.east-west.rtt");
}
