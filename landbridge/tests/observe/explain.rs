//! `landbridge dump` and `landbridge explain` at gateways with a fault each.

use super::deployment::{BINARY, Deployment, RunningGateway, Team};
use super::schema::Schema;
use super::{LAYOUT, east_status, json, running};
use gateway::client::{AttachOptions, Client, GatewayAddress};
use gateway::config::RegionFile;
use gateway::observe::fetch_status::fetch_status;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Twice the idle timeout of lanes on a link of a few milliseconds: when the lanes of a gateway that
/// ended are down at its peers at the latest.
const LANES_END_WITHIN: Duration = Duration::from_secs(30);

/// Dumps both regions, and returns what `explain` prints of the dump with one more flag.
fn explain(deployment: &Deployment, flag: &str) -> Output {
    let out = deployment.path("dump.json");
    let [east, west] = ["east.toml", "west.toml"].map(|name| deployment.path(name));
    let mut dump = Command::new(BINARY);
    dump.arg("dump").arg("--config").arg(east).arg("--config").arg(west).arg("--out").arg(&out);
    assert!(dump.status().expect("runs").success());
    let text = std::fs::read(&out).expect("written");
    Schema::load("commands/dump.json").assert_valid(&serde_json::from_slice(&text).expect("JSON"));
    let mut explain = Command::new(BINARY);
    explain.arg("explain").arg(out).args((!flag.is_empty()).then_some(flag));
    explain.output().expect("runs")
}

/// Returns the first cause of the dump of both regions, and asserts that the exit code tells of it.
fn first_cause(deployment: &Deployment) -> Value {
    let output = explain(deployment, "--json");
    let explanation = json(&output);
    Schema::load("commands/explain.json").assert_valid(&explanation);
    assert_eq!(output.status.code(), Some(1), "{explanation}");
    explanation["causes"][0].clone()
}

#[test]
fn gateways_without_a_fault_have_no_cause() {
    let deployment = running();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // It returns once the gateways have met.
    let team = runtime.block_on(Team::attach(&deployment, &LAYOUT, "train"));
    let output = explain(&deployment, "");
    drop(team);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("Nothing is wrong"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_awaited_rank_and_contradicting_posts_are_named() {
    let deployment = running();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[1, 20, 300], 1000).await.expect("a sum");
        // Rank 2 does not post.
        let posted = team.sum(&[1, 20], 1000);
        tokio::time::timeout(Duration::from_millis(1500), posted).await.expect_err("waits");
        let cause = first_cause(&deployment);
        assert_eq!(cause["culprit"], "rank 2 (west)", "{cause}");
        assert_eq!(cause["kind"], "rank", "{cause}");
        drop(team);
    });
    post_different_sizes(&deployment);
    let cause = first_cause(&deployment);
    assert_eq!(cause["kind"], "script", "{cause}");
}

/// Attaches the ranks of a deployment, of which the last leaves out the second of two all-reduces, and writes
/// the dumps of all of them. Returns the files.
async fn dumps_of_ranks_of_which_one_waits(deployment: &Deployment) -> Vec<PathBuf> {
    let mut clients = Vec::new();
    for rank in 0..LAYOUT.east + LAYOUT.west {
        let region = if rank < LAYOUT.east { "east" } else { "west" };
        let way = GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
        let attach = AttachOptions::new("train", deployment.token("train"), rank, 1 << 20);
        clients.push(Client::attach(&way, attach).await.expect("attaches"));
    }
    let post = async |client: &Client| {
        let tensor = client.allocate(Dtype::F32, 100).expect("room");
        client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted")
    };
    let mut first = Vec::new();
    for client in &clients {
        first.push(post(client).await);
    }
    for operation in &mut first {
        operation.ready().await.expect("a sum");
    }
    let mut alone = [post(&clients[0]).await, post(&clients[1]).await];
    tokio::time::timeout(Duration::from_millis(1500), alone[0].ready()).await.expect_err("waits");
    let dump = |client: &Client| {
        let path = deployment.path(&format!("rank-{}.json", client.rank()));
        client.dump(&path).expect("written");
        path
    };
    clients.iter().map(dump).collect()
}

#[test]
fn dumps_of_ranks_fit_their_schema_and_are_explained() {
    let deployment = running();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dumps = runtime.block_on(dumps_of_ranks_of_which_one_waits(&deployment));
    for dump in &dumps {
        let text = std::fs::read(dump).expect("written");
        Schema::load("client/dump.json")
            .assert_valid(&serde_json::from_slice(&text).expect("JSON"));
    }
    let explain = |more: &[PathBuf]| {
        let mut explain = Command::new(BINARY);
        let output = explain.arg("explain").arg("--json").args(&dumps).args(more).output();
        let explanation = json(&output.expect("runs"));
        Schema::load("commands/explain.json").assert_valid(&explanation);
        explanation["causes"][0].clone()
    };
    let cause = explain(&[]);
    assert_eq!((&cause["kind"], &cause["culprit"]), (&"rank".into(), &"rank 2".into()), "{cause}");
    let found = cause["found"].as_str().expect("text");
    assert!(found.contains("by its own dump nothing was under way"), "{found}");
    // The gateways know the region.
    let out = deployment.path("dump.json");
    let mut dump = Command::new(BINARY);
    dump.arg("dump").arg("--config").arg(deployment.path("east.toml")).arg("--out").arg(&out);
    assert!(dump.status().expect("runs").success());
    assert_eq!(explain(&[out])["culprit"], "rank 2 (west)");
}

