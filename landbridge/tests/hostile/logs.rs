//! Logs that cannot be written, or that nobody reads, beside an honest job.

use super::deployment::{BINARY, RunningGateway};
use super::{
    Deployment, ELEMENTS, LAYOUT, ONE_AT_A_TIME, ROUNDS_AFTER, TEST_TIMEOUT, Team, lanes_are_up,
    round,
};
use gateway::config::RegionFile;
use gateway::observe::fetch_status::fetch_status;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError};

/// Lines that a slow reader takes after each all-reduce: far fewer than the gateway logs.
const SLOW_LINES: usize = 10;

/// Returns the status address of east's gateway.
fn east_status(deployment: &Deployment) -> SocketAddr {
    let file = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    file.gateway(None).expect("one").status
}

/// Starts both gateways; the log of east goes to `stderr`.
fn running_with_log(mut east: Command, stderr: Stdio, level: &str) -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    let process = east
        .args(["run", "--config"])
        .arg(deployment.path("east.toml"))
        .env("LANDBRIDGE_LOG", level)
        .stderr(stderr)
        .spawn()
        .expect("starts");
    deployment.gateways.push(RunningGateway { process, log: Arc::default() });
    deployment.run_gateway("west");
    let status = east_status(&deployment);
    while fetch_status(status).is_err() {
        assert_eq!(deployment.gateways[0].process.try_wait().expect("a child"), None, "it runs");
    }
    deployment
}

/// Runs the honest job beside a log, and `beside` after each all-reduce until it returns false.
/// Then east's gateway must end cleanly on SIGTERM. Returns the log lines that it has lost.
fn work_beside_log(
    east: Command,
    stderr: Stdio,
    level: &str,
    mut beside: impl FnMut(&Deployment) -> bool,
) -> u64 {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut deployment = running_with_log(east, stderr, level);
    let work = async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        let epoch = team.epoch();
        for _ in 0..ROUNDS_AFTER {
            round(&team, ELEMENTS).await;
        }
        while beside(&deployment) {
            round(&team, ELEMENTS).await;
        }
        assert_eq!(team.epoch(), epoch, "the honest job's epoch ended");
        lanes_are_up(&deployment);
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, work).await.expect("no hang") });
    let lost = fetch_status(east_status(&deployment)).expect("a status").lost_log_lines;
    let process = &mut deployment.gateways[0].process;
    kill_process(Pid::from_child(process), Signal::TERM).expect("signalled");
    assert_eq!(process.wait().expect("ends").code(), Some(0), "after {lost} lost lines");
    lost
}

/// Returns whether east's gateway has lost no line of its log yet.
fn has_lost_nothing(deployment: &Deployment) -> bool {
    fetch_status(east_status(deployment)).expect("a status").lost_log_lines == 0
}

#[test]
fn a_log_that_cannot_be_written_harms_nobody() {
    let full = File::options().write(true).open("/dev/full").expect("a device");
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    for stderr in [Stdio::from(full), Stdio::from(closed)] {
        let lost = work_beside_log(Command::new(BINARY), stderr, "info", |_| false);
        assert!(lost > 0, "nothing was counted");
    }
    // A process that starts without stderr gets /dev/null from the runtime: it loses nothing.
    let mut closing = Command::new("sh");
    closing.args(["-c", "exec \"$0\" \"$@\" 2>&-", BINARY]);
    work_beside_log(closing, Stdio::null(), "info", |_| false);
}

#[test]
fn a_log_file_at_its_limit_harms_nobody() {
    let mut limited = Command::new("sh");
    // 8 blocks of 512 bytes.
    limited.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\"", BINARY]);
    let file = tempfile::tempfile().expect("a file");
    let lost = work_beside_log(limited, Stdio::from(file), "debug", |_| false);
    assert!(lost > 0, "nothing was counted");
}

/// The reader exists, but is stopped, as by Ctrl-Z.
#[test]
fn a_log_whose_reader_is_stopped_delays_nobody() {
    let mut reader =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts");
    kill_process(Pid::from_child(&reader), Signal::STOP).expect("signalled");
    let stderr = Stdio::from(reader.stdin.take().expect("piped"));
    let lost = work_beside_log(Command::new(BINARY), stderr, "trace", has_lost_nothing);
    assert!(lost > 0);
    reader.kill().expect("ours");
    reader.wait().expect("ends");
}

/// Returns the two ends of a new terminal: the side of keys and screen, and the side of programs.
fn open_terminal() -> (File, File) {
    let terminal =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&terminal).expect("ours");
    unlockpt(&terminal).expect("ours");
    let name = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("text");
    // It must not become the terminal of the test.
    let no_control = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let mut options = File::options();
    let programs = options.read(true).write(true).custom_flags(no_control).open(name);
    (terminal.into(), programs.expect("a terminal"))
}

