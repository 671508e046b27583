//! Gateways that stop: on SIGTERM, at once, or for a while.

use super::deployment::{BINARY, Deployment};
use gateway::client::{AttachOptions, Client, GatewayAddress};
use gateway::config::RegionFile;
use gateway::observe::fetch_status::fetch_status;
use gateway::observe::status::GatewayReport;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Sends SIGTERM to a process.
fn terminate(process: &Child) {
    kill_process(Pid::from_child(process), Signal::TERM).expect("signalled");
}

/// Returns the status address of the gateway of a region.
fn status_address(deployment: &Deployment, region: &str) -> SocketAddr {
    let file = RegionFile::load(&deployment.path(&format!("{region}.toml"))).expect("valid");
    file.gateway(None).expect("one").status
}

/// The socket stands in for systemd's.
#[test]
fn a_service_manager_hears_of_start_life_and_stop() {
    let mut deployment = super::deployment(1, 1);
    let path = deployment.path("notify");
    let manager = UnixDatagram::bind(&path).expect("free");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("ours");
    let mut binary = Command::new(BINARY);
    binary.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    deployment.run_gateway_by("east", binary);
    let hear = || {
        let mut buffer = [0; 256];
        let bytes = manager.recv(&mut buffer).expect("a message within the timeout");
        String::from_utf8_lossy(&buffer[..bytes]).into_owned()
    };
    assert!(hear().starts_with("READY=1\n"));
    for _ in 0..3 {
        assert_eq!(hear(), "WATCHDOG=1\n");
    }
    terminate(&deployment.gateways[0].process);
    let last = std::iter::repeat_with(hear).find(|message| message != "WATCHDOG=1\n");
    assert!(last.is_some_and(|message| message.starts_with("STOPPING=1\n")));
    assert_eq!(deployment.gateways[0].process.wait().expect("ends").code(), Some(0));
}

/// While a gateway drains, its status lists what it waits for.
#[test]
fn a_draining_gateway_reports_what_it_waits_for() {
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateways();
    let east = status_address(&deployment, "east");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut clients = Vec::new();
        for (rank, region) in [(0, "east"), (1, "west")] {
            let way = GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
            let attach = AttachOptions::new("train", deployment.token("train"), rank, 1 << 20);
            clients.push(Client::attach(&way, attach).await.expect("attaches"));
        }
        let post = async |client: &Client| {
            let tensor = client.allocate(Dtype::F32, 100).expect("room");
            client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted")
        };
        let mut operations = vec![post(&clients[0]).await];
        let posted = |status: &GatewayReport| !status.jobs[0].collectives.is_empty();
        while !posted(&fetch_status(east).expect("a status")) {}
        terminate(&deployment.gateways[0].process);
        let drain = loop {
            let status = fetch_status(east).expect("a status to the end");
            assert_eq!(status.jobs[0].collectives[0].awaited, [1], "{status:?}");
            if let Some(drain) = status.jobs[0].draining.clone() {
                break drain;
            }
        };
        assert_eq!(drain.collectives, [0], "{drain:?}");
        let shown = Command::new(BINARY)
            .args(["status", "--config"])
            .arg(deployment.path("east.toml"))
            .output()
            .expect("runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("waiting for 1 collective"), "{shown}");
        let ready = get(east, "/readyz");
        assert!(ready.contains("503") && ready.contains("shutting down"), "{ready}");
        // The missing rank posts: both get their results, and the gateway ends.
        operations.push(post(&clients[1]).await);
        for operation in &mut operations {
            operation.ready().await.expect("a result");
        }
    });
    let gateway = &mut deployment.gateways[0];
    assert_eq!(gateway.process.wait().expect("ends").code(), Some(0), "{}", gateway.log.text());
}

/// Returns the response of an HTTP server to a GET request.
pub(super) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

