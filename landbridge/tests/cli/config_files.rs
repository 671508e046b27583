//! Tests of commands that read or write config files and certificates.

use super::{code, configs, json, landbridge};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

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
    let mut arguments = vec!["check".to_owned(), "--no-secrets".to_owned(), "--json".to_owned()];
    toml_files(&configs(), &mut arguments);
    assert!(arguments.len() >= 5, "{arguments:?}");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = landbridge(&arguments);
    assert_eq!((code(&output), &json(&output)["ok"]), (0, &true.into()), "{:?}", json(&output));
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
    let summary =
        json(&landbridge(&["check", "--no-secrets", &east, "--json"]))["files"][0]["summary"]
            .to_string();
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
fn check_warns_of_host_names_or_refuses_them() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("fabric.toml").display().to_string();
    let example = std::fs::read_to_string(configs().join("two-region/fabric.toml"));
    // Every host knows its own name; no other name is asked for.
    let same = example.expect("there").replace("127.0.0.1:7500", "localhost:7400");
    for (text, told) in
        [(same.clone(), true), (same.replace("localhost:7400", "localhost:7500"), false)]
    {
        std::fs::write(&file, text).expect("a temporary file");
        let output = landbridge(&["check", &file, "--json"]);
        assert_eq!(code(&output), 0, "{output:?}");
        let summary = json(&output)["files"][0]["summary"].to_string();
        let clash = "has the address 127.0.0.1:7400, which is one of gateway `east-0` too";
        assert_eq!(summary.contains("WARNING") && summary.contains(clash), told, "{summary}");
        let output = landbridge(&["check", "--resolve", &file, "--json"]);
        assert_eq!(code(&output), if told { 64 } else { 0 }, "{output:?}");
        let fault = &json(&output)["faults"][0];
        assert_eq!(fault["problem"] == clash, told, "{fault}");
        assert_eq!(fault["key"] == "region.west.gateway.west-0.wan", told, "{fault}");
    }
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