/// After `stty tostop` a terminal stops background jobs that write to it.
#[test]
fn a_log_in_the_background_of_a_terminal_stops_nobody() {
    let (screen, log) = open_terminal();
    let mut background = Command::new("setsid");
    // The job has a process group of its own, so that the shell has the foreground.
    let script = "stty tostop; set -m; \"$0\" \"$@\" & trap 'kill -TERM $!' TERM; wait $!; wait $!";
    background.args(["--ctty", "sh", "-c", script, BINARY]);
    background.stdin(log.try_clone().expect("a descriptor"));
    let reading = std::thread::spawn(move || {
        let lines = BufReader::new(screen).lines().map_while(Result::ok);
        lines.collect::<Vec<_>>().join("\n")
    });
    work_beside_log(background, log.into(), "info", |_| false);
    let shown = reading.join().expect("no panic");
    assert!(shown.contains("gateway east-0 is up"), "{shown}");
}

/// The terminal takes no more from Ctrl-S to Ctrl-Q.
#[test]
fn a_log_on_a_stopped_terminal_delays_nobody() {
    const CTRL_S: u8 = 0x13;
    const CTRL_Q: u8 = 0x11;
    let (mut keys, log) = open_terminal();
    let mut screen = BufReader::new(keys.try_clone().expect("a descriptor"));
    // Output is stopped, not unread.
    let reading = std::thread::spawn(move || {
        let mut line = Vec::new();
        loop {
            line.clear();
            // The last writer is gone: the error is the end of a terminal.
            if !matches!(screen.read_until(b'\n', &mut line), Ok(1..)) {
                return false;
            }
            if String::from_utf8_lossy(&line).contains("lines are missing here") {
                return true;
            }
        }
    });
    keys.write_all(&[CTRL_S]).expect("typed");
    let mut is_stopped = true;
    let lost = work_beside_log(Command::new(BINARY), log.into(), "trace", |deployment| {
        if has_lost_nothing(deployment) {
            return true;
        }
        if std::mem::take(&mut is_stopped) {
            keys.write_all(&[CTRL_Q]).expect("typed");
        }
        !reading.is_finished()
    });
    assert!(lost > 0 && reading.join().expect("no panic"), "{lost} lost lines");
}

#[test]
fn a_gateway_needs_no_standard_output() {
    let mut mute = Command::new(BINARY);
    mute.stdout(File::options().write(true).open("/dev/full").expect("a device"));
    work_beside_log(mute, Stdio::null(), "info", |_| false);
}

#[test]
fn a_log_that_nobody_reads_delays_nobody() {
    let (_unread, stderr) = std::io::pipe().expect("a pipe");
    let lost = work_beside_log(Command::new(BINARY), stderr.into(), "trace", |deployment| {
        if has_lost_nothing(deployment) {
            return true;
        }
        let config = deployment.path("east.toml");
        let shown = Command::new(BINARY).args(["status", "--config"]).arg(config).output();
        let shown = String::from_utf8(shown.expect("runs").stdout).expect("text");
        assert!(shown.contains("lines lost"), "{shown}");
        let mut scrape = TcpStream::connect(east_status(deployment)).expect("connects");
        scrape.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
        let mut metrics = String::new();
        scrape.read_to_string(&mut metrics).expect("answered");
        let counter = "landbridge_lost_log_lines_total ";
        let counted = metrics.lines().find_map(|line| line.strip_prefix(counter));
        assert!(counted.is_some_and(|count| count != "0"), "{metrics}");
        false
    });
    assert!(lost > 0);
}

#[test]
fn every_line_of_a_json_log_is_an_object() {
    let mut east = Command::new(BINARY);
    east.env("LANDBRIDGE_LOG_FORMAT", "json");
    let mut file = tempfile::tempfile().expect("a file");
    let stderr = Stdio::from(file.try_clone().expect("a descriptor"));
    let lost = work_beside_log(east, stderr, "landbridge=debug", |_| false);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).expect("a file");
    file.read_to_string(&mut text).expect("text");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert!(lost == 0 && lines.iter().all(|line| line["target"] == "landbridge"), "{text}");
    let has = |fields: &[(&str, &str)]| {
        let fits =
            |line: &serde_json::Value| fields.iter().all(|(name, value)| line[name] == *value);
        lines.iter().any(fits)
    };
    assert!(has(&[("peer", "west-0"), ("region", "west"), ("level", "info")]), "{text}");
    let completed = |line: &serde_json::Value| {
        line["job"] == "train" && line["collective"].is_u64() && line["seconds"].is_f64()
    };
    assert!(lines.iter().any(completed), "{text}");
}

/// The reader of a log is slower than the log, then catches up.
#[test]
fn a_slow_reader_finds_whole_lines_and_gaps() {
    let (reader, stderr) = std::io::pipe().expect("a pipe");
    let mut lines = BufReader::new(reader).lines().map(|line| line.expect("text"));
    let mut read_line = move || {
        let line = lines.next().expect("a line");
        // A line begins with its time, or tells how many are missing.
        assert!(line.starts_with("20") || line.starts_with('['), "{line}");
        line.contains("lines are missing here")
    };
    let lost = work_beside_log(Command::new(BINARY), stderr.into(), "trace", |deployment| {
        for _ in 0..SLOW_LINES {
            read_line();
        }
        if has_lost_nothing(deployment) {
            return true;
        }
        while !read_line() {}
        false
    });
    assert!(lost > 0);
}
