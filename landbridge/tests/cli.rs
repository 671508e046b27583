//! Commands as a shell runs them: exit codes, streams, JSON.

use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs the binary with `arguments` to its end.
fn landbridge(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(arguments).output().expect("the binary runs")
}

/// Returns the exit code of a command.
fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed by a signal")
}

/// Parses stdout of a command as JSON.
fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// Returns the folder of example configs.
fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// Adds the paths of all TOML files below `directory` to `found`.
fn toml_files(directory: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.ends_with("labs") {
            // Files of wan-sim, which its own tests check.
            continue;
        }
        if path.is_dir() {
            toml_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn every_example_config_is_good() {
    let mut arguments = vec!["check".to_owned(), "--json".to_owned()];
    toml_files(&configs(), &mut arguments);
    assert!(arguments.len() >= 5, "{arguments:?}");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = landbridge(&arguments);
    assert_eq!((code(&output), &json(&output)["ok"]), (0, &true.into()), "{:?}", json(&output));
}

#[test]
fn wrong_command_lines_exit_with_64_and_help_with_0() {
    for wrong in [&["fly"][..], &[], &["check"], &["certs", "--days", "0"], &["status", "--jsn"]] {
        let output = landbridge(wrong);
        assert_eq!(code(&output), 64, "{wrong:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
    for command in
        ["certs", "check", "config", "init", "doctor", "plan", "ports", "status", "trace"]
    {
        let output = landbridge(&[command, "--help"]);
        assert_eq!(code(&output), 0, "{command}");
        let help = String::from_utf8(output.stdout).expect("text");
        assert!(help.contains(&format!("Example: landbridge {command}")), "{help}");
    }
}

#[test]
fn the_variable_names_the_region_file() {
    let east = configs().join("two-region/east.toml");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
        command.args(arguments).env("LANDBRIDGE_CONFIG", &east).output().expect("runs")
    };
    let output = run(&["config", "--json"]);
    assert_eq!((code(&output), &json(&output)["gateways"][0]["gateway"]), (0, &"east-0".into()));
    // The flag wins.
    let west = configs().join("two-region/west.toml").display().to_string();
    let output = run(&["config", "--json", "--config", &west]);
    assert_eq!(json(&output)["gateways"][0]["gateway"], "west-0");
}

#[test]
fn ports_prints_commands_of_nftables_on_demand() {
    let east = configs().join("two-region/east.toml").display().to_string();
    let output = landbridge(&["ports", "--config", &east, "--nft"]);
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    assert_eq!((code(&output), text.lines().count()), (0, 2), "{text}");
    for (line, chain, port) in [(0, "input", "7400-7403"), (1, "output", "7500-7503")] {
        let line = text.lines().nth(line).expect("two");
        assert!(line.starts_with(&format!("insert rule inet filter {chain} ip saddr ")), "{line}");
        assert!(line.contains(&format!("udp dport {{ {port} }} accept")), "{line}");
    }
    assert_eq!(code(&landbridge(&["ports", "--config", &east, "--nft", "--json"])), 64);
}

/// Returns a device that takes nothing, like a full disk.
fn full_disk() -> File {
    File::options().write(true).open("/dev/full").expect("a device")
}

/// Returns a pipe whose reader is gone, as behind `head`.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

/// Returns a full pipe, and its reader, which reads nothing.
fn unread_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let set = |writer: &PipeWriter, flags| rustix::fs::fcntl_setfl(writer, flags).expect("a pipe");
    set(&writer, rustix::fs::OFlags::NONBLOCK);
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    set(&writer, rustix::fs::OFlags::empty());
    (reader, writer)
}

#[test]
fn a_report_that_is_not_written_exits_with_1() {
    let fabric = configs().join("two-region/fabric.toml").display().to_string();
    let east = configs().join("two-region/east.toml").display().to_string();
    for arguments in [
        &["plan", "--fabric", &fabric][..],
        &["plan", "--fabric", &fabric, "--json"],
        &["plan", "traffic"],
        &["check", &fabric],
        &["check", &fabric, "--json"],
        &["config", "--config", &east],
        &["config", "--config", &east, "--json"],
        &["ports", "--config", &east],
        &["wan-sim", "presets"],
        &["completions", "bash"],
        &["wan-sim", "show", &fabric],
        &["--help"],
        &["--version"],
        &["plan", "--help"],
    ] {
        let into = |stdout: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
            let output = command.args(arguments).stdout(stdout).output().expect("runs");
            (code(&output), String::from_utf8(output.stderr).expect("text"))
        };
        let (code, said) = into(full_disk().into());
        assert_eq!((code, said.lines().count()), (1, 1), "{arguments:?}: {said}");
        assert!(said.starts_with("cannot write to standard output: No space left"), "{said}");
        // The reader knows that it has closed the pipe.
        assert_eq!(into(closed_pipe().into()), (1, String::new()), "{arguments:?}");
    }
}

#[test]
fn an_error_that_nobody_reads_delays_no_command() {
    let (_reader, unread) = unread_pipe();
    for stderr in [Stdio::from(full_disk()), closed_pipe().into(), unread.into()] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
        command.args(["check", "nowhere.toml"]).stdout(Stdio::null()).stderr(stderr);
        assert_eq!(command.status().expect("runs").code(), Some(64));
    }
}

