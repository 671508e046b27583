//! Links as `tc` commands.

mod skipping;

use skipping::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use wan_sim::tc::{
    HostCommands, TcError, ToolOutput, VerifyError, render_shaping_commands,
    verify_queues_are_ours, verify_shaping,
};
use wan_sim::topology::Topology;

const LAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/three-sites.toml");

fn wan_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wan-sim")).args(arguments).output().unwrap()
}

fn rendered(keys: &str) -> Result<Vec<HostCommands>, TcError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    let sites =
        "[site.a]\naddresses = ['192.0.2.1']\n[site.b]\naddresses = ['192.0.2.2', '2001:db8::2']\n";
    fs::write(&file, format!("{sites}[link.a-b]\n{keys}")).unwrap();
    render_shaping_commands(&Topology::load(&file).unwrap(), Some("eth0"))
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

/// Gateways must have ports; a link above them is refused, with what to raise.
#[test]
fn the_example_fabric_renders_with_ports_as_fast_as_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fabric.toml");
    let fabric = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/two-region/fabric.toml");
    let fabric = fs::read_to_string(fabric).unwrap();
    let fabric = fabric.replacen("127.0.0.1", "192.0.2.1", 1).replace("127.0.0.1", "192.0.2.2");
    let faster = fabric.replace("\nrate = \"500 Mbit/s\"", "\nrate = \"2 Gbit/s\"");
    let raised = faster.replace("500 Mbit/s", "2 Gbit/s");
    assert!(fabric != faster && faster != raised);
    let file = path.to_str().unwrap();
    let tc = |text: &str| {
        fs::write(&path, text).unwrap();
        let output = wan_sim(&["tc", file, "--device", "eth0", "--site", "east"]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    for text in [&fabric, &raised] {
        let (code, said) = tc(text);
        assert!(code == Some(0) && said.contains("flowid 1:1"), "{said}");
    }
    let (code, said) = tc(&faster);
    assert!(code == Some(64) && said.contains("raise egress and ingress to at least"), "{said}");
}

#[test]
fn an_address_goes_one_way() {
    let of = |b: &str, c: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lab.toml");
        let link = "delay = '1 ms'\nrate = '1 Gbit/s'\n";
        let text = format!(
            "[site.a]\naddresses = ['192.0.2.1']\n[site.b]\naddresses = {b}\n\
             [site.c]\naddresses = {c}\n[link.a-b]\n{link}[link.a-c]\n{link}"
        );
        fs::write(&file, text).unwrap();
        render_shaping_commands(&Topology::load(&file).unwrap(), Some("eth0"))
    };
    // As where two gateways of a region are on one host.
    let hosts = of("['192.0.2.2', '192.0.2.2']", "['192.0.2.3']").unwrap();
    let filters = hosts[0].apply.iter().filter(|command| command.contains("192.0.2.2/32"));
    assert_eq!(filters.count(), 1);
    let error = of("['192.0.2.2']", "['192.0.2.2']").unwrap_err().to_string();
    assert!(error.starts_with("a to c: ") && error.contains("the same address"), "{error}");
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
fn links_that_netem_cannot_express_are_refused_by_name() {
    for (keys, named) in [
        ("delay = '1 ms'\njitter = '1 ms'\nlimit_packets = 9", "reorders"),
        ("delay = '1 ms'\njitter = '1 ms'\nreordering = true\nrate = '1 Gbit/s'", "keeps order"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\nmark_above = '9 kB'", "mark_above"),
        ("delay = '1 ms'", "limit"),
        ("delay = '1 h'\nrate = '100 Tbit/s'", "2^32"),
        ("delay = '1500 ns'\nrate = '1 Gbit/s'\nqueue = '1 MB'", "microseconds"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\nchanges = [{ at = '1 s', cut = true }]", "schedule"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\ndrops = [1]", "schedule"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\ncodel = {}", "codel"),
        ("delay = '1 ms'\nrate = '1 Gbit/s'\ncross = ['cubic']", "cross"),
        ("delay = '1 ms'\nqueue = '1 MB'\ncapacity = 'cellular'", "capacity"),
        (
            "delay = '1 ms'\nlimit_packets = 9\n\
             policer = { rate = '1 Gbit/s', burst = '1 MB' }",
            "policer",
        ),
    ] {
        let error = rendered(keys).unwrap_err().to_string();
        assert!(error.contains(named) && error.starts_with("a to b: "), "{keys}: {error}");
    }
}

/// In the form that iproute2 prints, written by hand, for a host with `rendered`'s link.
fn shown(limit: &str, words: &str) -> [String; 4] {
    [
        format!(
            "qdisc htb 1: root refcnt 2 r2q 10 default 0 direct_packets_stat 0 direct_qlen 1000\n\
             qdisc netem 10: parent 1:1 limit {limit} {words}\n"
        ),
        "class htb 1:1 root leaf 10: prio 0 quantum 60000 rate 1Tbit ceil 1Tbit burst 0b cburst \
         0b \n"
            .to_owned(),
        "filter parent 1: protocol ip pref 1 u32 chain 0 \n\
         filter parent 1: protocol ip pref 1 u32 chain 0 fh 800: ht divisor 1 \n\
         filter parent 1: protocol ip pref 1 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 \
         *flowid 1:1 not_in_hw \n  match c0000202/ffffffff at 16\n\
         filter parent 1: protocol ipv6 pref 2 u32 chain 0 \n\
         filter parent 1: protocol ipv6 pref 2 u32 chain 0 fh 801: ht divisor 1 \n\
         filter parent 1: protocol ipv6 pref 2 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 \
         flowid 1:1 not_in_hw \n  match 20010db8/ffffffff at 24\n  match 00000000/ffffffff at \
         28\n  match 00000000/ffffffff at 32\n  match 00000002/ffffffff at 36\n"
            .to_owned(),
        SINGLE.to_owned(),
    ]
}

fn verified(host: &HostCommands, shown: &[String; 4]) -> Result<(), VerifyError> {
    let [qdiscs, classes, filters, link] = shown;
    verify_shaping(host, &ToolOutput { qdiscs, classes, filters, link })
}

#[test]
fn kernel_state_is_compared_with_the_file() {
    let hosts = rendered(
        "delay = '40 ms'\njitter = '2 ms'\ndistribution = 'normal'\nrate = '1 Gbit/s'\n\
         overhead_bytes = 38\nbursts = { to_bad = '1 %', to_good = '10 %', loss_in_bad = '100 %', loss_in_good = '0 %' }",
    )
    .unwrap();
    let words = "delay 40ms  2ms loss gemodel p 1% r 10% 1-h 100% 1-k 0% seed 7 rate 1Gbit \
                 packetoverhead 24";
    let good = shown("10668", words);
    assert_eq!(verified(&hosts[0], &good), Ok(()));
    // What was printed, and what it is changed to.
    let changed = |place: usize, from: &str, to: &str| {
        let mut other = good.clone();
        other[place] = other[place].replace(from, to);
        assert_ne!(other, good, "{from}");
        verified(&hosts[0], &other).unwrap_err()
    };
    for (place, from, to) in [
        (0, "40ms", "41ms"),
        (0, " 2ms", ""),
        (0, "10668", "10667"),
        (0, "1-k 0%", "1-k 1%"),
        (0, "1Gbit", "999Mbit"),
        (0, "packetoverhead 24", ""),
        (0, "seed 7", "ecn"),
        (0, "seed 7", "corrupt 1%"),
        (0, "parent 1:1", "parent 1:2"),
        (0, "default 0", "default 0x1"),
        (1, "leaf 10:", "leaf 20:"),
        (1, "ceil 1Tbit", "ceil 1Gbit"),
        (1, "rate 1Tbit", "rate 1Mbit"),
        (2, "flowid 1:1", "flowid 1:2"),
    ] {
        let error = changed(place, from, to);
        assert!(matches!(error, VerifyError::Different { .. }), "{from}: {error:?}");
    }
    for (place, from, to) in [
        (0, "qdisc netem 10:", "qdisc netem 10:0 parent 1:9 delay 1ms\nqdisc netem 10:"),
        (1, "class htb", "class htb 1:2 root prio 0 rate 1Mbit ceil 1Mbit\nclass htb"),
        (2, "c0000202/ffffffff", "c0000202/ffffff00"),
        (2, "c0000202", "c0000203"),
        (2, "at 16", "at 12"),
        (2, "match 00000002", "match 00000003"),
        (2, "at 16\n", "at 16\n  match 00110000/00ff0000 at 8\n"),
    ] {
        let error = changed(place, from, to);
        assert!(matches!(error, VerifyError::Unwanted { .. }), "{from}: {error:?}");
    }
    for (place, from, to) in
        [(0, "netem 10:", "fq_codel 10:"), (1, "class htb 1:1", "class fq 1:1")]
    {
        let error = changed(place, from, to);
        assert!(matches!(error, VerifyError::Missing { .. }), "{from}: {error:?}");
    }
    let mut none = good.clone();
    none[2].clear();
    let none = verified(&hosts[0], &none).unwrap_err();
    assert!(none.to_string().contains("192.0.2.2 through class 1:1"), "{none}");
    let whole = changed(3, "gso_max_segs 1 ", "gso_max_segs 65535 ");
    assert!(matches!(whole, VerifyError::Whole { segments: 65_535, .. }), "{whole:?}");
    let other = changed(0, "htb 1: root", "fq_codel 0: root");
    assert!(matches!(other, VerifyError::NotApplied { .. }), "{other:?}");
    // Only what is ours would be removed.
    assert!(
        verify_queues_are_ours(&good[0])
            && !verify_queues_are_ours(
                "qdisc htb 1: root refcnt 2\nqdisc fq_codel 10: parent 1:1\n"
            )
    );
}

/// `tc` prints three digits of a time, four or more of a rate, six of a probability.
#[test]
fn rounding_by_tc_is_no_difference() {
    let hosts = rendered(
        "delay = '40256 us'\njitter = '1234 us'\nrate = '1234567 kbit/s'\nloss = '12.3456789 %'\n\
         duplicate = '0.0000004 %'\nreorder = '33.3333333 %'\noverhead_bytes = 14",
    )
    .unwrap();
    let limit = hosts[0].netems[0].1.split(' ').nth(1).unwrap();
    let words = "delay 40.3ms  1.23ms loss 12.3457% duplicate 4e-07% reorder 33.3333% rate \
                 1234Mbit gap 1";
    let good = shown(limit, words);
    assert_eq!(verified(&hosts[0], &good), Ok(()), "{}", hosts[0].netems[0].1);
    for (from, to) in [
        ("40.3", "40.5"),
        ("1.23ms", "1.25ms"),
        ("1234M", "1233M"),
        ("12.3457", "12.346"),
        ("33.3333", "33.34"),
    ] {
        let mut other = good.clone();
        other[0] = other[0].replace(from, to);
        let other = verified(&hosts[0], &other);
        assert!(matches!(other, Err(VerifyError::Different { .. })), "{from}: {other:?}");
    }
}

/// A device on which TCP makes buffers of one segment.
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
    let lab = render_shaping_commands(&Topology::load(Path::new(LAB)).unwrap(), None);
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

/// `ip` and `tc` that write down what they were called with.
struct Fakes {
    directory: tempfile::TempDir,
}

impl Fakes {
    /// Fake tools that fail for commands containing `fails`, and print `qdiscs` for every device.
    fn new(fails: &str, qdiscs: &str) -> Self {
        let fakes = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(fakes.at("qdiscs"), qdiscs).unwrap();
        let link = "2: eth0: mtu 1500 gso_max_segs 65000 tso_max_segs 65500";
        for program in ["ip", "tc"] {
            let script = format!(
                "#!/bin/sh\necho \"{program} $*\" >> {log}\ncase \"$*\" in\n\
                 *'{fails}'*) echo 'no such luck' >&2; exit 2;;\n'qdisc show'*) cat {qdiscs};;\n\
                 '-d link show'*) echo '{link}';;\nesac\n",
                log = fakes.at("log"),
                qdiscs = fakes.at("qdiscs"),
            );
            fs::write(fakes.at(program), script).unwrap();
            fs::set_permissions(fakes.at(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fakes
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// The exit code, standard error, and the commands that were called.
    fn act(&self, arguments: &[&str]) -> (Option<i32>, String, Vec<String>) {
        let path = format!("{}:/usr/bin:/bin", self.directory.path().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
        let output = command.arg("tc").args(arguments).env("PATH", path).output().unwrap();
        let log = fs::read_to_string(self.at("log")).unwrap_or_default();
        // Of the namespace in which netem is tried, nothing stays.
        let lines = log.lines().filter(|line| !line.contains("wansim-probe-")).map(str::to_owned);
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), lines.collect())
    }
}

fn with_fakes(action: &str, fails: &str, qdiscs: &str) -> (Option<i32>, String, Vec<String>) {
    Fakes::new(fails, qdiscs).act(&[LAB, "--site", "oslo", action])
}

const NO_FAILURE: &str = "nothing fails";
const OURS: &str = "qdisc htb 1: root refcnt 2\nqdisc netem 10: parent 1:1 limit 1000\n";

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
fn only_applied_state_is_removed() {
    let (code, said, done) = with_fakes("--remove", NO_FAILURE, OURS);
    assert_eq!(code, Some(0), "{said}");
    // As many segments as its driver lets it have.
    let undone = ["tc qdisc del dev eth1 root", "ip link set dev eth1 gso_max_segs 65500"];
    assert_eq!(done[done.len() - 2..], undone);
    let (code, said, done) = with_fakes("--remove", NO_FAILURE, "qdisc fq_codel 0: root\n");
    assert!(code == Some(1) && said.contains("left alone"), "{said}");
    assert!(!done.iter().any(|line| line.contains("del") || line.contains("set")), "{done:?}");
}

/// A host stays shaped by no change of the file.
#[test]
fn removing_needs_only_the_device() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lab.toml");
    let file = path.to_str().unwrap();
    let fakes = Fakes::new(NO_FAILURE, OURS);
    let undone = |device: &str| format!("tc qdisc del dev {device} root");
    // Neither sites nor links fit any more; no TOML; no file. Where the file names a device, that.
    for (text, device) in [
        (Some("[site.oslo]\ndevice = 'eth7'\n[link.oslo-x]\nrat = 1"), "eth7"),
        (Some("[link"), "eth3"),
        (None, "eth3"),
    ] {
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let arguments = [file, "--site", "oslo", "--remove", "--device", "eth3"];
        let (code, said, done) = fakes.act(&arguments);
        assert_eq!(code, Some(0), "{text:?}: {said}");
        assert_eq!(done[done.len() - 2], undone(device), "{text:?}");
    }
    let (code, said, _) = fakes.act(&[file, "--site", "oslo", "--remove"]);
    assert!(code == Some(64) && said.contains("give --device"), "{said}");
}

#[test]
fn without_iproute2_every_action_exits_77_with_the_reason() {
    for action in ["--apply", "--verify", "--remove"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
        command.args(["tc", LAB, "--site", "oslo", action]).env("PATH", "/nonexistent");
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(77), "{action}: {said}");
        assert!(said.contains("iproute2") && said.lines().count() == 1, "{action}: {said}");
    }
}
