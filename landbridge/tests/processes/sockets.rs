//! The socket of a gateway that runs, and the files that it does not start with.

use super::deployment::{BINARY, Deployment};
use super::skipping::skip;
use gateway::access::{TrustedSocketUsers, own_user_account};
use gateway::certs::{CertificateAuthority, CertificateValidity};
use gateway::config::RegionFile;
use gateway::local::trainer_listener::{ConnectError, connect_to_trainer_listener};
use gateway::memory::arena::Arena;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// The number of a user without rights, which owns no file here.
const OTHER_USER: u32 = 65_534;

/// Runs a command on the files of east to its end.
fn command(deployment: &Deployment, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).arg("--config").arg(deployment.path("east.toml"));
    command.output().expect("runs")
}

/// Returns what a command says on stderr.
fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sets the mode of a file.
fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

#[test]
fn run_and_doctor_refuse_the_same_secret_files() {
    let deployment = super::deployment(1, 1);
    for (file, check) in [("east-0.key", "key permissions"), ("train.token", "job token")] {
        let path = deployment.path("keys").join(file);
        set_mode(&path, 0o644);
        let refused = command(&deployment, &["run"]);
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        let text = stderr(&refused);
        assert!(text.contains(file) && text.contains("mode 644"), "{text}");
        assert!(text.contains("chmod 600"), "{text}");
        assert_check_repeats(&deployment, &text);
        let report = command(&deployment, &["doctor", "--json"]).stdout;
        let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
        let findings = report["findings"].as_array().expect("findings");
        let finding = findings.iter().find(|finding| finding["check"] == check).expect("checked");
        assert_eq!(finding["verdict"], "failed", "{finding}");
        set_mode(&path, 0o600);
        let moved = path.with_extension("moved");
        std::fs::rename(&path, &moved).expect("ours");
        assert_check_repeats(&deployment, &stderr(&command(&deployment, &["run"])));
        std::fs::rename(&moved, &path).expect("ours");
    }
    let checked = command_on_file(&deployment, "check");
    assert!(checked.status.success(), "all are good again: {checked:?}");
}

/// Checks that `check` refuses the region file in the words of `run`, and not with `--no-secrets`.
fn assert_check_repeats(deployment: &Deployment, said_by_run: &str) {
    let words = said_by_run.trim().lines().last().unwrap_or_default();
    let words = words.trim_start_matches("landbridge: ").trim_start_matches("error: ");
    let checked = command_on_file(deployment, "check");
    assert_eq!(checked.status.code(), Some(64), "{checked:?}");
    assert!(!words.is_empty() && stderr(&checked).contains(words), "{words}: {checked:?}");
    let file = deployment.path("east.toml");
    let alone = Command::new(BINARY).args(["check", "--no-secrets"]).arg(file).output();
    assert!(alone.expect("runs").status.success());
}

#[test]
fn run_and_doctor_refuse_the_same_certificates() {
    let deployment = super::deployment(1, 1);
    let keys = deployment.path("keys");
    let ca = CertificateAuthority::load(&keys.join("ca.pem"), &keys.join("ca.key")).expect("ours");
    let other = CertificateAuthority::generate("two").expect("a CA");
    for (authority, name, validity, check, code, told) in [
        (&ca, "east-0", CertificateValidity::expired(), "expiry", 1, "has expired"),
        (&ca, "east-0", CertificateValidity::not_yet(), "expiry", 1, "is not valid yet"),
        (&ca, "west-0", CertificateValidity::days(1), "name", 64, "is for `west-0.two.landbridge`"),
        (&other, "east-0", CertificateValidity::days(1), "certificate", 64, "is not trusted by"),
    ] {
        let issued = authority.issue_certificate(name, "two", validity).expect("issued");
        std::fs::write(keys.join("east-0.pem"), issued.certificate_pem).expect("ours");
        std::fs::write(keys.join("east-0.key"), issued.key_pem).expect("ours");
        let refused = command(&deployment, &["run"]);
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(code), "{check}: {text}");
        assert!(text.contains("east-0.pem") && text.contains(told), "{check}: {text}");
        assert_check_repeats(&deployment, &text);
        let report = command(&deployment, &["doctor", "--json"]).stdout;
        let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
        let findings = report["findings"].as_array().expect("findings");
        let finding = findings.iter().find(|finding| finding["check"] == check).expect("checked");
        assert_eq!(finding["verdict"], "failed", "{finding}");
    }
}

