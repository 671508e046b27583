//! Labs of network namespaces. Without the privilege for them, each test says that it is
//! skipped.
#![expect(clippy::disallowed_types, reason = "programs at the sites use sockets")]
#![expect(clippy::disallowed_methods, reason = "a delay is measured by the clock")]

mod skipping;
mod stopping;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use skipping::skip;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wan_sim::lab::{Lab, LabError, LinkStatus, namespace_name, namespaces};
use wan_sim::recording::{Recorder, replay};
use wan_sim::topology::Topology;

const A: &str = "10.77.0.1";
const B: &str = "10.77.0.2";
const B6: &str = "fd77::2";

fn topology(directory: &Path, link: &str) -> (PathBuf, Topology) {
    let file = directory.join("lab.toml");
    fs::write(&file, format!("[site.a]\n[site.b]\n[site.c]\n[link.a-b]\nnetem = '{link}'\n"))
        .unwrap();
    let topology = Topology::load(&file).unwrap();
    (file, topology)
}

/// A prefix of this test's own.
fn prefix() -> String {
    static LABS: AtomicU32 = AtomicU32::new(0);
    let lab = LABS.fetch_add(1, Ordering::Relaxed);
    format!("wstest-{}-{lab}-", std::process::id())
}

fn start(topology: &Topology, prefix: &str, recorder: Option<Recorder>) -> Option<Lab> {
    match Lab::start(topology, prefix, recorder) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::Unprivileged { .. }) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs `act` at a site.
fn at<T: Send>(prefix: &str, site: &str, act: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{}", namespace_name(prefix, site));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = File::open(path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

fn udp(prefix: &str, site: &str, ip: &str) -> UdpSocket {
    let address = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 7000);
    let socket = at(prefix, site, || UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Takes so many datagrams.
fn receive(socket: &UdpSocket, packets: usize) {
    for _ in 0..packets {
        socket.recv_from(&mut [0; 2000]).unwrap();
    }
}

fn seen(lab: &Lab, from: &str) -> LinkStatus {
    lab.status().into_iter().find(|link| link.from.as_deref() == Some(from)).unwrap()
}

#[test]
fn datagrams_take_their_delay_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (_, topology) = topology(directory.path(), "delay 15ms");
    let prefix = prefix();
    let Some(lab) = start(&topology, &prefix, None) else {
        return;
    };
    for (a_ip, b_ip, headers) in [(A, B, 28), ("fd77::1", B6, 48)] {
        let (a, b) = (udp(&prefix, "a", a_ip), udp(&prefix, "b", b_ip));
        let before = seen(&lab, "a").counters;
        let mut buffer = [0; 2000];
        for round in 0..5u8 {
            let sent = Instant::now();
            a.send_to(&[round; 1000], b.local_addr().unwrap()).unwrap();
            assert_eq!(b.recv_from(&mut buffer).unwrap(), (1000, a.local_addr().unwrap()));
            assert_eq!(buffer[..1000], [round; 1000]);
            assert!(sent.elapsed() >= Duration::from_millis(15), "{:?}", sent.elapsed());
        }
        let now = seen(&lab, "a").counters;
        // Neighbours need not be discovered on such a device, so nothing else is sent.
        assert_eq!(now.packets - before.packets, 5);
        assert_eq!(now.ip_bytes - before.ip_bytes, 5 * (1000 + headers));
    }
    // Where no link leads, packets vanish and are counted.
    let before = lab.unreachable();
    let c = udp(&prefix, "c", "10.77.0.3");
    c.send_to(b"lost", (A, 7000)).unwrap();
    while lab.unreachable() == before {
        std::thread::yield_now();
    }
    lab.stop().unwrap();
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
}

#[test]
fn a_stream_survives_all_impairments_and_its_recording_replays() {
    let directory = tempfile::tempdir().unwrap();
    let words = "delay 2ms 1ms order free loss 0.3% corrupt 0.3% duplicate 0.3% reorder 0.3% \
                 rate 1gbit queue 2MB mark-above 50kB";
    let (_, topology) = topology(directory.path(), words);
    let prefix = prefix();
    let recording = directory.path().join("recording");
    let file = BufWriter::new(File::create(&recording).unwrap());
    let Some(lab) = start(&topology, &prefix, Some(Recorder::new(Box::new(file)))) else {
        return;
    };
    for ip in [B, B6] {
        let listener = at(&prefix, "b", || TcpListener::bind((ip, 7001)).unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut data = Vec::new();
                stream.read_to_end(&mut data).unwrap();
                data
            });
            let mut sender = at(&prefix, "a", || TcpStream::connect(address).unwrap());
            let data: Vec<u8> = (0..20_000_000u32).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
            sender.write_all(&data).unwrap();
            drop(sender);
            assert!(receiver.join().unwrap() == data, "the stream differs");
        });
    }
    let counters = seen(&lab, "a").counters;
    // Two streams of 13,700 full segments; losses of 0.3 % of them within wide bounds.
    assert!(counters.packets > 27_000, "{counters:?}");
    for count in [counters.drops_loss, counters.corrupted, counters.duplicated] {
        assert!((30..400).contains(&count), "{counters:?}");
    }
    let status = lab.status();
    lab.stop().unwrap();
    let recording = fs::read_to_string(recording).unwrap();
    // Segments of one buffer enter at one time, and some of them are lost by themselves.
    let packets: Vec<(&str, bool)> = recording
        .lines()
        .filter_map(|line| line.strip_prefix("0 ")?.split_once(' '))
        .map(|(time, rest)| (time, rest.contains("drop:loss")))
        .collect();
    let apart = packets.windows(2).filter(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1);
    assert!(apart.count() > 20);
    let replayed = replay(recording.as_bytes()).unwrap();
    assert_eq!(replayed.links.len(), 2);
    for link in &status {
        let name = [link.from.as_deref().unwrap(), link.to.as_deref().unwrap()].join("_");
        let (_, counters) = replayed.links.iter().find(|(known, _)| *known == name).unwrap();
        // Acknowledgements may still have come after the status.
        assert!(counters.packets >= link.counters.packets, "{name}");
        assert!(counters.drops_loss >= link.counters.drops_loss, "{name}");
    }
}

