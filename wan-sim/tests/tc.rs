//! Links as `tc` commands.

mod skipping;

use skipping::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;
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
    assert!(text.contains("netem limit 5001 delay 40ms rate 500000000bit -14"), "{text}");
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
        // Whichever is full first.
        ("delay = '40 ms'\nrate = '1 Gbit/s'\nqueue = '0 B'\nlimit_packets = 100000", 3335),
        ("delay = '40 ms'\nlimit_packets = 9", 9),
        ("netem = 'delay 40ms rate 1gbit'", 1000),
    ] {
        let hosts = rendered(keys).unwrap();
        let words = &hosts[0].netems[0].1;
        assert!(words.starts_with(&format!("limit {limit} ")), "{keys}: {words}");
    }
}

/// The kernel adds the Ethernet header to what it shapes.
#[test]
fn the_rate_is_of_ip_packets() {
    for (overhead, words) in [(0, "-14"), (14, "0"), (38, "24")] {
        let keys = format!("delay = '1 ms'\nrate = '1 Gbit/s'\noverhead_bytes = {overhead}");
        let hosts = rendered(&keys).unwrap();
        let expected = format!(" rate 1000000000bit {words}");
        assert!(hosts[0].netems[0].1.ends_with(&expected), "{:?}", hosts[0].netems);
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
                 1-h 100% 1-k 0% seed 7 rate 1Gbit packetoverhead 24\n";
    assert_eq!(verify(&hosts[0], shown, SINGLE), Ok(()));
    for (from, to) in [
        ("40ms", "41ms"),
        (" 2ms", ""),
        ("10668", "10667"),
        ("1-k 0%", "1-k 1%"),
        ("1Gbit", "999Mbit"),
        ("packetoverhead 24", ""),
        ("seed 7", "ecn"),
        ("seed 7", "corrupt 1%"),
    ] {
        let other = verify(&hosts[0], &shown.replace(from, to), SINGLE);
        assert!(matches!(other, Err(VerifyError::Different { .. })), "{from}: {other:?}");
    }
    let whole = verify(&hosts[0], shown, "2: eth0: gso_max_size 65536 gso_max_segs 65535");
    assert!(matches!(whole, Err(VerifyError::Whole { segments: 65_535, .. })), "{whole:?}");
    // Only what is ours would be removed.
    assert!(
        applied(shown) && !applied("qdisc htb 1: root refcnt 2\nqdisc fq_codel 10: parent 1:1\n")
    );
    let none = verify(&hosts[0], "qdisc noqueue 0: root refcnt 2\n", SINGLE);
    assert!(matches!(none, Err(VerifyError::Missing { .. })), "{none:?}");
}

/// `tc` prints three digits of a time, four or more of a rate, six of a probability.
#[test]
fn what_tc_rounds_is_no_difference() {
    let hosts = rendered(
        "delay = '40256 us'\njitter = '1234 us'\nrate = '1234567 kbit/s'\nloss = '12.3456789 %'\n\
         duplicate = '0.0000004 %'\nreorder = '33.3333333 %'\noverhead_bytes = 14",
    )
    .unwrap();
    let limit = hosts[0].netems[0].1.split(' ').nth(1).unwrap().to_owned();
    let shown = format!(
        "qdisc netem 10: parent 1:1 limit {limit} delay 40.3ms  1.23ms loss 12.3457% duplicate \
         4e-07% reorder 33.3333% rate 1234Mbit gap 1"
    );
    assert_eq!(verify(&hosts[0], &shown, SINGLE), Ok(()), "{}", hosts[0].netems[0].1);
    for (from, to) in [
        ("40.3", "40.5"),
        ("1.23ms", "1.25ms"),
        ("1234M", "1233M"),
        ("12.3457", "12.346"),
        ("33.3333", "33.34"),
    ] {
        let other = verify(&hosts[0], &shown.replace(from, to), SINGLE);
        assert!(matches!(other, Err(VerifyError::Different { .. })), "{from}: {other:?}");
    }
}

/// Where TCP makes buffers of one segment.
const SINGLE: &str = "2: eth0: <UP> mtu 1500 gso_max_size 65536 gso_max_segs 1 tso_max_segs 65535";

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

/// `ip` and `tc` that write down what they were called with, and fail at what `fails` holds.
fn with_fakes(action: &str, fails: &str, qdiscs: &str) -> (Option<i32>, String, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    fs::write(at("qdiscs"), qdiscs).unwrap();
    let link = "2: eth0: mtu 1500 gso_max_segs 65000 tso_max_segs 65500";
    for program in ["ip", "tc"] {
        let script = format!(
            "#!/bin/sh\necho \"{program} $*\" >> {log}\ncase \"$*\" in\n\
             *'{fails}'*) echo 'no such luck' >&2; exit 2;;\n'qdisc show'*) cat {qdiscs};;\n\
             '-d link show'*) echo '{link}';;\nesac\n",
            log = at("log"),
            qdiscs = at("qdiscs"),
        );
        fs::write(at(program), script).unwrap();
        fs::set_permissions(at(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    let output = command.args(["tc", LAB, "--site", "oslo", action]).env("PATH", path).output();
    let output = output.unwrap();
    let log = fs::read_to_string(at("log")).unwrap();
    // Of the namespace in which netem is tried, nothing stays.
    let lines = log.lines().filter(|line| !line.contains("wansim-probe-")).map(str::to_owned);
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said, lines.collect())
}

const NO_FAILURE: &str = "nothing fails";

#[test]
fn all_is_applied_or_nothing() {
    let (code, said, done) = with_fakes("--apply", NO_FAILURE, "");
    assert_eq!(code, Some(0), "{said}");
    let golden = include_str!("golden/tc-three-sites.txt");
    let wanted =
        golden.split("# On oslo:\n").nth(1).unwrap().split("# To undo it:").next().unwrap();
    assert_eq!(done[1..].join("\n"), wanted.trim_end());
    let undone = ["tc qdisc del dev eth1 root", "ip link set dev eth1 gso_max_segs 65000"];
    for fails in ["gso_max_segs 1", "classid 1:1", "handle 20:", "flowid 1:2"] {
        let (code, said, done) = with_fakes("--apply", fails, "");
        assert!(code == Some(1) && said.contains("no such luck"), "{fails}: {said}");
        assert_eq!(done[done.len() - 2..], undone, "{fails}");
    }
    // What another has put there stays.
    let (code, _, done) = with_fakes("--apply", "root handle 1:", "");
    assert_eq!((code, done.len()), (Some(1), 2), "{done:?}");
}

#[test]
fn what_was_applied_is_removed_and_nothing_else() {
    let ours = "qdisc htb 1: root refcnt 2\nqdisc netem 10: parent 1:1 limit 1000\n";
    let (code, said, done) = with_fakes("--remove", NO_FAILURE, ours);
    assert_eq!(code, Some(0), "{said}");
    // As many segments as its driver lets it have.
    let undone = ["tc qdisc del dev eth1 root", "ip link set dev eth1 gso_max_segs 65500"];
    assert_eq!(done[done.len() - 2..], undone);
    let (code, said, done) = with_fakes("--remove", NO_FAILURE, "qdisc fq_codel 0: root\n");
    assert!(code == Some(1) && said.contains("left alone"), "{said}");
    assert!(!done.iter().any(|line| line.contains("del") || line.contains("set")), "{done:?}");
}