#[test]
fn config_names_every_rank_by_region_and_local_rank() {
    let east = configs().join("two-region/east.toml").display().to_string();
    let output = landbridge(&["config", "--config", &east, "--json"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let found = json(&output);
    let names = |key: &str| {
        let ranks = found["ranks"].as_array().expect("ranks").iter();
        ranks.map(|rank| rank[key].to_string().replace('"', "")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("rank"), "0 1 2 3");
    assert_eq!(names("region"), "east east east west");
    assert_eq!(names("local_rank"), "0 1 2 0");
    assert_eq!(names("gateway"), "east-0 east-0 east-0 west-0");
    assert_eq!(found["gateways"][0]["gateway"], "east-0");
    assert!(found["jobs"][0]["token"].as_str().expect("a path").ends_with("keys/train.token"));
    let text = landbridge(&["config", "--config", &east]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("LOCAL RANK"), "{text:?}");
    let wrong = landbridge(&["config", "--config", "no/such.toml", "--json"]);
    assert_eq!((code(&wrong), wrong.stdout.len()), (64, 0));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.starts_with("no/such.toml: cannot be read"), "{said}");
}

#[test]
fn a_memory_above_every_limit_starts_no_gateway() {
    let folder = tempfile::tempdir().expect("a folder");
    let read = |name: &str| std::fs::read_to_string(configs().join("two-region").join(name));
    let text = read("east.toml").expect("there");
    let text = text.replace("memory = \"1 GiB\"", "memory = \"1000 TiB\"");
    std::fs::write(folder.path().join("fabric.toml"), read("fabric.toml").expect("there"))
        .expect("written");
    let east = folder.path().join("east.toml");
    std::fs::write(&east, text).expect("written");
    let east = east.display().to_string();
    let output = landbridge(&["run", "--config", &east]);
    assert_eq!(code(&output), 64, "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("does not fit: ") && said.contains("lower `memory`"), "{said}");
    let summary = json(&landbridge(&["check", &east, "--json"]))["files"][0]["summary"].to_string();
    assert!(summary.contains("does not fit this host"), "{summary}");
}

#[test]
fn check_lists_the_ranks_of_each_region() {
    let fabric = configs().join("two-region/fabric.toml").display().to_string();
    let output = landbridge(&["check", &fabric, "--json"]);
    let summary = json(&output)["files"][0]["summary"].to_string();
    assert!(summary.contains("ranks: east 0-2, west 3"), "{summary}");
}

#[test]
fn wan_sim_errors_exit_with_the_same_codes() {
    let relay = ["wan-sim", "relay", "--forward", "127.0.0.1:0=127.0.0.1:9", "--netem"];
    for netem in ["loss 101%", "delay 1ms\u{7}", "delay 40ms\nloss 1%x"] {
        let output = landbridge(&[&relay[..], &[netem]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
        assert!(!stderr.trim_end().contains(char::is_control), "{stderr:?}");
    }
    let lab = configs().join("labs/three-sites.toml").display().to_string();
    let nowhere = landbridge(&["wan-sim", "tc", &lab, "--site", "nowhere", "--apply"]);
    assert_eq!(code(&nowhere), 64);
    let applied = landbridge(&["wan-sim", "tc", &lab, "--site", "oslo", "--apply"]);
    // With the privilege, the device is missing instead.
    if String::from_utf8_lossy(&applied.stderr).contains("this kernel or user cannot") {
        assert_eq!(code(&applied), 77);
    } else {
        assert_eq!(code(&applied), 1);
    }
}

#[test]
fn a_quickstart_over_an_impossible_link_exits_with_64() {
    for wrong in [["--loss", "60%"], ["--rtt", "2min"]] {
        let output = landbridge(&["quickstart", wrong[0], wrong[1]]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
        assert!(stderr.contains(wrong[0]) && output.stdout.is_empty(), "{stderr}");
        // The generated fabric file is not mentioned.
        assert!(!stderr.contains("fabric.toml"), "{stderr}");
    }
}

#[test]
fn a_quickstart_whose_children_end_at_once_says_why() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    let output = command.arg("quickstart").env("LANDBRIDGE_LOG", "debgu").output();
    let output = output.expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = stderr.lines().find(|line| line.contains("gateway")).unwrap_or_default();
    assert_eq!(code(&output), 64, "{stderr}");
    assert!(first.contains("ended with exit code 64: LANDBRIDGE_LOG=\"debgu\""), "{stderr}");

    let directory = tempfile::tempdir().expect("a temporary directory");
    let long = directory.path().join("d".repeat(100));
    std::fs::create_dir(&long).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    let output = command.arg("quickstart").env("TMPDIR", &long).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
    assert!(stderr.contains("set TMPDIR to a folder with a shorter path"), "{stderr}");
}

#[test]
fn an_impossible_link_is_reported_with_its_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("mine.toml").display().to_string();
    let example = std::fs::read_to_string(configs().join("three-regions/fabric.toml"));
    let example = example.expect("an example");
    let rtt = example.lines().find(|line| line.starts_with("rtt")).expect("a link");
    std::fs::write(&path, example.replacen(rtt, "rtt = \"2 min\"", 1)).expect("written");
    for more in [&[][..], &["--simulate"], &["--json"]] {
        let output = landbridge(&[&["plan", "--fabric", &path][..], more].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
        assert!(stderr.starts_with(&path) && stderr.contains("2 min"), "{stderr}");
    }
}

#[test]
fn an_average_of_integers_is_refused_before_files_are_read() {
    let nowhere = ["--config", "nowhere.toml", "--rank", "0"];
    let average = ["--op", "avg", "--dtype", "i32"];
    let output = landbridge(&[&["bench", "all-reduce"][..], &nowhere, &average].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 64, "{stderr}");
    assert!(stderr.contains("--op avg") && stderr.contains("--dtype i32"), "{stderr}");
}

#[test]
fn bench_refuses_to_guess_among_several_jobs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["fabric.toml", "east.toml"] {
        std::fs::copy(configs().join("two-region").join(name), directory.path().join(name))
            .expect("copied");
    }
    let east = directory.path().join("east.toml");
    let text = std::fs::read_to_string(&east).expect("copied");
    let other = "\n[job.other]\ntoken = \"keys/other.token\"\nmemory = \"1 GiB\"\n";
    std::fs::write(&east, text + other).expect("ours");
    let east = east.display().to_string();
    let bench = ["bench", "all-reduce", "--config", &east, "--rank", "0"];
    for (more, said) in [
        (&[][..], "choose one with --job: other, train"),
        (&["--job", "third"], "has no job `third`; it has: other, train"),
    ] {
        let output = landbridge(&[&bench[..], more].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(code(&output), 64, "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn an_unknown_log_level_exits_with_64_and_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(["run", "--config", "nowhere.toml"]).env("LANDBRIDGE_LOG", "debgu");
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
    assert!(stderr.contains("LANDBRIDGE_LOG=\"debgu\""), "{stderr}");
}

#[test]
fn an_unknown_log_format_exits_with_64_and_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(["run", "--config", "nowhere.toml"]).env("LANDBRIDGE_LOG_FORMAT", "logfmt");
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
    assert!(stderr.contains("LANDBRIDGE_LOG_FORMAT=\"logfmt\""), "{stderr}");
    assert!(stderr.contains("accepted: text, json"), "{stderr}");
}

#[test]
fn a_json_log_has_the_error_as_an_object() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(["run", "--config", "nowhere.toml"]).env("LANDBRIDGE_LOG_FORMAT", "json");
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let line: serde_json::Value = serde_json::from_str(stderr.trim_end()).expect("one object");
    assert_eq!((code(&output), line["level"].as_str()), (64, Some("error")), "{stderr}");
    assert!(line["message"].as_str().is_some_and(|text| text.contains("nowhere.toml")), "{stderr}");
}

#[test]
fn check_reports_faults_of_all_files_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| directory.path().join(name).display().to_string();
    let example = |name: &str| {
        std::fs::read_to_string(configs().join("two-region").join(name)).expect("an example")
    };
    let fabric = example("fabric.toml").replacen("500 Mbit/s", "500 mbit", 1);
    std::fs::write(file("fabric.toml"), fabric).expect("a temporary file");
    let east = example("east.toml").replace("1 GiB", "1 gig");
    std::fs::write(file("east.toml"), east).expect("a temporary file");
    let files = [file("fabric.toml"), file("east.toml"), file("none.toml")];

    let output = landbridge(&["check", &files[0], &files[1], &files[2], "--json"]);
    assert_eq!(code(&output), 64);
    let report = json(&output);
    let faults = report["faults"].as_array().expect("a list");
    let keys: Vec<_> = faults.iter().map(|fault| fault["key"].as_str().expect("text")).collect();
    assert_eq!(keys, ["gateway.east-0.memory", "region.east.gateway.east-0.egress", ""]);

    let output = landbridge(&["check", &files[0], &files[1], &files[2]]);
    assert_eq!(code(&output), 64);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
    assert!(stderr.contains("\"1 gig\"") && stderr.contains("accepted: a size"), "{stderr}");
}

/// Lanes alone take up to 32 MiB.
#[test]
fn too_little_memory_is_warned_of() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let copy = |name: &str, with: &str| {
        let text = std::fs::read_to_string(configs().join("two-region").join(name));
        let text = text.expect("an example").replacen("1 GiB", with, 1);
        let file = directory.path().join(name);
        std::fs::write(&file, text).expect("a temporary file");
        file.display().to_string()
    };
    copy("fabric.toml", "");
    for (memory, warned) in [("40 MiB", true), ("1 GiB", false)] {
        let output = landbridge(&["check", &copy("east.toml", memory), "--json"]);
        assert_eq!(code(&output), 0);
        let summary = json(&output)["files"][0]["summary"].to_string();
        assert_eq!(summary.contains("`memory` of 40 MiB is too small"), warned, "{summary}");
    }
}

/// A fabric of 257 regions: no gateway starts with it.
#[test]
fn a_fabric_without_a_plan_is_a_fault() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("fabric.toml").display().to_string();
    let mut fabric = "name = \"large\"\nmtu = 1500\n".to_owned();
    for region in 0..257 {
        let (host, port) = (region % 250 + 1, 7000 + 20 * (region / 250));
        fabric += &format!(
            "[region.r{region:03}]\nranks = 1\n[region.r{region:03}.gateway.g{region:03}]\n\
             wan = \"192.0.2.{host}:{port}\"\negress = \"1 Gbit/s\"\ningress = \"1 Gbit/s\"\n"
        );
    }
    for region in 0..256 {
        let next = region + 1;
        fabric +=
            &format!("[link.r{region:03}-r{next:03}]\nrate = \"1 Gbit/s\"\nrtt = \"10 ms\"\n");
    }
    std::fs::write(&file, fabric).expect("a temporary file");
    for command in [
        &["check", &file][..],
        &["check", "--json", &file],
        &["plan", "--fabric", &file, "--size", "1MiB"],
    ] {
        let output = landbridge(command);
        let text = [output.stdout.clone(), output.stderr.clone()].concat();
        let text = String::from_utf8(text).expect("text");
        assert_eq!(code(&output), 64, "{command:?}: {text}");
        assert!(text.contains("257 regions, more than the 256"), "{command:?}: {text}");
    }
}

#[test]
fn certs_keeps_existing_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("keys").display().to_string();
    let fabric = configs().join("two-region/fabric.toml").display().to_string();
    let run = || landbridge(&["certs", "--fabric", &fabric, "--out", &out, "--json"]);
    let first = run();
    assert_eq!(code(&first), 0);
    assert_eq!(json(&first)["made"].as_array().map(Vec::len), Some(7));
    let second = run();
    assert_eq!(json(&second)["made"].as_array().map(Vec::len), Some(0));
    assert_eq!(json(&second)["kept"].as_array().map(Vec::len), Some(7));
}

#[test]
fn status_without_a_running_gateway_exits_with_69() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["fabric.toml", "east.toml"] {
        std::fs::copy(configs().join("two-region").join(name), directory.path().join(name))
            .expect("copied");
    }
    let east = directory.path().join("east.toml");
    // A port that was just released: nothing answers there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = free.local_addr().expect("bound").to_string();
    drop(free);
    let text = std::fs::read_to_string(&east).expect("copied");
    std::fs::write(&east, text.replace("127.0.0.1:9400", &address)).expect("ours");
    let east = east.display().to_string();
    let output = landbridge(&["status", "--config", &east]);
    assert_eq!(code(&output), 69);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(stderr.contains("is the gateway running?"), "{stderr}");
    let output = landbridge(&["status", "--config", &east, "--gateway", "west-0"]);
    assert_eq!(code(&output), 64);
}

