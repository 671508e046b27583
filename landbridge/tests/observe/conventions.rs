//! Rules that hold for all JSON: a schema for each output, a version in each, one unit for each number.

use super::deployment::BINARY;
use super::schema::{Schema, folder};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Commands with `--json`, by the names of their manual pages, and the schemas of their output.
const COMMANDS: [(&str, &[&str]); 22] = [
    ("certs", &["commands/certs.json"]),
    ("check", &["commands/check.json"]),
    ("config", &["commands/config.json"]),
    ("doctor", &["commands/doctor.json"]),
    ("explain", &["commands/explain.json"]),
    ("fabric-apply", &["gateway/fabric-change.json"]),
    ("fabric-sign", &["gateway/fabric-sign.json"]),
    ("init", &["commands/init.json"]),
    ("join", &["gateway/membership.json"]),
    ("leave", &["gateway/membership.json"]),
    ("plan", &["plan/plan.json"]),
    ("plan-batch", &["plan/batch.json"]),
    ("plan-efficiency", &["plan/efficiency.json"]),
    ("plan-traffic", &["plan/traffic.json"]),
    ("ports", &["commands/ports.json"]),
    ("quickstart", &["commands/quickstart.json"]),
    ("rate", &["gateway/rate.json"]),
    ("status", &["gateway/status.json"]),
    ("trace", &["commands/trace.json"]),
    ("wan-sim-lab-down", &["wan-sim/lab.json"]),
    ("wan-sim-lab-up", &["wan-sim/lab.json"]),
    ("wan-sim-relay", &["wan-sim/ready.json", "wan-sim/relay.json"]),
];

/// The start of the names of the manual pages of benchmarks, which have `--json` and one schema.
const BENCH: (&str, &str) = ("bench-", "commands/bench.json");

/// Schemas of what is printed without `--json`: at the status address, into files and logs, as answers,
/// and by the Python package.
const OTHERS: [&str; 9] = [
    "client/dump.json",
    "commands/dump.json",
    "lines/log.json",
    "commands/quickstart-python.json",
    "lines/trace.json",
    "gateway/dump.json",
    "gateway/fabric.json",
    "gateway/history.json",
    "wan-sim/control.json",
];

/// Schemas of lines: the first line of a trace has the version for all, and those of logs have none.
const LINES: [&str; 2] = ["lines/log.json", "lines/trace.json"];

/// Suffixes of keys by the unit of their numbers.
const SUFFIXES: [(&str, &str); 4] =
    [("_seconds", "seconds"), ("_bytes", "bytes"), ("_bits_per_second", "bit/s"), ("_ns", "ns")];
/// Units that are no base units: their keys are older than the rule. New keys have base units.
const OLD_KEYS: [&str; 8] = [
    "rtt_ms",
    "posted_ns",
    "ready_ns",
    "lateness_ns",
    "stalled_ns",
    "cpu_permille",
    "machine_permille",
    "card_tflops",
];

#[test]
fn every_number_of_a_schema_has_one_unit() {
    let mut numbers = 0;
    let names = schema_names();
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        let schema = Schema::load(&name);
        visit(schema.root(), &[], &mut |path, property| {
            let number = if property["type"] == "array" { &property["items"] } else { property };
            let types = number["type"].to_string();
            if !types.contains("number") && !types.contains("integer") {
                return;
            }
            numbers += 1;
            let key = path.last().expect("a key");
            let unit =
                number["unit"].as_str().unwrap_or_else(|| panic!("{name}: {path:?}: no unit"));
            for (suffix, expected) in SUFFIXES {
                assert!(!key.ends_with(suffix) || unit == expected, "{name}: {path:?}: {unit}");
            }
            let is_old = path.iter().any(|key| OLD_KEYS.contains(&&**key));
            let base = !matches!(unit, "ms" | "ns" | "permille" | "TFLOP/s");
            assert!(base || is_old, "{name}: {path:?}: {unit} is no base unit");
        });
    }
    assert!(numbers > 150, "only {numbers} numbers found");
}

