//! Links as `tc` commands.

mod skipping;

use skipping::skip;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use wan_sim::tc::{HostCommands, TcError, VerifyError, applied, render, verify};
use wan_sim::topology::Topology;

const LAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/three-sites.toml");

fn wan_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wan-sim")).args(arguments).output().unwrap()
}

fn rendered(keys: &str) -> Result<Vec<HostCommands>, TcError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    let sites = "[site.a]\naddresses = ['192.0.2.1']\n[site.b]\naddresses = ['192.0.2.2']\n";
    fs::write(&file, format!("{sites}[link.a-b]\n{keys}")).unwrap();
    render(&Topology::load(&file).unwrap(), Some("eth0"))
}

#[test]
fn the_example_renders_as_recorded() {
    let output = wan_sim(&["tc", LAB]);
    assert_eq!(output.status.code(), Some(0));
    let golden = include_str!("golden/tc-three-sites.txt");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), golden);
    let one = String::from_utf8(wan_sim(&["tc", LAB, "--site", "oslo"]).stdout).unwrap();
    assert!(golden.contains(&one) && one.starts_with("# On oslo:"), "{one}");
}

#[test]
fn every_preset_has_an_example_that_renders_as_recorded() {
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/presets.toml");
    let output = wan_sim(&["tc", lab]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let golden = include_str!("golden/tc-presets.txt");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), golden);
    for preset in wan_sim::topology::presets() {
        assert!(golden.contains(&format!("# On {}:\n", preset.name)), "{}", preset.name);
    }
}

#[test]
fn a_fabric_renders_with_its_gateways_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.toml");
    let text = "name = 'two'\n[region.east.gateway.e]\nwan = '192.0.2.1:7400'\n\
                [region.west.gateway.w]\nwan = '[2001:db8::2]:7400'\n\
                [link.east-west]\nrate = '500 Mbit/s'\nrtt = '80 ms'\n";
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let output = wan_sim(&["tc", file, "--device", "eth9", "--site", "east"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("protocol ipv6 prio 2 u32 match ip6 dst 2001:db8::2/128"), "{text}");
    // 40 ms at 500 Mbit/s are 2.5 MB, the queue another 5 MB: 5,000 packets, and one sent.
    assert!(text.contains("netem limit 5001 delay 40ms rate 500000000bit"), "{text}");
    assert_eq!(wan_sim(&["tc", file]).status.code(), Some(64));
    assert_eq!(wan_sim(&["tc", file, "--device", "eth9", "--site", "x"]).status.code(), Some(64));
}

#[test]
fn the_limit_holds_pipe_and_queue() {
    for (keys, limit) in [
        ("delay = '40 ms'\nrate = '1 Gbit/s'\nqueue = '0 B'", 3335),
        ("delay = '40 ms'\nrate = '1 Gbit/s'\nqueue = '1 BDP'", 10_001),
        ("delay = '40 ms'\njitter = '10 ms'\nrate = '1 Gbit/s'\nqueue = '0 B'", 4168),
        ("delay = '40 ms'\nrate = '1 Gbit/s'\nlimit_packets = 7", 7),
    ] {
        let hosts = rendered(keys).unwrap();
        let words = &hosts[0].netems[0].1;
        assert!(words.starts_with(&format!("limit {limit} ")), "{keys}: {words}");
    }
}