/// Lets all ranks post once, rank 2 another size than the others, which fails.
pub(super) fn post_different_sizes(deployment: &Deployment) {
    let rank = |rank: u32, size: &str| {
        let region = if rank < LAYOUT.east { "east" } else { "west" };
        let mut line = Command::new(BINARY);
        line.args(["bench", "all-reduce", "--iterations", "1", "--size", size])
            .args(["--rank", &rank.to_string(), "--config"])
            .arg(deployment.path(&format!("{region}.toml")));
        line.spawn().expect("starts")
    };
    for mut process in [rank(0, "8 KiB"), rank(1, "8 KiB"), rank(2, "16 KiB")] {
        assert!(!process.wait().expect("ends").success());
    }
}

/// Returns the dumps in a folder, once there is one of each gateway.
fn dumps_of_both_gateways(folder: &Path) -> Vec<PathBuf> {
    let start = Instant::now();
    loop {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        let is_dump = |file: &&PathBuf| file.extension().is_some_and(|kind| kind == "json");
        if files.iter().filter(is_dump).count() == 2 {
            return files;
        }
        assert!(start.elapsed() < LANES_END_WITHIN, "{files:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_failure_is_explained_by_the_gateways_own_dumps() {
    let mut deployment = Deployment::new(&LAYOUT);
    for region in ["east", "west"] {
        let path = deployment.path(&format!("{region}.toml"));
        let text = std::fs::read_to_string(&path).expect("a region file");
        let text = text.replacen("status =", "dumps = \"dumps\"\nstatus =", 1);
        std::fs::write(&path, text).expect("written");
    }
    deployment.run_gateways();
    post_different_sizes(&deployment);
    let files = dumps_of_both_gateways(&deployment.path("dumps"));
    let region = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    let token = std::fs::read_to_string(&region.jobs().next().expect("a job").token);
    let token = token.expect("a token").trim().to_owned();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a dump");
        Schema::load("commands/dump.json")
            .assert_valid(&serde_json::from_str(&text).expect("JSON"));
        assert!(!text.contains(&token), "no secret is in a dump");
    }
    let output = Command::new(BINARY).arg("explain").args(&files).arg("--json").output();
    let explanation = json(&output.expect("runs"));
    assert_eq!(explanation["causes"][0]["kind"], "script", "{explanation}");
}

#[test]
fn a_stopped_and_a_killed_gateway_are_told_apart() {
    let mut deployment = running();
    let west = &deployment.gateways[1];
    let pid = Pid::from_child(&west.process);
    kill_process(pid, Signal::STOP).expect("stopped");
    let cause = first_cause(&deployment);
    assert_eq!(cause["culprit"], "gateway west-0 (west)", "{cause}");
    // The other gateway hears it for some seconds after its stop.
    let stopped =
        |found: &str| found.contains("does not answer") || found.contains("gives no status");
    assert!(cause["found"].as_str().is_some_and(stopped), "{cause}");
    kill_process(pid, Signal::KILL).expect("killed");
    deployment.gateways[1].process.wait().expect("ends");
    // The other gateway takes its lanes for up until the kernel or their idle timeout says no.
    let start = Instant::now();
    let mut cause = first_cause(&deployment);
    while cause["found"].as_str().is_some_and(|found| found.starts_with("others reached it")) {
        assert!(start.elapsed() < LANES_END_WITHIN, "{cause}");
        thread::sleep(Duration::from_millis(200));
        cause = first_cause(&deployment);
    }
    let found = cause["found"].as_str().expect("a text");
    assert!(found.starts_with("it does not run"), "{cause}");
}

/// The gateway of east logs to a disk that is full.
#[test]
fn a_full_disk_is_named_by_its_gateway() {
    let mut deployment = Deployment::new(&LAYOUT);
    let full = File::options().write(true).open("/dev/full").expect("a device");
    let mut east = Command::new(BINARY);
    east.args(["run", "--config"]).arg(deployment.path("east.toml")).stderr(full);
    let process = east.spawn().expect("starts");
    deployment.gateways.push(RunningGateway { process, log: Arc::default() });
    deployment.run_gateway("west");
    // The socket of east has to be there before anybody attaches.
    while fetch_status(east_status(&deployment)).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _team = runtime.block_on(Team::attach(&deployment, &LAYOUT, "train"));
    let explanation = json(&explain(&deployment, "--json"));
    let causes = explanation["causes"].as_array().expect("causes");
    assert_eq!(causes.len(), 1, "{explanation}");
    assert_eq!(causes[0]["culprit"], "gateway east-0 (east)", "{explanation}");
    let found = causes[0]["found"].as_str().expect("a text");
    assert!(found.contains("lines of its log were lost"), "{found}");
}

#[test]
fn a_file_that_is_no_dump_is_named() {
    let deployment = Deployment::new(&LAYOUT);
    let file = deployment.path("east.toml");
    let output = Command::new(BINARY).arg("explain").arg(&file).output().expect("runs");
    assert_eq!(output.status.code(), Some(64));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("east.toml: no dump"), "{error}");
}
