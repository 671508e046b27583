//! Tests of the exit codes of single commands.

use super::{code, configs, json, landbridge};
use std::process::Command;

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
fn ports_prints_commands_of_nftables_on_demand() {
    let east = configs().join("two-region/east.toml").display().to_string();
    let output = landbridge(&["ports", "--config", &east, "--nft"]);
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    assert_eq!((code(&output), text.lines().count()), (0, 2), "{text}");
    let ports = [
        (0, "output", "udp dport { 7500 }"),
        (1, "input", "udp sport { 7500 } ct state established"),
    ];
    for (line, chain, port) in ports {
        let line = text.lines().nth(line).expect("two");
        assert!(line.starts_with(&format!("insert rule inet filter {chain} ip saddr ")), "{line}");
        assert!(line.contains(&format!("{port} accept")), "{line}");
    }
    assert_eq!(code(&landbridge(&["ports", "--config", &east, "--nft", "--json"])), 64);
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
fn bench_refuses_sizes_without_whole_blocks() {
    let east = configs().join("two-region/east.toml").display().to_string();
    for (operation, size, said) in [
        ("all-to-all", "4 B", "is not a whole number of f32 elements for each of 4 ranks"),
        ("all-gather", "1 B", "is not a whole number of f32 elements for each of 4 ranks"),
        ("all-reduce", "5 B", "is not a whole number of f32 elements\n"),
    ] {
        let bench = ["bench", operation, "--config", &east, "--rank", "0", "--size", size];
        let output = landbridge(&bench);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(code(&output), 64, "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
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