#[test]
fn a_doctor_without_certificates_fails_with_advice() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["fabric.toml", "east.toml"] {
        std::fs::copy(configs().join("two-region").join(name), directory.path().join(name))
            .expect("copied");
    }
    let east = directory.path().join("east.toml").display().to_string();
    let output = landbridge(&["doctor", "--config", &east, "--json"]);
    assert_eq!(code(&output), 1);
    assert_eq!(json(&output)["ok"], false);
    let output = landbridge(&["doctor", "--config", &east]);
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(stdout.contains("What to do:") && stdout.contains("landbridge certs"), "{stdout}");
}

#[test]
fn a_plan_has_a_reason_loads_and_a_picture() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let svg = directory.path().join("plan.svg").display().to_string();
    for (name, algorithm) in
        [("two-region", "swap"), ("three-regions", "direct"), ("five-regions", "relay")]
    {
        let fabric = configs().join(name).join("fabric.toml").display().to_string();
        let arguments = ["plan", "--fabric", &fabric, "--size", "1GiB", "--svg", &svg];
        let output = landbridge(&[&arguments[..], &["--json"]].concat());
        assert_eq!(code(&output), 0, "{name}");
        let plan = json(&output);
        assert_eq!(plan["algorithm"], algorithm);
        assert!(plan["reason"].as_str().is_some_and(|reason| reason.len() > 20));
        let (predicted, bound) = (&plan["predicted_seconds"], &plan["bound_seconds"]);
        let eta = bound.as_f64().expect("a number") / predicted.as_f64().expect("a number");
        assert!((0.97..=1.0).contains(&eta), "{name}: {eta}");
        let shares = plan["shares"].as_object().expect("by gateway");
        let sum: f64 = shares.values().filter_map(serde_json::Value::as_f64).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{shares:?}");
        let links = plan["link_bytes"].as_array().expect("a list");
        assert!(links.iter().any(|link| link["bytes"].as_u64() > Some(1 << 26)));
        let picture = std::fs::read_to_string(&svg).expect("written");
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<title>").count(), links.len());
        let text = landbridge(&arguments);
        let text = String::from_utf8(text.stdout).expect("text");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        // A long reason is wrapped.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(plan["reason"].as_str().expect("text")), "{text}");
    }
    let fabric = configs().join("two-region/fabric.toml").display().to_string();
    for wrong in [
        &["plan"][..],
        &["plan", "batch", "--fabric", &fabric, "--global-batch", "8", "--max-per-rank", "4,4,4"],
        &["plan", "--fabric", &fabric, "--size", "3 B"],
        &["plan", "--fabric", &fabric, "--root", "east-0"],
        &["plan", "--fabric", &fabric, "--op", "reduce", "--root", "north-0"],
        &["plan", "--fabric", &fabric, "--op", "all-gather", "--root", "east-0"],
        &["plan", "--fabric", &fabric, "--op", "all-to-all", "--size", "4 B"],
        &["plan", "--fabric", &fabric, "--to", "east-0"],
        &["plan", "--fabric", &fabric, "--op", "send", "--to", "east-0"],
        &["plan", "--fabric", &fabric, "--op", "send", "--simulate"],
    ] {
        assert_eq!(code(&landbridge(wrong)), 64, "{wrong:?}");
    }
}