#[test]
fn links_share_their_sites_port_and_recordings_replay() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lab.toml");
    let text = "[site.a]\n[site.b]\n\
                [site.c]\negress = '20 Mbit/s'\ningress = '20 Mbit/s'\nport_queue = '1 MB'\n\
                [link.a-c]\ndelay = '1 ms'\n[link.b-c]\ndelay = '2 ms'\n";
    fs::write(&file, text).unwrap();
    let topology = Topology::load(&file).unwrap();
    let prefix = prefix();
    let recording = directory.path().join("recording");
    let out = BufWriter::new(File::create(&recording).unwrap());
    let Some(lab) = start(&topology, &prefix, Some(Recorder::new(Box::new(out)))) else {
        return;
    };
    let c_ip = "10.77.0.3";
    let (a, b) = (udp(&prefix, "a", A), udp(&prefix, "b", B));
    let c = udp(&prefix, "c", c_ip);
    // 100 packets of 1,250 bytes, half of them from each: 50 ms of the port alone.
    let began = Instant::now();
    for _ in 0..50 {
        a.send_to(&[1; 1222], (c_ip, 7000)).unwrap();
        b.send_to(&[2; 1222], (c_ip, 7000)).unwrap();
    }
    receive(&c, 100);
    assert!(began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
    let began = Instant::now();
    for _ in 0..50 {
        c.send_to(&[1; 1222], (A, 7000)).unwrap();
        c.send_to(&[2; 1222], (B, 7000)).unwrap();
    }
    receive(&b, 50);
    receive(&a, 50);
    assert!(began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
    let ports: Vec<_> =
        lab.status().into_iter().filter(|s| s.from.is_none() || s.to.is_none()).collect();
    assert_eq!(ports.len(), 2);
    assert!(ports.iter().all(|port| port.counters.packets == 100), "{ports:?}");
    lab.stop().unwrap();
    let replayed = replay(fs::read(recording).unwrap().as_slice()).unwrap();
    let seen = |name: &str| replayed.links.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!((seen("c_egress").packets, seen("c_ingress").packets), (100, 100));
}

fn wan_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wan-sim")).args(arguments).output().unwrap()
}

/// Brings a lab up in the background; prints a skip and returns `None` without the privilege.
fn up(file: &str) -> Option<()> {
    let output = wan_sim(&["lab", "up", file]);
    if output.status.code() == Some(77) {
        skip(String::from_utf8_lossy(&output.stderr));
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"ready: a, b, c\n");
    Some(())
}