/// Slurm, for one, sends SIGUSR1 to all processes of a job ahead of its end.
#[test]
fn signals_without_meaning_end_no_gateway() {
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateway("east");
    let gateway = &mut deployment.gateways[0];
    let pid = Pid::from_child(&gateway.process);
    for (signal, name) in
        [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2"), (Signal::ALARM, "SIGALRM")]
    {
        kill_process(pid, signal).expect("signalled");
        gateway.log.line_with(&format!("{name} means nothing to a gateway"));
    }
    kill_process(pid, Signal::CONT).expect("signalled");
    terminate(&gateway.process);
    assert_eq!(gateway.process.wait().expect("ends").code(), Some(0), "{}", gateway.log.text());
}

/// A launcher that blocks signals for itself leaves them blocked to what it starts.
#[test]
fn signals_that_a_launcher_has_blocked_end_a_gateway() {
    let mut deployment = super::deployment(1, 1);
    let mut launcher = Command::new("env");
    launcher.args(["--block-signal=TERM", "--block-signal=INT", BINARY]);
    deployment.run_gateway_by("east", launcher);
    let gateway = &mut deployment.gateways[0];
    terminate(&gateway.process);
    assert_eq!(gateway.process.wait().expect("ends").code(), Some(0), "{}", gateway.log.text());
}

/// The region file becomes a pipe whose writer falls silent, so that the thread that reads it again
/// blocks. SIGTERM ends the gateway all the same.
#[test]
fn a_stuck_gateway_ends_after_sigterm() {
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateway("east");
    let config = deployment.path("east.toml");
    std::fs::remove_file(&config).expect("its own");
    mkfifoat(CWD, &config, Mode::RUSR | Mode::WUSR).expect("a pipe");
    let gateway = &mut deployment.gateways[0];
    kill_process(Pid::from_child(&gateway.process), Signal::HUP).expect("signalled");
    // A pipe opens for writing once somebody reads it.
    let open = || rustix::fs::open(&config, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
    let silent_writer = loop {
        match open() {
            Ok(writer) => break writer,
            Err(_) => std::thread::yield_now(),
        }
    };
    // A writer that has begun is waited for.
    rustix::io::write(&silent_writer, b"#").expect("a reader");
    terminate(&gateway.process);
    let code = gateway.process.wait().expect("ends").code();
    assert_eq!(code, Some(1), "{}", gateway.log.text());
    gateway.log.line_with("did not stop in time");
}

/// Sends a signal to the gateway with this number, and returns how long the other one takes to lose it, and
/// the line that says so. Nothing is under way.
fn lost_after(deployment: &Deployment, number: usize, signal: Signal) -> (Duration, String) {
    let log = Arc::clone(&deployment.gateways[1 - number].log);
    sleep(Duration::from_millis(1500));
    let process = Pid::from_child(&deployment.gateways[number].process);
    let began = Instant::now();
    kill_process(process, signal).expect("it runs");
    let line = log.line_with(&format!("lane 0 to gateway {} lost:", ["east-0", "west-0"][number]));
    (began.elapsed(), line)
}

/// The first gateway dials, the other one is dialled. A busy machine gets three attempts.
#[test]
fn a_killed_gateway_is_lost_within_a_second() {
    for number in [0, 1] {
        let mut took = Vec::new();
        while took.iter().all(|took| *took > Duration::from_secs(1)) {
            assert!(took.len() < 3, "{took:?}");
            let mut deployment = super::deployment(1, 1);
            deployment.run_gateways();
            let (after, line) = lost_after(&deployment, number, Signal::KILL);
            assert!(line.contains("is closed: its process has ended"), "{line}");
            took.push(after);
        }
    }
}

#[test]
fn a_stopped_gateway_is_lost_after_the_silence_alone() {
    let mut deployment = super::deployment(1, 1);
    let fabric = deployment.path("fabric.toml");
    let text = std::fs::read_to_string(&fabric).expect("a file");
    std::fs::write(&fabric, format!("silence = \"3 s\"\n{text}")).expect("written");
    deployment.run_gateways();
    let (after, line) = lost_after(&deployment, 1, Signal::STOP);
    kill_process(Pid::from_child(&deployment.gateways[1].process), Signal::CONT).expect("it runs");
    assert!(line.contains("silent for 3"), "{line}");
    // The last word of the peer came up to a keep-alive before.
    assert!(after >= Duration::from_millis(1900), "{after:?}");
}