#[test]
fn a_batch_is_split_by_speed() {
    let fabric = configs().join("three-regions/fabric.toml").display().to_string();
    let batch = ["plan", "batch", "--fabric", &fabric, "--global-batch", "1000", "--json"];
    let split = json(&landbridge(&batch));
    let shares = split["shares"].as_array().expect("a list");
    let samples = |share: &serde_json::Value| share["samples"].as_u64().expect("a number");
    assert_eq!(shares.iter().map(samples).sum::<u64>(), 1000);
    assert!(split["makespan_over_ideal"].as_f64().expect("a number") < 1.02);
    assert!(split["makespan_over_even"].as_f64().expect("a number") < 0.6);
}

/// Returns the JSON of a plan and its simulation for a buffer of 16 MiB.
fn simulated(fabric: &str, more: &[&str]) -> serde_json::Value {
    let fabric = configs().join(fabric).display().to_string();
    let arguments = ["plan", "--fabric", &fabric, "--size", "16MiB", "--simulate", "--json"];
    let output = landbridge(&[&arguments[..], more].concat());
    assert_eq!(code(&output), 0, "{}", String::from_utf8_lossy(&output.stderr));
    json(&output)
}

#[test]
fn a_simulated_plan_depends_on_its_seed_alone() {
    for operation in ["all-reduce", "reduce", "broadcast"] {
        let plan = simulated("three-regions/fabric.toml", &["--op", operation]);
        let (bound, seconds) = (&plan["bound_seconds"], &plan["simulated"]["seconds"]);
        assert!(seconds.as_f64() >= bound.as_f64() && bound.is_f64(), "{plan}");
        for link in plan["simulated"]["links"].as_array().expect("a list") {
            let bytes = |key: &str| link[key].as_f64().expect("a number");
            assert_eq!(link["payload_bytes"], link["planned_payload_bytes"], "{operation}: {link}");
            let planned = bytes("planned_ip_bytes");
            let off = (bytes("ip_bytes") - planned).abs();
            assert!(planned == 0.0 || off <= 0.02 * planned, "{operation}: {link}");
        }
    }
    let lossy = "two-region/fabric.toml";
    let [one, again, other] = ["1", "1", "2"].map(|seed| simulated(lossy, &["--seed", seed]));
    assert_eq!(one, again);
    assert_ne!(one["simulated"]["links"], other["simulated"]["links"]);
}

