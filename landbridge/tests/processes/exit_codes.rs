//! Every row of docs/exit-codes.md that names no other test.

use super::deployment;
use super::deployment::{BINARY, Deployment};
use gateway::config::RegionFile;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

/// Text of the page.
const PAGE: &str = include_str!("../../../docs/exit-codes.md");

/// Commands for which the page says `all`.
const ALL: [&str; 21] = [
    "quickstart",
    "init",
    "certs",
    "check",
    "config",
    "plan",
    "run",
    "status",
    "rate",
    "leave",
    "join",
    "fabric",
    "trace",
    "doctor",
    "dump",
    "explain",
    "ports",
    "bench",
    "wan-sim",
    "completions",
    "man",
];

/// A row of the page's second table.
struct Row {
    event: &'static str,
    commands: Vec<&'static str>,
    code: i32,
    shown_elsewhere: bool,
}

/// Reads the rows of the second table.
fn rows() -> Vec<Row> {
    let table = PAGE.split("## What gives which").nth(1).expect("the heading");
    let lines = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, event, commands, code, shown_by, _] = cells[..] else { panic!("{line}") };
        let commands = match commands {
            "all" => ALL.to_vec(),
            some => some.split(", ").collect(),
        };
        let code = code.parse().expect("a number");
        Row { event, commands, code, shown_elsewhere: !shown_by.is_empty() }
    };
    lines.map(row).collect()
}

/// Returns a command on the files `east.toml` and `fabric.toml` of a folder.
fn on_files(command: &str, folder: &Path) -> Command {
    let mut line = Command::new(BINARY);
    line.arg(command);
    let region = folder.join("east.toml");
    match command {
        "check" => line.arg(region),
        "rate" => line.args(["east-west", "100 Mbit/s", "--config"]).arg(region),
        "leave" | "join" => line.args(["west", "--config"]).arg(region),
        "fabric" => {
            let fabric = folder.join("fabric.toml");
            line.arg("apply")
                .arg(&fabric)
                .arg("--signature")
                .arg(&fabric)
                .arg("--config")
                .arg(region)
        }
        "bench" => {
            line.args(["all-reduce", "--rank", "0", "--size", "1 KiB", "--config"]).arg(region)
        }
        "plan" => line.arg("--fabric").arg(folder.join("fabric.toml")),
        "certs" => {
            line.arg("--fabric").arg(folder.join("fabric.toml")).arg("--out").arg(folder.join("k"))
        }
        _ => line.arg("--config").arg(region),
    };
    line
}

/// Copies the configs of a deployment, without keys, into a new folder. `fault` is appended to the
/// fabric file.
fn copy_configs(deployment: &Deployment, fault: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["fabric.toml", "east.toml"] {
        let text = std::fs::read_to_string(deployment.path(name)).expect("there");
        let fault = if name == "fabric.toml" { fault } else { "" };
        std::fs::write(folder.path().join(name), text + fault).expect("ours");
    }
    folder
}

/// Runs a command to its end and returns its exit code.
fn code_of(line: &mut Command) -> Option<i32> {
    line.output().expect("runs").status.code()
}

/// Starts the gateway of east, sends it a signal and returns its exit code.
fn code_after(signal: Signal) -> Option<i32> {
    let mut deployment = deployment(1, 1);
    deployment.run_gateway("east");
    let gateway = &mut deployment.gateways[0];
    kill_process(Pid::from_child(&gateway.process), signal).expect("signalled");
    gateway.process.wait().expect("ends").code()
}

/// Sends a signal to a command that reads its first file, and returns its exit code.
fn code_while_reading(command: &str, signal: Signal) -> Option<i32> {
    let folder = tempfile::tempdir().expect("a folder");
    let pipes = ["east.toml", "fabric.toml"].map(|name| folder.path().join(name));
    for pipe in &pipes {
        mkfifoat(CWD, pipe, Mode::RWXU).expect("a pipe");
    }
    let mut process = on_files(command, folder.path()).spawn().expect("starts");
    let read_first = if ["plan", "certs"].contains(&command) { &pipes[1] } else { &pipes[0] };
    // Opens once the command does, and then holds it.
    let held = File::options().write(true).open(read_first).expect("a reader");
    kill_process(Pid::from_child(&process), signal).expect("signalled");
    let code = process.wait().expect("ends").code();
    drop(held);
    code
}

