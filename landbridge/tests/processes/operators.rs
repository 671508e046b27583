//! `landbridge rate`, `leave`, `join` and `fabric` against a running gateway.

use super::deployment::{BINARY, Deployment};
use super::{agree, deployment, outcome};
use serde_json::json;
use std::process::{Command, Output};

/// Runs `landbridge rate` at the gateway of east.
fn rate(deployment: &Deployment, link: &str, rate: &str) -> Output {
    let config = deployment.path("east.toml");
    let arguments = ["rate", link, rate, "--json", "--config"];
    Command::new(BINARY).args(arguments).arg(config).output().expect("runs")
}

#[test]
fn an_operator_limits_a_link_at_both_ends() {
    let mut deployment = deployment(1, 1);
    assert_eq!(rate(&deployment, "east-west", "10 Mbit/s").status.code(), Some(69));
    deployment.run_gateways();
    let west = std::sync::Arc::clone(&deployment.gateways[1].log);
    let held = outcome(&rate(&deployment, "east-west", "10 Mbit/s"));
    assert_eq!(held["rate_bits_per_second"], 1_000_000_000, "{held}");
    assert_eq!(held["effective_bits_per_second"], 10_000_000, "{held}");
    assert_eq!(held["operator_gateway"], "east-0", "{held}");
    west.line_with("link east-west: limited to 10 Mbit/s by an operator at east-0");
    for (link, wrong) in [("east-west", "2 Gbit/s"), ("east-south", "1 Mbit/s"), ("east-west", "7")]
    {
        let refused = rate(&deployment, link, wrong);
        assert_eq!(refused.status.code(), Some(64), "{link} {wrong}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    let lifted = outcome(&rate(&deployment, "west-east", "scheduled"));
    assert_eq!(lifted["effective_bits_per_second"], 1_000_000_000, "{lifted}");
    assert!(lifted["operator_gateway"].is_null(), "{lifted}");
    west.line_with("link east-west: no longer limited by an operator at east-0");
}

/// Runs `landbridge leave` or `join` at a gateway.
fn change(deployment: &Deployment, command: &str, region: &str, at: &str) -> Output {
    let config = deployment.path(&format!("{at}.toml"));
    let arguments = [command, region, "--within", "2 s", "--json", "--config"];
    Command::new(BINARY).args(arguments).arg(config).output().expect("runs")
}

#[test]
fn an_operator_takes_a_region_out_and_in() {
    let mut deployment = deployment(1, 1);
    let fabric = deployment.path("fabric.toml");
    let text = std::fs::read_to_string(&fabric).expect("a file");
    std::fs::write(&fabric, format!("quorum = [\"east\"]\n{text}")).expect("written");
    deployment.run_gateways();
    agree(&deployment, 1, 1, &["--size", "1 KiB"]);
    let left = outcome(&change(&deployment, "leave", "west", "east"));
    assert_eq!((&left["members"], &left["left"]), (&json!(["east"]), &json!(["west"])), "{left}");
    // The last region cannot leave, nor one that the fabric has not.
    for region in ["east", "south"] {
        let refused = change(&deployment, "leave", region, "east");
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    // It stays out when it is started again, and joins by its own gateway.
    let mut west = deployment.gateways.remove(1);
    west.process.kill().expect("it runs");
    west.process.wait().expect("it ends");
    deployment.run_gateway("west");
    let joined = outcome(&change(&deployment, "join", "west", "west"));
    assert_eq!(
        (&joined["members"], &joined["left"]),
        (&json!(["east", "west"]), &json!([])),
        "{joined}"
    );
    agree(&deployment, 1, 1, &["--size", "1 KiB"]);
    // One that is away does not join in time.
    outcome(&change(&deployment, "leave", "west", "east"));
    let mut west = deployment.gateways.remove(1);
    west.process.kill().expect("it runs");
    west.process.wait().expect("it ends");
    let absent = change(&deployment, "join", "west", "east");
    assert_eq!(absent.status.code(), Some(1), "not in time: {absent:?}");
}

/// Runs `landbridge fabric` with these arguments.
fn fabric(arguments: &[&str]) -> Output {
    Command::new(BINARY).arg("fabric").args(arguments).output().expect("runs")
}

/// Returns gateways that run with terms, and the text of their fabric file.
fn running_with_terms() -> (Deployment, String) {
    let mut deployment = deployment(1, 1);
    let path = deployment.path("fabric.toml");
    let text = std::fs::read_to_string(&path).expect("a file");
    let first = format!("quorum = [\"east\"]\n{text}");
    std::fs::write(&path, &first).expect("written");
    deployment.run_gateways();
    agree(&deployment, 1, 1, &["--size", "1 KiB"]);
    (deployment, first)
}

#[test]
fn an_operator_applies_a_signed_fabric() {
    let (deployment, first) = running_with_terms();
    let changed = deployment.path("changed.toml");
    let (file, keys) =
        (changed.display().to_string(), deployment.path("keys").display().to_string());
    let config = deployment.path("east.toml").display().to_string();
    let apply = |more: &[&str]| {
        let arguments = ["apply", &file, "--within", "2 s", "--json", "--config", &config];
        fabric(&[&arguments[..], more].concat())
    };
    let sign = || fabric(&["sign", &file, "--ca", &keys, "--json"]);
    // A file without a version is not signed.
    std::fs::write(&changed, &first).expect("written");
    assert_eq!(sign().status.code(), Some(64));
    let slower = format!("version = 3\n{}", first.replace("rtt = \"", "rtt = \"1"));
    std::fs::write(&changed, &slower).expect("written");
    assert_eq!(apply(&[]).status.code(), Some(64), "it has no signature");
    assert_eq!(outcome(&sign())["fabric_version"], 3);
    let dry = outcome(&apply(&["--dry-run"]));
    assert_eq!(dry["fabric"]["version"], 0, "{dry}");
    assert!(dry["changes"][0].as_str().is_some_and(|it| it.contains("rtt")), "{dry}");
    let applied = outcome(&apply(&[]));
    assert_eq!(applied["fabric"]["version"], 3, "{applied}");
    // What needs a restart is named with its line, and one with an older version is refused.
    for (text, words) in [
        (slower.replace("quorum", "lanes = 2\nquorum").replace("= 3", "= 4"), "line 2: `lanes`"),
        (slower.replace("= 3", "= 2"), "version 2 is not above version 3"),
    ] {
        std::fs::write(&changed, text).expect("written");
        outcome(&sign());
        let refused = apply(&[]);
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(words), "{said}");
    }
    agree(&deployment, 1, 1, &["--size", "1 KiB"]);
}

#[test]
fn a_fabric_waits_for_a_stopped_gateway() {
    let (deployment, first) = running_with_terms();
    let (file, keys) = (deployment.path("changed.toml"), deployment.path("keys"));
    let (file, keys) = (file.display().to_string(), keys.display().to_string());
    std::fs::write(&file, format!("version = 1\n{first}")).expect("written");
    outcome(&fabric(&["sign", &file, "--ca", &keys, "--json"]));
    let west = deployment.gateways[1].process.id().to_string();
    let signal = |name: &str| Command::new("kill").args([name, &west]).status().expect("runs");
    assert!(signal("-STOP").success());
    let config = deployment.path("east.toml").display().to_string();
    // It counts as lost after 15 s, and the command returns after 11 s.
    let late = fabric(&["apply", &file, "--within", "1 s", "--config", &config]);
    assert!(signal("-CONT").success());
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let said = String::from_utf8_lossy(&late.stdout).into_owned();
    assert!(said.contains("waits for west-0"), "{said}");
}

/// Returns the version of the fabric that a gateway has in force.
fn version_in_force(deployment: &Deployment, at: &str) -> u64 {
    let config = deployment.path(&format!("{at}.toml"));
    let status = Command::new(BINARY).args(["status", "--json", "--config"]).arg(config).output();
    outcome(&status.expect("runs"))["fabric_version"]["version"].as_u64().expect("a number")
}

#[test]
fn an_applied_fabric_is_kept_for_the_next_start() {
    let (mut deployment, first) = running_with_terms();
    let keys = deployment.path("keys").display().to_string();
    let config = deployment.path("east.toml").display().to_string();
    let [old, new] = [2, 3].map(|version| {
        let file = deployment.path(&format!("changed{version}.toml")).display().to_string();
        let text = format!("version = {version}\n{}", first.replace("rtt = \"", "rtt = \"1"));
        std::fs::write(&file, text).expect("written");
        outcome(&fabric(&["sign", &file, "--ca", &keys, "--json"]));
        file
    });
    let apply =
        |file: &str| fabric(&["apply", file, "--within", "2 s", "--json", "--config", &config]);
    assert_eq!(outcome(&apply(&new))["fabric"]["version"], 3);
    let kept = deployment.path("fabric.toml.applied");
    let stop_all = |deployment: &mut Deployment| {
        for mut gateway in deployment.gateways.drain(..) {
            gateway.process.kill().expect("it runs");
            gateway.process.wait().expect("it ends");
        }
    };
    // Nobody runs who could tell them, and an older fabric is not taken again.
    stop_all(&mut deployment);
    deployment.run_gateways();
    assert_eq!(["east", "west"].map(|at| version_in_force(&deployment, at)), [3, 3]);
    deployment.gateways[0].log.line_with("version 3 (");
    let refused = apply(&old);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("version 2 is not above version 3"), "{said}");
    agree(&deployment, 1, 1, &["--size", "1 KiB"]);
    // A host with the kept fabric gives it to one that lost it; one that is damaged is not used.
    stop_all(&mut deployment);
    let text = std::fs::read_to_string(&kept).expect("a kept fabric");
    deployment.run_gateway("east");
    std::fs::write(&kept, text.replace("rtt = \"1", "rtt = \"2")).expect("written");
    deployment.run_gateway("west");
    deployment.gateways[1].log.line_with("fabric.toml.applied is not used: the signature");
    agree(&deployment, 1, 1, &["--size", "1 KiB"]);
    assert_eq!(version_in_force(&deployment, "west"), 3);
}