#[test]
fn plan_efficiency_finds_97_percent_over_500_km() {
    let words = ["plan", "efficiency", "--model", "llama3-70b", "--json"];
    let found = landbridge(&[&words[..], &["--distances", "500", "--convergence", "32"]].concat());
    let found = json(&found);
    let efficiency = found["cells"][0]["efficiency"].as_f64().expect("a number");
    assert!((0.97..1.0).contains(&efficiency), "{found}");
    assert_eq!(found["largest"][0]["convergence"], 32);
    let text = landbridge(&[&words[..4], &["--distances", "500", "--convergence", "32"]].concat());
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("S/BDP") && text.contains(&format!("{efficiency:.4}")), "{text}");
}

#[test]
fn traffic_refuses_tensor_parallelism() {
    let counted = json(&landbridge(&["plan", "traffic", "--json"]));
    let axes = counted["axes"].as_array().expect("a list");
    let crossing: Vec<_> = axes.iter().map(|axis| (&axis["axis"], &axis["may_cross"])).collect();
    let (data, pipeline, tensor) = ("data".into(), "pipeline".into(), "tensor".into());
    let (yes, no) = (true.into(), false.into());
    assert_eq!(crossing, [(&data, &yes), (&pipeline, &yes), (&tensor, &no)]);
}