#[test]
fn check_shows_every_deadline_of_a_patience() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("fabric.toml").display().to_string();
    let with = |keys: &str| {
        let text = std::fs::read_to_string(configs().join("two-region/fabric.toml"));
        let text = text.expect("an example").replacen("name =", &format!("{keys}\nname ="), 1);
        std::fs::write(&file, text).expect("a temporary file");
        // The same fabric is listed once.
        let report = json(&landbridge(&["check", &file, &file, "--json"]));
        assert_eq!(report["fabrics"].as_array().map(Vec::len), Some(1), "{report}");
        let deadlines = report["fabrics"][0]["deadlines"].as_array().expect("a list").iter();
        let row = |one: &serde_json::Value| format!("{} {}", one["seconds"], one["source"]);
        deadlines.map(row).collect::<Vec<_>>().join(", ").replace('"', "")
    };
    let usual = "15.0 patience, 8.0 patience, 10.0 patience, 10.0 patience";
    assert_eq!(with(""), usual);
    let overridden = "5.0 silence, 5.0 silence, 20.0 patience, 20.0 patience";
    assert_eq!(with("patience = \"30 s\"\nsilence = \"5 s\""), overridden);
    let text = String::from_utf8(landbridge(&["check", &file]).stdout).expect("text");
    assert!(text.contains("Deadlines of fabric two-region by its patience of 30 s:"), "{text}");
    assert!(text.contains("stalled") && text.contains("20 s"), "{text}");
    let short = std::fs::read_to_string(&file).expect("a temporary file");
    let short = short.replacen("patience = \"30 s\"", "patience = \"5 s\"", 1);
    std::fs::write(&file, short).expect("a temporary file");
    let output = landbridge(&["check", &file]);
    let stderr = String::from_utf8(output.stderr.clone()).expect("text");
    assert!(code(&output) == 64 && stderr.contains("a time from 6 s to 15 min"), "{stderr}");
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
        let output = landbridge(&["check", "--no-secrets", &copy("east.toml", memory), "--json"]);
        assert_eq!(code(&output), 0);
        let summary = json(&output)["files"][0]["summary"].to_string();
        assert_eq!(summary.contains("`memory` of 40 MiB is too small"), warned, "{summary}");
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
fn check_replaces_values_of_earlier_versions() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, kept) = (folder.path().join("fabric.toml"), folder.path().join("fabric.toml.bak"));
    let example = std::fs::read_to_string(configs().join("two-region/fabric.toml"));
    let earlier = |controller: &str| format!("controller = \"{controller}\" # ours\nrtt = ");
    let of = |controller| example.as_ref().expect("there").replace("rtt = ", &earlier(controller));
    std::fs::write(&file, of("link-share")).expect("written");
    std::fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("ours");
    let check = |flags: &[&str]| {
        let name = file.display().to_string();
        landbridge(&[&["check", &name], flags].concat())
    };
    let text = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let refused = check(&[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(code(&refused), 64, "{said}");
    assert!(said.contains("`landbridge check --fix` writes \"dedicated\""), "{said}");
    let dry = check(&["--fix", "--dry-run"]);
    let said = String::from_utf8_lossy(&dry.stdout).into_owned();
    let diff = "-controller = \"link-share\" # ours\n+controller = \"dedicated\" # ours\n";
    assert!(said.contains(diff) && said.contains(",1 @@\n"), "{said}");
    assert_eq!((code(&dry), text(&file), kept.exists()), (64, of("link-share"), false));
    let fixed = check(&["--fix", "--json"]);
    assert_eq!((code(&fixed), text(&file), text(&kept)), (0, of("dedicated"), of("link-share")));
    let change = &json(&fixed)["fixed"][0]["changes"][0];
    assert_eq!(
        (&change["before"], &change["after"]),
        (&"\"link-share\"".into(), &"\"dedicated\"".into())
    );
    for path in [&file, &kept] {
        assert_eq!(std::fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o640);
    }
    let again = check(&["--fix", "--json"]);
    assert_eq!((code(&again), &json(&again)["fixed"]), (0, &serde_json::json!([])));
    // An earlier former text is not lost.
    std::fs::write(&file, of("link-share") + "# more\n").expect("written");
    let refused = check(&["--fix"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(code(&refused) == 64 && said.contains("fabric.toml.bak: is there already"), "{said}");
    assert_eq!((text(&file), text(&kept)), (of("link-share") + "# more\n", of("link-share")));
}

#[test]
fn check_fixes_the_fabric_before_the_region() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["fabric.toml", "east.toml"] {
        let text = std::fs::read_to_string(configs().join("two-region").join(name)).expect("there");
        let text = text
            .replace("rtt = ", "controller = \"link-share\"\nrtt = ")
            .replace("wan = \"127.0.0.1:7400\"\n", "")
            .replace("status = ", "listen = \"0.0.0.0:7400\"\nstatus = ");
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let east = folder.path().join("east.toml").display().to_string();
    let fixed = landbridge(&["check", "--no-secrets", "--fix", "--json", &east]);
    let report = json(&fixed);
    let after = |file: usize| report["fixed"][file]["changes"][0]["after"].clone();
    assert_eq!((after(0), after(1)), ("\"0.0.0.0:0\"".into(), "\"dedicated\"".into()), "{report}");
    assert_eq!(code(&fixed), 0, "{report}");
}

#[test]
fn files_rewritten_before_a_fault_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let example = std::fs::read_to_string(configs().join("two-region/fabric.toml")).expect("there");
    let text = example.replace("rtt = ", "controller = \"link-share\"\nrtt = ");
    let files = ["a.toml", "b.toml"].map(|name| folder.path().join(name).display().to_string());
    files.iter().for_each(|file| std::fs::write(file, &text).expect("written"));
    std::fs::write(folder.path().join("b.toml.bak"), "mine").expect("written");
    let output = landbridge(&["check", "--fix", &files[0], &files[1]]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 64, "{said}");
    assert!(said.contains("a.toml: rewritten; its former text is in"), "{said}");
    assert!(said.contains("b.toml.bak: is there already"), "{said}");
}
