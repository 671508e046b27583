//! The `wan-sim` command as a process.
#![expect(clippy::disallowed_types, reason = "the ends of the relay are sockets")]
#![expect(clippy::disallowed_methods, reason = "a stop lasts by the clock")]

mod refusals;
mod stopping;

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn wan_sim(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn relay(target: &UdpSocket, more: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let forward = format!("127.0.0.1:0={}", target.local_addr().unwrap());
    let mut arguments = vec!["relay", "--forward", &forward, "--rtt=2ms", "--rate", "1 Gbit/s"];
    arguments.extend(more);
    let mut child = wan_sim(&arguments).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

fn json(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

fn run(arguments: &[&str]) -> Output {
    wan_sim(arguments).output().unwrap()
}

#[test]
fn a_controlled_relay_answers_and_ends_with_its_input() {
    let target = socket();
    let (mut child, mut lines) = relay(&target, &["--names", "east,west", "--control"]);
    let ready = json(&mut lines);
    assert_eq!(ready["ready"], true);
    assert!(ready["receive_buffer_bytes"].as_u64().unwrap() > 0);
    let listener: SocketAddr = ready["listen"][0].as_str().unwrap().parse().unwrap();
    let client = socket();
    client.send_to(&[7; 972], listener).unwrap();
    let mut buffer = [0; 2000];
    let (len, upstream) = target.recv_from(&mut buffer).unwrap();
    assert_eq!(len, 972);
    target.send_to(&[8; 72], upstream).unwrap();
    client.recv_from(&mut buffer).unwrap();

    let mut input = child.stdin.take().unwrap();
    let mut say = |line: &str| writeln!(input, "{line}").unwrap();
    say("counters");
    let counters = json(&mut lines);
    let seen = |packets: u64, ip_bytes: u64| {
        serde_json::json!({
            "ip_bytes": ip_bytes, "packets": packets, "drops_loss": 0, "drops_queue": 0,
            "drops_limit": 0, "drops_script": 0, "drops_blackhole": 0, "marked_loss": 0, "marked_queue": 0,
            "duplicated": 0, "corrupted": 0, "drops_burst": 0, "drops_codel": 0, "drops_red": 0,
            "drops_policer": 0, "marked_codel": 0, "marked_red": 0,
        })
    };
    let expected = serde_json::json!({
        "version": 1, "east_west": seen(1, 1000), "west_east": seen(1, 100)
    });
    assert_eq!(counters, expected);
    say("fidelity");
    let fidelity = json(&mut lines);
    assert!(fidelity["deliveries"].is_u64(), "{fidelity}");
    assert!(fidelity["void"].is_array() && fidelity["lateness_ns"]["p999"].is_u64(), "{fidelity}");

    say("set loss 100%");
    assert_eq!(json(&mut lines)["done"], "set loss 100%");
    client.send_to(&[7; 972], listener).unwrap();
    while {
        say("counters");
        json(&mut lines)["east_west"]["drops_loss"] != 1
    } {}
    // Memory does not change with the rate: a packet still waits.
    say("set loss 0%");
    say("set rate 1kbit/s");
    (0..2).for_each(|_| assert!(json(&mut lines)["done"].is_string()));
    (0..3).for_each(|_| assert_eq!(client.send_to(&[7; 972], listener).unwrap(), 972));
    let dropped = loop {
        say("counters");
        let counters = json(&mut lines);
        if counters["east_west"]["packets"] == 5 {
            break counters["east_west"]["drops_queue"].clone();
        }
    };
    assert_eq!(dropped, 0);
    say("set loss 101%");
    assert!(json(&mut lines)["error"].as_str().unwrap().contains("0 % to 100 %"));
    say("set jitter 5ms");
    assert!(json(&mut lines)["error"].as_str().unwrap().contains("before it left"));
    say("dance");
    assert!(json(&mut lines)["error"].as_str().unwrap().contains("`dance`"));

    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_interrupt_ends_it_cleanly_with_a_report() {
    use rustix::process::Signal;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (mut child, mut lines) = relay(&socket(), &["--json"]);
        assert_eq!(json(&mut lines)["ready"], true);
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, signal).unwrap();
        let report = json(&mut lines);
        assert_eq!(report["client_target"]["packets"], 0);
        assert!(report["fidelity"]["void"].is_array(), "{report}");
        assert!(report["fidelity"]["cpu_permille"].is_u64(), "{report}");
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}

/// `nohup` lets a program ignore the end of its terminal.
#[test]
fn a_relay_outlives_its_terminal_where_it_shall() {
    let forward = format!("127.0.0.1:0={}", socket().local_addr().unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_wan-sim"), "relay"]);
    shell.args(["--forward", &forward, "--rtt=2ms", "--rate=1Gbit/s", "--control"]);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(json(&mut lines)["ready"], true);
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::HUP).unwrap();
    let input = child.stdin.as_mut().unwrap();
    input.write_all(b"counters\n").unwrap();
    assert!(json(&mut lines).is_object());
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_starved_relay_says_that_the_run_is_void() {
    let target = socket();
    let (mut child, mut lines) = relay(&target, &["--json"]);
    let ready = json(&mut lines);
    let listener: SocketAddr = ready["listen"][0].as_str().unwrap().parse().unwrap();
    let client = socket();
    let id = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(id, signal).unwrap();
    stopping::stop(id);
    client.send_to(b"late", listener).unwrap();
    // More than its socket holds: the rest is the emulator's loss.
    let most = ready["receive_buffer_bytes"].as_u64().unwrap() * 2 / 9000 + 100;
    (0..most).for_each(|_| drop(client.send_to(&[0; 9000], listener)));
    target.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(target.recv_from(&mut [0; 9]).is_err(), "a stopped relay delivered");
    signal(rustix::process::Signal::CONT);
    target.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    target.recv_from(&mut [0; 9]).unwrap();
    signal(rustix::process::Signal::TERM);
    let report = json(&mut lines);
    let reasons = report["fidelity"]["void"].to_string();
    assert!(reasons.contains("late") && reasons.contains("the emulator itself lost"), "{report}");
    assert!(report["own_drops"]["overflowed"].as_u64().unwrap() > 0, "{report}");
    assert!(report["fidelity"]["machine_permille"].is_u64(), "{report}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// One late read among thousands of deliveries.
#[test]
fn a_relay_stopped_under_traffic_reports_a_void_run() {
    let target = socket();
    let forward = format!("127.0.0.1:0={}", target.local_addr().unwrap());
    let mut arguments = vec!["relay", "--forward", &forward, "--rtt=0ms", "--rate=1 Gbit/s"];
    arguments.extend(["--queue=1 MB", "--json"]);
    let mut child = wan_sim(&arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = json(&mut lines);
    let listener: SocketAddr = ready["listen"][0].as_str().unwrap().parse().unwrap();
    let client = socket();
    let round = || {
        client.send_to(b"traffic", listener).unwrap();
        target.recv_from(&mut [0; 9]).unwrap();
    };
    let id = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(id, signal).unwrap();
    (0..2000).for_each(|_| round());
    stopping::stop(id);
    client.send_to(b"late", listener).unwrap();
    target.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // A read may end before its time.
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(1) {
        assert!(target.recv_from(&mut [0; 9]).is_err(), "a stopped relay delivered");
    }
    signal(rustix::process::Signal::CONT);
    target.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    target.recv_from(&mut [0; 9]).unwrap();
    (0..2000).for_each(|_| round());
    signal(rustix::process::Signal::TERM);
    let report = json(&mut lines);
    assert!(report["fidelity"]["void"].to_string().contains("it stood still for"), "{report}");
    assert!(report["fidelity"]["stalled_ns"]["max"].as_u64() > Some(900_000_000), "{report}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// The reader goes away early, as with `| head -1`, or the disk is full.
#[test]
fn a_report_that_is_not_written_exits_1() {
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/three-sites.toml");
    for arguments in [&["presets"][..], &["show", lab], &["tc", lab], &["--help"], &["--version"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = wan_sim(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert_eq!(output.stderr, b"", "{arguments:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = wan_sim(arguments).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.starts_with("cannot write to standard output: No space left"), "{error}");
    }
    let forward = "127.0.0.1:0=127.0.0.1:9";
    let relay = ["relay", "--forward", forward, "--rtt=2ms", "--rate=1Gbit/s"];
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = wan_sim(&relay).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn bad_usage_is_named_and_exits_64() {
    let good = ["relay", "--forward", "127.0.0.1:0=127.0.0.1:9", "--rtt", "80ms"];
    for (more, named) in [
        (&["--rate", "0 bit/s"][..], "0 bit/s"),
        (&["--rate", "-1 Mbit/s"], "-1 Mbit/s"),
        (&["--rate", "500"], "Mbit/s"),
        (&["--rate", "1 Gbit/s", "--loss", "101 %"], "100 %"),
        (&["--rate", "1 Gbit/s", "--jitter", "41ms"], "41 ms"),
        (&["--rate", "1 Gbit/s", "--names", "east"], "east,west"),
        (&["--rate", "1 Gbit/s", "--forward", "7001"], "LISTEN=TARGET"),
        (&["--rate", "1 Gbit/s", "--forward", "127.0.0.1:1=west:2"], "instead of its name"),
        (&["--rate", "1 Gbit/s", "--forward", "127.0.0.1:1=0.0.0.0:2"], "target 0.0.0.0:2"),
        (&["--rate", "1 Gbit/s", "--forward", "127.0.0.1:1=239.1.1.1:2"], "target 239.1.1.1:2"),
        (&["--rate", "1 Gbit/s", "--forward", "127.0.0.1:1=127.0.0.1:0"], "port 0"),
        (&["--rate", "1 Gbit/s", "--forward", "127.0.0.1:0=127.255.255.255:9"], "cannot send to"),
        (&["--rate", "1 Gbit/s", "--forward", "0.0.0.0:7117=127.0.0.2:7117"], "forwards to itself"),
        (&["--rate", "1 Gbit/s", "--teleport"], "--teleport"),
        (&["--rate", "1 Gbit/s", "--teleport"], "accepted: --forward, --rtt, --rate, --loss"),
        (&["--rate", "1 Gbit/s", "beam"], "beam"),
        (
            &["--rate", "1 Gbit/s", "--seed", "-1"],
            "invalid value '-1' for '--seed': it is below zero",
        ),
        (&["--rate", "1 Gbit/s", "-3MB"], "invalid value '-3MB': it is below zero"),
        // A good negative value, or another bad word, is not mistaken for it.
        (&["--rate", "1 Gbit/s", "--teleport", "-1"], "--teleport"),
        (&["--rate", "1 Gbit/s", "--seed", ""], "it is empty"),
        (
            &[
                "--rate",
                "1 Gbit/s",
                "--forward",
                "127.0.0.1:7118=127.0.0.1:9",
                "--forward",
                "0.0.0.0:7118=127.0.0.1:9",
            ],
            "two forwards listen on 0.0.0.0:7118: give each an address of its own",
        ),
        (&["--rate"], "--rate"),
        (&["--netem", "delay 1ms"], "--rtt"),
        (&[], "--rate <RATE>; usage: wan-sim relay --forward <LISTEN=TARGET>"),
    ] {
        let output = run(&[&good[..], more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{more:?}: {error}");
        assert!(error.contains(named), "{more:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{more:?}: {error}");
    }
    let unknown = run(&["dance"]);
    let error = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!((unknown.status.code(), error.lines().count()), (Some(64), 1), "{error}");
    assert!(error.contains("'dance'") && error.contains("relay, lab, tc, replay"), "{error}");
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

/// The second of two relays would send the packets of the first one back to it.
#[test]
fn a_relay_that_closes_a_circle_is_refused() {
    let target = socket().local_addr().unwrap();
    let first = ["relay", "--control", "--rtt=2ms", "--rate=1Gbit/s", "--forward"];
    let mut child = wan_sim(&first).arg(format!("127.0.0.1:0={target}")).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = json(&mut lines);
    let listener: SocketAddr = ready["listen"][0].as_str().unwrap().parse().unwrap();
    let back = format!("0.0.0.0:{}={listener}", target.port());
    let second = run(&["relay", "--rtt=2ms", "--rate=1Gbit/s", "--forward", &back]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(64), "{error}");
    assert!(error.contains("through other relays"), "{error}");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn words_of_netem_make_the_links_and_recordings_replay() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("recording").to_str().unwrap().to_owned();
    let (target, client) = (socket(), socket());
    let forward = format!("127.0.0.1:0={}", target.local_addr().unwrap());
    let there = ["--netem", "delay 1ms loss 100%", "--netem-back", "delay 1ms"];
    let mut arguments = vec!["relay", "--control", "--record", &file, "--forward", &forward];
    arguments.extend(there);
    let mut child = wan_sim(&arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = json(&mut lines);
    let listener: SocketAddr = ready["listen"][0].as_str().unwrap().parse().unwrap();
    client.send_to(b"lost", listener).unwrap();
    let mut input = child.stdin.take().unwrap();
    while {
        writeln!(input, "counters").unwrap();
        json(&mut lines)["client_target"]["drops_loss"] != 1
    } {}
    writeln!(input, "set netem delay 1ms").unwrap();
    assert_eq!(json(&mut lines)["done"], "set netem delay 1ms");
    client.send_to(b"found", listener).unwrap();
    target.recv_from(&mut [0; 9]).unwrap();
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let output = run(&["replay", &file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("drop:loss", "drop:queue")).unwrap();
    assert_eq!(run(&["replay", &file]).status.code(), Some(1));
    assert_eq!(run(&["replay", "/nonexistent"]).status.code(), Some(64));
}

#[test]
fn files_and_presets_are_shown_in_netems_words() {
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/three-sites.toml");
    let output = String::from_utf8(run(&["show", lab]).stdout).unwrap();
    assert_eq!(output.lines().count(), 6);
    let first = "east to oslo: delay 45ms 2ms distribution normal order kept \
                 loss 0.01% rate 200mbit 0 queue 500kB";
    assert_eq!(output.lines().next(), Some(first));
    let schedule = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/schedule.toml");
    let output = String::from_utf8(run(&["show", schedule]).stdout).unwrap();
    for line in ["    at 30 s: cut", "    at 32 s: joined", "    drops packets 0, 10, 11, 12"] {
        assert_eq!(output.lines().filter(|said| *said == line).count(), 2, "{output}");
    }
    assert!(output.contains("    at 20 s: delay 12ms loss 0.1% rate"), "{output}");
    let presets = String::from_utf8(run(&["presets"]).stdout).unwrap();
    assert!(presets.contains("km-1000: delay 5ms limit none"), "{presets}");
    let output = run(&["show", "/nonexistent.toml"]);
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn a_capacity_is_printed_and_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cell.trace");
    let generated = run(&["capacity", "cellular", "--seed", "7"]);
    assert_eq!(generated.status.code(), Some(0));
    std::fs::write(&path, &generated.stdout).unwrap();
    let file = path.to_str().unwrap();
    assert_eq!(run(&["capacity", file]).stdout, generated.stdout);
    let missing = run(&["capacity", "lte"]);
    assert_eq!(missing.status.code(), Some(64));
    let words = String::from_utf8(missing.stderr).unwrap();
    assert!(words.contains("cellular, satellite, cloud"), "{words}");
}

#[test]
fn a_relay_takes_capacity_paths_and_cross_traffic() {
    let target = socket();
    let forward = format!("127.0.0.1:0={}", target.local_addr().unwrap());
    let parallel = "delay 1ms rate 50mbit queue 100kB";
    let arguments = [
        "relay",
        "--forward",
        &forward,
        "--rtt=2ms",
        "--queue",
        "100 kB",
        "--capacity",
        "cloud",
        "--parallel",
        parallel,
        "--cross",
        "cubic",
        "--control",
    ];
    let mut child = wan_sim(&arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = json(&mut lines);
    let listener: SocketAddr = ready["listen"][0].as_str().unwrap().parse().unwrap();
    let mut buffer = [0; 2000];
    // One of them may meet a full queue.
    for _ in 0..20 {
        socket().send_to(&[7; 972], listener).unwrap();
    }
    assert_eq!(target.recv_from(&mut buffer).unwrap().0, 972);
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "set rate 1mbit").unwrap();
    let refused = json(&mut lines)["error"].to_string();
    assert!(refused.contains("--parallel"), "{refused}");
    drop(input);
    assert!(child.wait().unwrap().success());
    for (wrong, part) in [
        (&["--rtt=2ms", "--rate=1 Gbit/s", "--capacity", "cloud"][..], "--rate"),
        (&["--netem", "delay 1ms", "--capacity", "cloud"], "rate"),
        (&["--netem", "delay 1ms", "--cross", "cubic"], "rate"),
        (&["--rtt=2ms", "--capacity", "lte"], "cellular"),
        (&["--rtt=2ms", "--rate=1 Gbit/s", "--cross", "vegas"], "vegas"),
    ] {
        let output = run(&[&["relay", "--forward", &forward][..], wrong].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(64) && error.contains(part), "{wrong:?}: {error}");
    }
}

/// Returns the two ends of a terminal: of the one who looks at it, and of a program.
fn terminal() -> (OwnedFd, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (master, slave)
}

/// The terminal takes nothing, as after Ctrl-S: the relay misses progress lines, and nothing else.
#[test]
fn a_stopped_terminal_delays_no_relay() {
    use rustix::fs::{OFlags, fcntl_setfl};
    let (_master, slave) = terminal();
    fcntl_setfl(&slave, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&slave, b"x").is_ok() {}
    fcntl_setfl(&slave, OFlags::RDWR).unwrap();
    let target = socket();
    let forward = format!("127.0.0.1:0={}", target.local_addr().unwrap());
    let arguments = ["relay", "--control", "--rtt=2ms", "--rate=1Gbit/s", "--forward", &forward];
    let mut child = wan_sim(&arguments).stderr(slave).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(json(&mut lines)["ready"], true);
    let mut input = child.stdin.take().unwrap();
    // Twice as long as it takes to the first progress line.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        writeln!(input, "counters").unwrap();
        assert!(json(&mut lines)["client_target"].is_object());
    }
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Standard error is a terminal, and says so by its progress line.
#[test]
fn a_terminal_sees_rate_queue_and_drops() {
    let (master, slave) = terminal();
    let target = socket();
    let forward = format!("127.0.0.1:0={}", target.local_addr().unwrap());
    let arguments = ["relay", "--control", "--rtt=2ms", "--rate=1Gbit/s", "--forward", &forward];
    let mut child = wan_sim(&arguments).stderr(slave).spawn().unwrap();
    let mut said = String::new();
    while !said.contains("client>target") || !said.contains("target>client") {
        let mut bytes = [0; 500];
        let taken = rustix::io::read(&master, &mut bytes).unwrap();
        said += &String::from_utf8_lossy(&bytes[..taken]);
    }
    assert!(said.contains("bit/s, queue ") && said.contains("drops 0"), "{said}");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Checked by flag, in netem's words and in a file: an unknown word, a negative rate, loss above
/// 100 %, a number without its unit.
#[test]
fn a_bad_spec_gets_one_line_with_accepted_words() {
    let relay = ["relay", "--forward", "127.0.0.1:0=127.0.0.1:9"];
    let check = |arguments: &[&str], word: &str, accepted: &str| {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(word) && error.contains(accepted), "{arguments:?}: {error}");
    };
    for (words, word, accepted) in [
        ("delay 1ms teleport 3", "`teleport`", "delay, distribution, loss"),
        ("rate -1gbit", "`-1gbit`", "1gbit"),
        ("loss 101%", "`101%`", "0% to 100%"),
        ("delay 40", "`40`", "ms"),
    ] {
        check(&[&relay[..], &["--netem", words]].concat(), word, accepted);
    }
    for (flags, word, accepted) in [
        (["--rtt=1ms", "--rate=-1 Mbit/s"], "-1 Mbit/s", "500 Mbit/s"),
        (["--rate=1 Gbit/s", "--rtt=80"], "`80`", "80 ms"),
        (["--rate=1 Gbit/s", "--loss=101 %"], "101 %", "0 % to 100 %"),
        (["--rate=1 Gbit/s", "--rtt=0ms"], "`queue`", "20 ms"),
    ] {
        check(&[&relay[..], &flags].concat(), word, accepted);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    for (line, word, accepted) in [
        ("rat = '1 Gbit/s'", "`rat`", "`rate`"),
        ("rate = '-1 Gbit/s'", "`-1 Gbit/s`", "500 Mbit/s"),
        ("loss = '101 %'", "`101 %`", "0 % to 100 %"),
        ("rtt = '80'", "`80`", "80 ms"),
    ] {
        std::fs::write(&file, format!("[site.a]\n[site.b]\n[link.a-b]\n{line}\n")).unwrap();
        let file = file.to_str().unwrap();
        for arguments in [&["show", file][..], &["tc", file], &["lab", "up", file]] {
            check(arguments, word, accepted);
        }
    }
}

#[test]
fn there_is_one_seed() {
    let forward = ["relay", "--forward", "127.0.0.1:0=127.0.0.1:9"];
    for more in [
        &["--seed", "1", "--netem", "delay 1ms seed 1"][..],
        &["--netem", "delay 1ms", "--netem-back", "delay 1ms seed 1"],
    ] {
        let output = run(&[&forward[..], more].concat());
        assert_eq!(output.status.code(), Some(64));
        assert!(String::from_utf8(output.stderr).unwrap().contains("one seed"));
    }
}

#[test]
fn a_taken_address_exits_1() {
    let taken = socket();
    let forward = format!("{}=127.0.0.1:9", taken.local_addr().unwrap());
    let output = run(&["relay", "--forward", &forward, "--rtt", "1ms", "--rate", "1 Gbit/s"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot listen"));
}