/// Returns the findings of doctor that failed.
fn failed_findings(deployment: &Deployment) -> String {
    let report = command(deployment, &["doctor", "--json"]).stdout;
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    let findings = report["findings"].as_array().expect("findings").iter();
    let failed = findings.filter(|finding| finding["verdict"] == "failed");
    failed.map(|finding| format!("{} {}\n", finding["check"], finding["found"])).collect()
}

#[test]
fn doctor_finds_the_limits_by_which_no_gateway_runs() {
    let deployment = super::deployment(1, 1);
    for (limit, subject) in [("ulimit -t 1", "ulimit -t"), ("ulimit -f 0", "ulimit -f")] {
        let under_limit = |command: &str| {
            let file = deployment.path("east.toml").display().to_string();
            let script = format!("{limit}; exec \"$0\" {command} --config {file} | cat");
            let mut shell = Command::new("bash");
            shell.args(["-c", &format!("set -o pipefail; {script}"), BINARY]);
            shell.output().expect("runs")
        };
        let run = under_limit("run");
        assert_eq!(run.status.code(), Some(64), "{run:?}");
        let doctor = under_limit("doctor --json");
        let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
        let findings = report["findings"].as_array().expect("a list");
        let found = findings.iter().find(|finding| finding["subject"] == subject);
        let found = found.unwrap_or_else(|| panic!("{subject}: {report}"));
        assert_eq!(found["verdict"], "failed", "{found}");
    }
}

#[test]
fn run_and_doctor_refuse_the_same_paths_and_addresses() {
    let deployment = super::deployment(1, 1);
    let socket = deployment.path("east.sock");
    let region = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    let gateway = region.gateway(None).expect("one").clone();
    let lanes = region.fabric().lane_addresses(gateway.id).expect("given").clone();
    let refused = |check: &str, code: i32| {
        let run = command(&deployment, &["run"]);
        assert_eq!(run.status.code(), Some(code), "{check}: {run:?}");
        let failed = failed_findings(&deployment);
        assert!(failed.contains(check), "{check}: {failed}, but run says {}", stderr(&run));
    };
    assert!(!failed_findings(&deployment).contains("own addresses"));
    std::fs::write(&socket, "").expect("free");
    refused("local socket", 1);
    std::fs::remove_file(&socket).expect("there");
    let other = UnixListener::bind(&socket).expect("free");
    refused("local socket", 1);
    std::fs::remove_file(&socket).expect("there");
    drop(other);
    let silent = TcpListener::bind(gateway.status).expect("free");
    refused("own addresses", 1);
    drop(silent);
    let first = lanes.first().ip_address().expect("no name");
    let other = UdpSocket::bind(first).expect("free");
    refused("own addresses", 1);
    drop(other);
    deployment.serve_hosts("east", "trainers_ca = \"nothing.pem\"");
    refused("attach address", 64);
    assert_check_repeats(&deployment, &stderr(&command(&deployment, &["run"])));
}