fn pid_and_prefix(file: &Path) -> (Pid, String) {
    // The folder is named after a hash of the path, as the namespaces are.
    let id = fs::read_dir("/run/wan-sim").unwrap().flatten().find_map(|entry| {
        let pid = fs::read_to_string(entry.path().join("pid")).ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8(command).ok()?;
        let id = entry.file_name().into_string().ok()?;
        command.contains(file.to_str()?).then_some((pid, id))
    });
    let (pid, id) = id.unwrap();
    (Pid::from_raw(pid.parse().unwrap()).unwrap(), format!("wansim-{id}-"))
}

#[test]
fn a_lab_runs_programs_and_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (_, prefix) = pid_and_prefix(&path);
    assert_eq!(namespaces(&prefix).len(), 3);
    assert_eq!(wan_sim(&["lab", "up", file]).status.code(), Some(1));
    let hosts = wan_sim(&["lab", "exec", file, "b", "--", "cat", "/etc/hosts"]);
    assert!(String::from_utf8(hosts.stdout).unwrap().contains("10.77.0.1 a"));
    let failing = wan_sim(&["lab", "exec", file, "b", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failing.status.code(), Some(7));
    assert_eq!(wan_sim(&["lab", "exec", file, "d", "--", "true"]).status.code(), Some(64));
    let status = wan_sim(&["lab", "status", file]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["links"].as_array().unwrap().len(), 2);

    let down = wan_sim(&["lab", "down", file]);
    assert_eq!(down.status.code(), Some(0));
    assert!(String::from_utf8(down.stdout).unwrap().starts_with("fidelity: "));
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(wan_sim(&["lab", "status", file]).status.code(), Some(1));
    assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
}

#[test]
fn a_lab_that_ended_by_itself_leaves_its_report() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    for json in [false, true] {
        if up(file).is_none() {
            return;
        }
        // The lab may end it before it ends by itself.
        wan_sim(&["lab", "exec", file, "a", "--", "ip", "link", "del", "wan0"]);
        while wan_sim(&["lab", "status", file]).status.success() {
            std::thread::yield_now();
        }
        let words = ["lab", "down", file, "--json"];
        let down = wan_sim(&words[..if json { 4 } else { 3 }]);
        let said = String::from_utf8(down.stdout).unwrap();
        if json {
            let report: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(report["fidelity"]["void"].is_array(), "{said}");
        } else {
            assert!(said.contains("fidelity: ") && said.contains("wan-sim lab: "), "{said}");
        }
        assert_eq!(wan_sim(&["lab", "status", file]).status.code(), Some(1));
    }
}

#[test]
fn a_lab_in_the_foreground_prints_its_report_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    command.args(["lab", "up", file, "--foreground", "--json"]);
    let mut lab = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
    let Some(ready) = lines.next() else {
        assert_eq!(lab.wait().unwrap().code(), Some(77));
        return skip("cannot make a lab");
    };
    assert_eq!(ready.unwrap(), "ready: a, b, c");
    kill_process(Pid::from_child(&lab), Signal::INT).unwrap();
    let report: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(report["fidelity"]["deliveries"].is_u64(), "{report}");
    assert_eq!(lab.wait().unwrap().code(), Some(130));
}

