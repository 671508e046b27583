//! Shut ports and unlike fabric files, as doctor and status of running gateways name them.

use super::deployment::{BINARY, Deployment, Layout};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// A relay, which ends when it is dropped.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a relay before the first address of west alone.
fn relay_first_address(deployment: &Deployment) -> Relay {
    let mut relay = Command::new(BINARY)
        .args(["wan-sim", "--exit-with-parent", "relay", "--control"])
        .args(["--rtt", "2 ms", "--rate", "200 Mbit/s", "--queue", "100 ms"])
        .arg(format!("--forward={}={}", deployment.west_wan, deployment.west))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut up = String::new();
    BufReader::new(relay.stdout.take().expect("piped")).read_line(&mut up).expect("a line");
    Relay(relay)
}

/// Runs a command on the region file of a gateway.
pub(super) fn run(deployment: &Deployment, command: &str, region: &str, rest: &[&str]) -> Output {
    let mut line = Command::new(BINARY);
    line.args([command, "--config"]).arg(deployment.path(&format!("{region}.toml"))).args(rest);
    line.output().expect("runs")
}

/// Returns verdict and observation of each finding of the doctor with this name.
pub(super) fn findings(output: &Output, check: &str) -> Vec<(String, String)> {
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = report["findings"].as_array().expect("findings").iter();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let named = all.filter(|finding| finding["check"] == check);
    named.map(|finding| (text(&finding["verdict"]), text(&finding["found"]))).collect()
}

#[test]
fn doctor_and_status_name_shut_ports() {
    let rate = "100 Mbit/s";
    let layout = Layout { relayed: true, rate, port_rate: rate, ..Layout::of(1, 1) };
    let mut deployment = Deployment::new(&layout);
    let fabric = std::fs::read_to_string(deployment.path("fabric.toml")).expect("readable");
    // A second address of west, which no relay passes on.
    let other =
        |first: std::net::SocketAddr| format!("[\"{first}\", \"127.0.0.3:{}\"]", first.port());
    let (wan, listen) = (deployment.west_wan, deployment.west);
    let fabric = fabric.replace(&format!("\"{wan}\""), &other(wan));
    std::fs::write(deployment.path("fabric.toml"), fabric).expect("written");
    let west = std::fs::read_to_string(deployment.path("west.toml")).expect("readable");
    let west = west.replace(&format!("\"{listen}\""), &other(listen));
    std::fs::write(deployment.path("west.toml"), west).expect("written");
    let _relay = relay_first_address(&deployment);
    deployment.run_gateways();
    deployment.gateways[0].log.line_with("began: ");
    let doctor = run(&deployment, "doctor", "east", &["--json"]);
    let ports = findings(&doctor, "UDP ports");
    let shut = format!("1 of 2 UDP ports do not answer: {} of 127.0.0.3", wan.port());
    assert_eq!(ports, [("warning".to_owned(), shut)], "{doctor:?}");
    let gateway = findings(&doctor, "running gateway");
    let degraded = |(verdict, found): &(String, String)| {
        verdict == "warning" && found.starts_with("1 of 2 lanes are connected")
    };
    assert!(gateway.iter().any(degraded), "{gateway:?}");
    let status = run(&deployment, "status", "east", &[]);
    let text = String::from_utf8(status.stdout).expect("text");
    assert!(text.contains(": ready\n") && text.contains("WARNING"), "{text}");
    assert!(text.contains("1/2"), "{text}");
}

#[test]
fn doctor_repeats_at_both_ends_that_fabrics_differ() {
    let mut deployment = Deployment::new(&Layout::of(1, 1));
    let fabric = std::fs::read_to_string(deployment.path("fabric.toml")).expect("readable");
    let other = fabric.replace("mtu = 1500", "mtu = 1400");
    std::fs::write(deployment.path("other.toml"), other).expect("written");
    let west = std::fs::read_to_string(deployment.path("west.toml")).expect("readable");
    let west = west.replace("fabric = \"fabric.toml\"", "fabric = \"other.toml\"");
    std::fs::write(deployment.path("west.toml"), &west).expect("written");
    deployment.run_gateways();
    for (index, region) in ["east", "west"].into_iter().enumerate() {
        deployment.gateways[index].log.line_with("its fabric differs from ours");
        let doctor = run(&deployment, "doctor", region, &["--json"]);
        assert_eq!(doctor.status.code(), Some(1), "{region}: {doctor:?}");
        let gateway = findings(&doctor, "running gateway");
        let differs = |(verdict, found): &(String, String)| {
            verdict == "failed" && found.contains("its fabric differs from ours")
        };
        assert!(gateway.iter().any(differs), "{region}: {gateway:?}");
        let status = run(&deployment, "status", region, &[]);
        let text = String::from_utf8(status.stdout).expect("text");
        assert!(text.contains("NOT READY"), "{region}: {text}");
    }
    // The file that the running gateway was not started with.
    let back = west.replace("other.toml", "fabric.toml");
    std::fs::write(deployment.path("west.toml"), back).expect("written");
    let doctor = run(&deployment, "doctor", "west", &["--json"]);
    let gateway = findings(&doctor, "running gateway");
    let stale = |(verdict, found): &(String, String)| {
        verdict == "failed" && found.starts_with("it runs with a fabric of identity")
    };
    assert!(gateway.iter().any(stale), "{gateway:?}");
}

#[test]
fn the_rules_for_firewalls_name_one_port() {
    let deployment = Deployment::new(&Layout::of(1, 1));
    let output = run(&deployment, "ports", "east", &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["lanes"], 4, "{report}");
    let out = &report["rules"][0];
    assert_eq!((&out["direction"], &out["protocol"]), (&"out".into(), &"udp".into()), "{report}");
    let port = deployment.west.port();
    assert_eq!(out["destination_ports"], serde_json::json!([port]), "{report}");
    assert_eq!(report["rules"][1]["source_ports"], serde_json::json!([port]), "{report}");
    let output = run(&deployment, "ports", "east", &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(&format!("{} port {port} ", deployment.west.ip())), "{text}");
}