#[test]
fn a_second_gateway_leaves_the_socket_to_the_first() {
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateways();
    let socket = deployment.path("east.sock");
    let inode = || std::fs::symlink_metadata(&socket).expect("there").ino();
    let before = inode();
    let second = command(&deployment, &["run"]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let first = deployment.gateways[0].process.id();
    let text = stderr(&second);
    assert!(text.contains(&format!("another gateway (process {first}) listens at")), "{text}");
    assert_eq!(inode(), before);
    UnixStream::connect(&socket).expect("the first still listens");
}

#[test]
fn a_killed_gateways_socket_is_replaced_a_deleted_one_remade() {
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateways();
    let socket = deployment.path("east.sock");
    deployment.gateways[0].process.kill().expect("runs");
    deployment.gateways[0].process.wait().expect("ends");
    UnixStream::connect(&socket).expect_err("a file without a gateway");
    deployment.run_gateway("east");
    UnixStream::connect(&socket).expect("the new one listens");
    std::fs::remove_file(&socket).expect("there");
    let log = std::sync::Arc::clone(&deployment.gateways[2].log);
    log.line_with("was deleted, and is made again");
    UnixStream::connect(&socket).expect("it listens again");
}

#[test]
fn another_user_hears_whose_the_socket_is() {
    if own_user_account() != 0 {
        return skip("becoming another user needs root");
    }
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateways();
    let socket = deployment.path("east.sock");
    let folder = socket.parent().expect("a folder");
    set_mode(folder, 0o755);
    // The refusal comes first: that the folder is a third user's as well helps nobody.
    chown(folder, Some(OTHER_USER - 1), None).expect("allowed to root");
    let mut rate = Command::new(BINARY);
    rate.args(["rate", "east-west", "10 Mbit/s", "--config"]).arg(deployment.path("east.toml"));
    let denied = match rate.uid(OTHER_USER).gid(OTHER_USER).output() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return skip("another user cannot run the program");
        }
        output => output.expect("runs"),
    };
    let text = stderr(&denied);
    assert_eq!(denied.status.code(), Some(77), "{text}");
    let begin = format!("permission denied: socket {} belongs to user root (0)", socket.display());
    assert!(text.starts_with(&begin), "{text}");
    assert!(text.contains("group root (0), mode 600"), "{text}");
    assert!(!text.contains("is the gateway running?"), "{text}");

    let mut bench = Command::new(BINARY);
    bench.args(["bench", "barrier", "--rank", "0", "--config"]).arg(deployment.path("east.toml"));
    let denied = bench.uid(OTHER_USER).gid(OTHER_USER).output().expect("runs");
    let text = stderr(&denied);
    assert_eq!(denied.status.code(), Some(77), "{text}");
    let end = "train.token: Permission denied (os error 13); run as its owner, root (0), or let a";
    assert!(text.contains(end), "{text}");
}

#[test]
fn a_third_users_process_gets_no_arena() {
    if own_user_account() != 0 {
        return skip("becoming another user needs root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    set_mode(folder.path(), 0o1777);
    let path = folder.path().join("east.sock");
    let bound = path.clone();
    // The kernel notes the user of the thread that listens.
    let listening = std::thread::spawn(move || {
        let (same, other) = (None::<Uid>, Uid::from_raw(OTHER_USER));
        set_thread_res_uid(same, other, same).expect("allowed to root");
        let listener = UnixListener::bind(&bound).expect("free");
        set_mode(&bound, 0o666);
        listener
    });
    let _listener = listening.join().expect("no panic");
    let (_, memory) = Arena::create_memfd(1 << 20).expect("memory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connect = |trusted| runtime.block_on(connect_to_trainer_listener(&path, &memory, trusted));
    let Err(ConnectError::Access(error)) = connect(TrustedSocketUsers::new(None)) else {
        panic!("a third user's process is not refused");
    };
    let text = error.to_string();
    assert!(text.contains("runs as user") && text.contains("no token was sent"), "{text}");
    connect(TrustedSocketUsers::new(Some(OTHER_USER))).expect("the region file names that user");
}

#[test]
fn no_gateway_starts_where_others_could_replace_its_socket() {
    let deployment = super::deployment(1, 1);
    let socket = deployment.path("east.sock");
    let folder = socket.parent().expect("a folder");
    set_mode(folder, 0o777);
    let refused = command(&deployment, &["run"]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    assert!(stderr(&refused).contains("chmod go-w"), "{refused:?}");
    let checked = command_on_file(&deployment, "check");
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && text.contains("WARNING"), "{text}");
    set_mode(folder, 0o700);
}

/// Runs a command that takes the file of east as its argument.
fn command_on_file(deployment: &Deployment, name: &str) -> Output {
    Command::new(BINARY).arg(name).arg(deployment.path("east.toml")).output().expect("runs")
}