#[test]
fn ping_and_iperf3_run_as_they_are() {
    for program in ["ping", "iperf3"] {
        if Command::new(program).arg("--help").output().is_err() {
            skip(format!("{program} is not installed: apt-get install iputils-ping iperf3"));
            return;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 5ms rate 1gbit queue 1bdp");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let exec = |site, words: &str| {
        let arguments: Vec<_> = words.split(' ').collect();
        wan_sim(&[&["lab", "exec", file, site, "--"], &arguments[..]].concat())
    };
    let ping = String::from_utf8(exec("a", "ping -c 3 -i 0.2 b").stdout).unwrap();
    assert!(ping.contains("3 received"), "{ping}");
    // rtt min/avg/max/mdev = 10.1/...
    let least = ping.split(" = ").last().and_then(|values| values.split('/').next());
    assert!(least.and_then(|ms| ms.parse::<f64>().ok()).is_some_and(|ms| ms >= 10.0), "{ping}");
    let mut server = Command::new(env!("CARGO_BIN_EXE_wan-sim"))
        .args(["lab", "exec", file, "b", "--", "iperf3", "-s", "-1", "--forceflush"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("listening") {}
    let client = exec("a", "iperf3 -c b -t 1 -J");
    let report: serde_json::Value = serde_json::from_slice(&client.stdout).unwrap();
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 4_000_000, "{report}");
    lines.for_each(drop);
    assert!(server.wait().unwrap().success());
    let down = wan_sim(&["lab", "down", file]);
    assert_eq!(down.status.code(), Some(0));
}

#[test]
fn a_foreground_lab_can_be_taken_down_from_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    for words in [&["lab", "down", file][..], &["lab", "down", file, "--json"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
        command.args(["lab", "up", file, "--foreground"]);
        let mut lab = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
        if lines.next().is_none() {
            assert_eq!(lab.wait().unwrap().code(), Some(77));
            return skip("cannot make a lab");
        }
        let down = wan_sim(words);
        assert_eq!(down.status.code(), Some(0), "{words:?}: {down:?}");
        assert_eq!(lab.wait().unwrap().code(), Some(130));
        let mut said = String::new();
        lab.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("fidelity: "), "{said}");
    }
}

#[test]
fn remains_of_a_killed_lab_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (pid, prefix) = pid_and_prefix(&path);
    kill_process(pid, Signal::KILL).unwrap();
    // The system lets go of its lock when it has ended.
    while wan_sim(&["lab", "status", file]).status.code() == Some(0) {
        std::thread::yield_now();
    }
    assert_eq!(namespaces(&prefix).len(), 3);
    // Not while there is no `ip`.
    let mut down = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    let down = down.args(["lab", "down", file]).env("PATH", "").output().unwrap();
    assert_eq!(down.status.code(), Some(77));
    assert!(down.stdout.is_empty(), "{down:?}");
    assert!(String::from_utf8(down.stderr).unwrap().contains(&format!("{prefix}c: run as root")));
    assert_eq!(namespaces(&prefix).len(), 3);
    let down = wan_sim(&["lab", "down", file]);
    assert_eq!(down.status.code(), Some(0));
    let said = String::from_utf8(down.stdout).unwrap();
    assert_eq!(said.matches("left behind").count(), 3, "{said}");
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert!(!Path::new("/etc/netns").join(format!("{prefix}a")).exists());
}

/// Stops a lab while datagrams are sent; returns its last report.
fn starved(packets: usize) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms limit none");
    let file = path.to_str().unwrap();
    up(file)?;
    let (pid, prefix) = pid_and_prefix(&path);
    let (a, b) = (udp(&prefix, "a", A), udp(&prefix, "b", B));
    let mut buffer = [0; 9];
    a.send_to(b"good", b.local_addr().unwrap()).unwrap();
    b.recv_from(&mut buffer).unwrap();
    stopping::stop(pid);
    for _ in 0..packets {
        a.send_to(b"late", b.local_addr().unwrap()).unwrap();
    }
    b.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(b.recv_from(&mut buffer).is_err(), "a stopped lab delivered");
    kill_process(pid, Signal::CONT).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    b.recv_from(&mut buffer).unwrap();
    let down = String::from_utf8(wan_sim(&["lab", "down", file]).stdout).unwrap();
    assert!(down.contains("VOID: "), "{down}");
    Some(down)
}

#[test]
fn a_starved_lab_says_that_the_run_is_void() {
    let Some(down) = starved(1) else { return };
    assert!(down.contains("reads came more than"), "{down}");
    // More than the device holds while nobody reads.
    let Some(down) = starved(10_100) else { return };
    assert!(down.contains("the emulator itself lost"), "{down}");
}

/// Few deliveries are late, as there are many others.
#[test]
fn a_lab_stopped_under_traffic_reports_a_void_run() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms limit none");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (pid, prefix) = pid_and_prefix(&path);
    let (a, b) = (udp(&prefix, "a", A), udp(&prefix, "b", B));
    let round = || {
        (0..100).for_each(|_| assert_eq!(a.send_to(b"traffic", (B, 7000)).unwrap(), 7));
        receive(&b, 100);
    };
    (0..100).for_each(|_| round());
    stopping::stop(pid);
    a.send_to(b"late", b.local_addr().unwrap()).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // A read may end before its time.
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(1) {
        assert!(b.recv_from(&mut [0; 9]).is_err(), "a stopped lab delivered");
    }
    kill_process(pid, Signal::CONT).unwrap();
    b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    receive(&b, 1);
    (0..100).for_each(|_| round());
    let down = String::from_utf8(wan_sim(&["lab", "down", file]).stdout).unwrap();
    assert!(down.contains("VOID: ") && down.contains("it stood still for"), "{down}");
}