#[test]
fn every_command_with_json_has_a_schema() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut man = Command::new(BINARY);
    assert!(man.args(["man", "--out"]).arg(folder.path()).status().expect("runs").success());
    let mut found = BTreeSet::new();
    for page in std::fs::read_dir(folder.path()).expect("readable").flatten() {
        let text = std::fs::read_to_string(page.path()).expect("readable");
        let name = page.file_name().to_string_lossy().into_owned();
        let name = name.trim_start_matches("landbridge-").trim_end_matches(".1").to_owned();
        let has_json = text.lines().any(|line| line.starts_with(r"\fB\-\-json\fR"));
        if has_json && !name.starts_with(BENCH.0) {
            found.insert(name);
        }
    }
    assert_eq!(found, COMMANDS.map(|(name, _)| name.to_owned()).into());
}

#[test]
fn every_schema_has_a_version_and_a_test() {
    let names = schema_names();
    let mut parts = BTreeSet::new();
    for name in &names {
        collect_references(Schema::load(name).root(), Path::new(name), &mut parts);
    }
    let tests = texts_of_tests();
    let mut outputs: BTreeSet<&str> = COMMANDS.iter().flat_map(|(_, all)| *all).copied().collect();
    outputs.extend(OTHERS);
    outputs.insert(BENCH.1);
    for name in &names {
        if !outputs.remove(&**name) {
            assert!(parts.contains(name), "{name}: nothing has this form");
            continue;
        }
        let quoted = format!("{name}\"");
        assert!(tests.iter().any(|text| text.contains(&quoted)), "{name}: no test loads it");
        let has_version = requires_version(Schema::load(name).root());
        assert_eq!(has_version, !LINES.contains(&&**name), "{name}: version");
    }
    assert!(outputs.is_empty(), "without a schema: {outputs:?}");
}

/// Returns whether all values of a schema have a version.
fn requires_version(schema: &Value) -> bool {
    match schema["anyOf"].as_array() {
        Some(ways) => ways.iter().all(requires_version),
        None => schema["required"].as_array().is_some_and(|keys| keys.contains(&"version".into())),
    }
}

/// Adds the schema files to which the schema file `name` refers, as paths from the folder of schemas.
fn collect_references(schema: &Value, name: &Path, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(rules) => {
            let target = rules.get("$ref").and_then(Value::as_str);
            if let Some(target) = target.filter(|target| !target.starts_with('#')) {
                found.insert(name.with_file_name(target).display().to_string());
            }
            rules.values().for_each(|inner| collect_references(inner, name, found));
        }
        Value::Array(all) => all.iter().for_each(|inner| collect_references(inner, name, found)),
        _ => {}
    }
}

/// Returns the sources of the tests that load schemas, without this file.
fn texts_of_tests() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = root.join("tests/observe");
    let files = std::fs::read_dir(&here).expect("readable").flatten().map(|entry| entry.path());
    let own = here.join("conventions.rs");
    let files = files.chain([root.join("../python/tests/test_quickstart.py")]);
    let read = |path| std::fs::read_to_string(path).expect("readable");
    files.filter(|path| *path != own).map(read).collect()
}

/// Visits all properties of a schema, with the keys above each.
fn visit(schema: &Value, path: &[String], seen: &mut dyn FnMut(&[String], &Value)) {
    match schema {
        Value::Object(rules) => {
            for (rule, inner) in rules {
                if rule != "properties" && rule != "$defs" {
                    visit(inner, path, seen);
                    continue;
                }
                for (key, property) in inner.as_object().expect("properties") {
                    let path = [path, std::slice::from_ref(key)].concat();
                    seen(&path, property);
                    visit(property, &path, seen);
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|inner| visit(inner, path, seen)),
        _ => {}
    }
}

/// Returns all schema files, as paths from their folder.
fn schema_names() -> Vec<String> {
    let mut names = Vec::new();
    for part in std::fs::read_dir(folder()).expect("readable").flatten() {
        if !part.path().is_dir() {
            continue;
        }
        for file in std::fs::read_dir(part.path()).expect("readable").flatten() {
            let (part, file) = (part.file_name(), file.file_name());
            names.push(format!("{}/{}", part.to_string_lossy(), file.to_string_lossy()));
        }
    }
    names.sort();
    names
}
