//! Warnings of several causes at once, of a gateway that runs.

use super::deployment::{BINARY, Deployment, Layout, Team};
use super::{east_status, get, json};
use gateway::client::{AttachOptions, Client, GatewayAddress};
use gateway::local::protocol::Token;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::process::Command;

const LAYOUT: Layout<'static> = Layout::of(1, 1);
/// Each cause comes so often.
const TIMES: u64 = 3;

/// The gateway of east, as its status address and process show it.
struct WarnedGateway {
    status: SocketAddr,
    pid: Pid,
}

impl WarnedGateway {
    /// Returns how many lines of a cause the gateway has counted.
    fn warnings(&self, cause: &str) -> u64 {
        let (_, metrics) = get(self.status, "/metrics", "");
        let name = format!("landbridge_warnings_total{{cause=\"{cause}\"}} ");
        let count = metrics.lines().find_map(|line| line.strip_prefix(&name));
        count.unwrap_or_else(|| panic!("no {name}in:\n{metrics}")).parse().expect("a number")
    }

    /// Waits until the gateway has counted a number of lines of a cause.
    fn await_warnings(&self, cause: &str, count: u64) {
        while self.warnings(cause) < count {
            std::thread::yield_now();
        }
    }

    /// Sends the gateway a SIGHUP.
    fn hang_up(&self) {
        kill_process(self.pid, Signal::HUP).expect("signalled");
    }
}

#[test]
fn each_of_many_causes_warns_once_and_is_counted() {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let team = runtime.block_on(Team::attach(&deployment, &LAYOUT, "train"));
    runtime.block_on(team.sum(&[1, 2], 1000)).expect("a sum");
    let pid = Pid::from_child(&deployment.gateways[0].process);
    let gateway = WarnedGateway { status: east_status(&deployment), pid };
    let before = ["trainer", "socket", "certificate", "files", "epoch"]
        .map(|cause| (cause, gateway.warnings(cause)));
    assert_eq!(before.map(|(_, count)| count), [0; 5], "nothing has happened");

    let (socket, config) = (deployment.path("east.sock"), deployment.path("east.toml"));
    let way = GatewayAddress::Socket(socket.clone());
    let good = std::fs::read_to_string(&config).expect("there");
    std::fs::write(&config, format!("nonsense = 1\n{good}")).expect("written");
    std::fs::write(deployment.path("keys/east-0.pem"), "no PEM").expect("written");
    for times in 1..=TIMES {
        let stranger = AttachOptions::new("train", Token([7; 32]), 0, 1 << 20);
        runtime.block_on(Client::attach(&way, stranger)).expect_err("another token");
        gateway.hang_up();
        std::fs::remove_file(&socket).expect("there");
        for cause in ["socket", "certificate", "files"] {
            gateway.await_warnings(cause, times);
        }
    }
    std::fs::write(&config, good).expect("written");
    // Worse than what it was warned of already.
    let other = UnixListener::bind(deployment.path("other.sock")).expect("free");
    std::fs::rename(deployment.path("other.sock"), &socket).expect("renamed");
    gateway.await_warnings("socket", TIMES + 1);
    let west = &mut deployment.gateways[1].process;
    west.kill().and_then(|()| west.wait()).expect("ends");
    gateway.await_warnings("epoch", 1);

    let lines = [
        "a trainer was refused: ",
        "east.sock was deleted, and is made again",
        "trainers cannot attach: ",
        "certificates cannot be used, and those read before stay: ",
        "jobs were not read again: ",
        "job train: epoch 1 ended: ",
    ];
    for line in lines {
        // A line is counted before it reaches the log.
        deployment.gateways[0].log.line_with(line);
        let log = deployment.gateways[0].log.text();
        let found: Vec<&str> = log.lines().filter(|found| found.contains(line)).collect();
        let warned = found.iter().filter(|found| found.contains("WARN")).count();
        assert_eq!(warned, 1, "{line}: {found:#?}");
        assert!(found[0].contains("WARN"), "the first of {found:#?}");
    }
    for (cause, count) in [("socket", TIMES + 1), ("certificate", TIMES), ("files", TIMES)] {
        assert_eq!(gateway.warnings(cause), count, "{cause}");
    }
    assert!(gateway.warnings("trainer") >= 1);

    let status = Command::new(BINARY).args(["status", "--json", "--config"]).arg(&config).output();
    let status = json(&status.expect("runs"));
    drop(other);
    assert!(status["jobs"][0]["epoch"].is_null(), "the peer is gone: {status}");
}

#[test]
fn an_ordinary_stop_of_a_peer_warns_nobody() {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let team = runtime.block_on(Team::attach(&deployment, &LAYOUT, "train"));
    runtime.block_on(team.sum(&[1, 2], 1000)).expect("a sum");
    drop(team);
    let west = Pid::from_child(&deployment.gateways[1].process);
    kill_process(west, Signal::TERM).expect("signalled");
    for gateway in &deployment.gateways {
        let line = gateway.log.line_with("job train: epoch 1 ended: ");
        let logs: Vec<String> = deployment.gateways.iter().map(|one| one.log.text()).collect();
        assert!(line.contains("INFO"), "{line}\nlogs: {}", logs.join("\n--\n"));
    }
}