#[test]
fn a_lab_outlives_its_file_and_ends_its_programs() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (_, prefix) = pid_and_prefix(&path);
    // One that ends when told, one that does not; the shell says when it listens no more.
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let mut programs: Vec<_> = [("a", "echo ready; exec sleep 1000"), ("b", stubborn)]
        .into_iter()
        .map(|(site, script)| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
            command.args(["lab", "exec", file, site, "--", "sh", "-c", script]);
            let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            program
        })
        .collect();
    fs::remove_dir_all(directory.path()).unwrap();
    let down = wan_sim(&["lab", "down", file, "--json"]);
    assert_eq!(down.status.code(), Some(0), "{down:?}");
    let report: serde_json::Value = serde_json::from_slice(&down.stdout).unwrap();
    assert!(report["fidelity"]["void"].is_array(), "{report}");
    assert_eq!(report["links"][0]["drops_script"], 0, "{report}");
    for program in &mut programs {
        assert!(!program.wait().unwrap().success());
    }
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    let again = wan_sim(&["lab", "down", file]);
    assert_eq!(again.status.code(), Some(64));
    assert!(String::from_utf8(again.stderr).unwrap().contains("there is no file"));
}

#[test]
fn one_of_several_concurrent_labs_comes_up() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    let all: Vec<_> = std::thread::scope(|scope| {
        let ups: Vec<_> = (0..4).map(|_| scope.spawn(|| wan_sim(&["lab", "up", file]))).collect();
        ups.into_iter().map(|up| up.join().unwrap()).collect()
    });
    if all.iter().any(|output| output.status.code() == Some(77)) {
        skip(String::from_utf8_lossy(&all[0].stderr));
        return;
    }
    let up = all.iter().filter(|output| output.status.success()).count();
    let refused = all.iter().filter(|output| output.status.code() == Some(1));
    assert!(up == 1 && refused.count() == 3, "{all:?}");
    assert_eq!(wan_sim(&["lab", "status", file]).status.code(), Some(0));
    let down = String::from_utf8(wan_sim(&["lab", "down", file]).stdout).unwrap();
    assert!(down.starts_with("fidelity: "), "{down}");
}

#[test]
fn a_lab_killed_at_startup_leaves_nothing_for_long() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (_, prefix) = pid_and_prefix(&path);
    assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
    // After none, some and all of the namespaces are there, several times each.
    for made in [0, 1, 2, 3].repeat(4) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
        command.args(["lab", "up", file, "--foreground"]);
        let mut lab = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while namespaces(&prefix).len() < made {
            assert!(lab.try_wait().unwrap().is_none(), "it ended by itself");
        }
        lab.kill().unwrap();
        lab.wait().unwrap();
        assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
        assert_eq!(namespaces(&prefix), Vec::<String>::new(), "after {made}");
        let etc = fs::read_dir("/etc/netns").into_iter().flatten().flatten();
        let left = etc.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
        assert_eq!(left.count(), 0, "after {made}");
    }
}

#[test]
fn without_privilege_every_command_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    // Where others may read it.
    let program = directory.path().join("wan-sim");
    fs::copy(env!("CARGO_BIN_EXE_wan-sim"), &program).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    if up(file).is_none() {
        return;
    }
    let commands = [
        vec!["lab", "up", file, "--foreground"],
        vec!["lab", "exec", file, "a", "--", "true"],
        vec!["lab", "down", file],
    ];
    for command in commands {
        let output = Command::new(&program).args(&command).uid(65_534).gid(65_534).output();
        let output = output.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(77), "{command:?}: {error}");
        assert!(error.contains("run as root") && error.lines().count() == 1, "{error}");
    }
    let mut exec = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    exec.args(["lab", "exec", file, "a", "--", "true"]).env("PATH", "/nonexistent");
    let output = exec.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(77), "{error}");
    assert!(error.contains("iproute2") && error.lines().count() == 1, "{error}");
    assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
}