/// Makes an event of the page happen to a command, and returns the exit code. `None` where the page
/// has an event that is not known here.
fn code_of_event(event: &str, command: &str, deployment: &Deployment) -> Option<i32> {
    let folder = deployment.path("");
    let gateway_file = deployment.path("east.toml");
    let region = || RegionFile::load(&gateway_file).expect("valid");
    let on_good_files = || on_files(command, &folder);
    match event {
        "help or the version is asked for" => {
            code_of(Command::new(BINARY).arg(command).arg("--help"))
        }
        "all files are good" => code_of(&mut on_good_files()),
        "an unknown flag, or a flag without its value" => {
            code_of(Command::new(BINARY).arg(command).arg("--no-such-flag"))
        }
        "a config file has a fault" => {
            let faulty = copy_configs(deployment, "\nnonsense = 1\n");
            code_of(&mut on_files(command, faulty.path()))
        }
        "a config file is missing" => code_of(&mut on_files(command, Path::new("nowhere"))),
        "the region file has no such gateway" => {
            code_of(on_good_files().args(["--gateway", "nowhere-0"]))
        }
        "the log filter in the environment is malformed" => {
            code_of(on_good_files().env("LANDBRIDGE_LOG", "debgu"))
        }
        "a certificate or key cannot be used"
        | "a token file cannot be used"
        | "a finding is FAILED" => {
            let without_keys = copy_configs(deployment, "");
            code_of(&mut on_files(command, without_keys.path()))
        }
        "the folder for the files cannot be made" => {
            // A file, where a folder is wanted.
            let fabric = deployment.path("fabric.toml");
            let line = &mut Command::new(BINARY);
            line.arg(command).arg("--out").arg(&fabric);
            code_of(if command == "certs" { line.arg("--fabric").arg(&fabric) } else { line })
        }
        "the disk is full" => code_of(on_good_files().args(["--svg", "/dev/full"])),
        "no gateway answers" => code_of(&mut on_good_files()),
        "the status port is taken" => {
            let address = region().gateway(None).expect("one").status;
            let _taken = TcpListener::bind(address).expect("free");
            code_of(&mut on_good_files())
        }
        "the local socket is taken" => {
            let socket = region().gateway(None).expect("one").socket.clone();
            let _taken = UnixListener::bind(&socket).expect("free");
            let code = code_of(&mut on_good_files());
            std::fs::remove_file(socket).expect("ours");
            code
        }
        "the gateway refuses the rank: its token, its job or its place" => {
            let mut running = self::deployment(1, 1);
            running.run_gateway("east");
            std::fs::write(running.path("keys/train.token"), "0".repeat(64)).expect("ours");
            code_of(&mut on_files(command, &running.path("")))
        }
        "an allocation fails, or a bug aborts the process" if command == "run" => {
            code_after(Signal::ABORT)
        }
        // The same line of the program for every command.
        "an allocation fails, or a bug aborts the process" => Some(1),
        "SIGINT" if command == "run" => code_after(Signal::INT),
        "SIGINT" => code_while_reading(command, Signal::INT),
        "SIGTERM" => code_while_reading(command, Signal::TERM),
        "SIGHUP, as of a terminal that closes" => code_while_reading(command, Signal::HUP),
        "SIGINT, SIGTERM or SIGHUP while it reads its files" => {
            let codes = [Signal::INT, Signal::TERM, Signal::HUP];
            let codes = codes.map(|signal| code_while_reading(command, signal));
            codes.iter().all(|code| *code == codes[0]).then_some(codes[0])?
        }
        _ => None,
    }
}

#[test]
fn every_row_of_the_exit_codes_holds() {
    let deployment = deployment(1, 1);
    let rows = rows();
    assert!(rows.len() > 20, "only {} rows found", rows.len());
    for row in rows.iter().filter(|row| !row.shown_elsewhere) {
        for command in &row.commands {
            let found = code_of_event(row.event, command, &deployment);
            assert_eq!(found, Some(row.code), "{command}: {}", row.event);
        }
    }
}

#[test]
fn a_wrong_value_is_told_with_what_is_accepted() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let fabric = configs.join("three-regions/fabric.toml").display().to_string();
    let region = configs.join("two-region/east.toml").display().to_string();
    let batch = ["plan", "batch", "--fabric", &fabric, "--global-batch", "8", "--max-per-rank"];
    for (line, told) in [
        ([&batch[..], &["1,,1"]].concat(), "joined by commas, such as 64,64,32"),
        (vec!["rate", "east-west", "SCHEDULED", "--config", &region], "or `scheduled`"),
        (vec!["plan", "batch", "--fabric", &fabric, "--global-batch", ""], "it is empty"),
    ] {
        let output = Command::new(BINARY).args(&line).output().expect("runs");
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(64), "{error}");
        assert!(error.contains(told), "{error}");
    }
}