#[test]
fn what_netem_cannot_express_is_refused_by_name() {
    for (keys, named) in [
        ("delay = '1 ms'\njitter = '1 ms'\nlimit_packets = 9", "reorders"),
        ("delay = '1 ms'\njitter = '1 ms'\nreordering = true\nrate = '1 Gbit/s'", "keeps order"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\nmark_above = '9 kB'", "mark_above"),
        ("delay = '1 ms'", "limit"),
        ("delay = '1 h'\nrate = '100 Tbit/s'", "2^32"),
        ("delay = '1500 ns'\nrate = '1 Gbit/s'", "microseconds"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\nchanges = [{ at = '1 s', cut = true }]", "schedule"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\ndrops = [1]", "schedule"),
    ] {
        let error = rendered(keys).unwrap_err().to_string();
        assert!(error.contains(named) && error.starts_with("a to b: "), "{keys}: {error}");
    }
}

#[test]
fn what_the_kernel_shows_is_compared() {
    let hosts = rendered(
        "delay = '40 ms'\njitter = '2 ms'\ndistribution = 'normal'\nrate = '1 Gbit/s'\n\
         overhead_bytes = 38\nbursts = { to_bad = '1 %', to_good = '10 %', loss_in_bad = '100 %', loss_in_good = '0 %' }",
    )
    .unwrap();
    let shown = "qdisc htb 1: root refcnt 2 r2q 10 default 0 direct_packets_stat 0\n\
                 qdisc netem 10: parent 1:1 limit 10668 delay 40ms  2ms loss gemodel p 1% r 10% \
                 1-h 100% 1-k 0% seed 7 rate 1Gbit packetoverhead 38\n";
    assert_eq!(verify(&hosts[0], shown), Ok(()));
    let slower = verify(&hosts[0], &shown.replace("40ms", "41ms"));
    assert!(matches!(slower, Err(VerifyError::Different { .. })), "{slower:?}");
    // Only what is ours would be removed.
    assert!(
        applied(shown) && !applied("qdisc htb 1: root refcnt 2\nqdisc fq_codel 10: parent 1:1\n")
    );
    let none = verify(&hosts[0], "qdisc noqueue 0: root refcnt 2\n");
    assert!(matches!(none, Err(VerifyError::Missing { .. })), "{none:?}");
}

/// The words are those that this machine's `tc` knows; says so where it cannot be asked.
#[test]
fn tc_understands_what_is_rendered() {
    let name = format!("wstest-tc-{}", std::process::id());
    let ip = |words: &[&str]| Command::new("ip").args(words).output();
    if !ip(&["netns", "add", &name]).is_ok_and(|output| output.status.success()) {
        skip("cannot make a network namespace");
        return;
    }
    let all = rendered(
        "delay = '40 ms'\njitter = '2 ms'\ndistribution = 'normal'\nrate = '1 Gbit/s'\n\
         overhead_bytes = 38\nloss = '1 %'\nmark_losses = true\nduplicate = '1 %'\n\
         corrupt = '1 %'\nreorder = '1 %'\ngap = 5\n",
    );
    let lab = render(&Topology::load(Path::new(LAB)).unwrap(), None);
    let mut wrong = Vec::new();
    for host in all.unwrap().into_iter().chain(lab.unwrap()) {
        for (_, words) in host.netems {
            let line = format!("netns exec {name} tc qdisc add dev lo root netem {words}");
            let output = ip(&line.split(' ').collect::<Vec<_>>()).unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let _ = ip(&["netns", "exec", &name, "tc", "qdisc", "del", "dev", "lo", "root"]);
            // A kernel without netem is no fault of the words.
            if !output.status.success() && !said.contains("qdisc kind is unknown") {
                wrong.push(format!("{words}: {said}"));
            }
        }
    }
    ip(&["netns", "del", &name]).unwrap();
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn acting_without_netem_or_privilege_exits_77_and_changes_nothing() {
    // On the loopback device nothing of ours is applied. With netem, applying would fail at a
    // device that does not exist.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    for (device, action) in [("wstest-none", "--apply"), ("lo", "--verify"), ("lo", "--remove")] {
        let text = fs::read_to_string(LAB).unwrap().replace("\"eth0\"", &format!("\"{device}\""));
        fs::write(&file, text).unwrap();
        let output = wan_sim(&["tc", file.to_str().unwrap(), "--site", "east", action]);
        let error = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(77) => assert!(error.contains("cannot: `ip netns"), "{action}: {error}"),
            code => assert!(code == Some(1) && error.contains(device), "{code:?}: {error}"),
        }
    }
    let file = file.to_str().unwrap();
    assert_eq!(wan_sim(&["tc", file, "--apply"]).status.code(), Some(64));
}
