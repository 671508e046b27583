//! Alert rules and the dashboard in `configs` fit the metrics that a gateway exports.

#[path = "../../wan-sim/tests/skipping/mod.rs"]
mod skipping;

use gateway::observe::metrics::MetricsRegistry;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of all that a query may ask for: metrics, and the parts of histograms.
fn exported_names() -> BTreeSet<String> {
    let metrics = MetricsRegistry::new();
    let names = metrics.described().iter().flat_map(|metric| {
        let name = metric.query_name();
        match metric.kind.as_str() {
            "histogram" => ["bucket", "sum", "count"].map(|part| format!("{name}_{part}")).to_vec(),
            _ => vec![name],
        }
    });
    names.collect()
}

/// Returns the path of a file of the project.
fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Returns the text of a file of the project.
fn read(name: &str) -> String {
    std::fs::read_to_string(path_of(name)).expect("readable")
}

/// Returns the metrics that a text names: words of the forms that gateways or rules export.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_part(c));
    words.filter(|word| word.contains("landbridge_") || word.starts_with("process_")).collect()
}

/// Returns what stands behind `key` in the lines of a text, without quotes.
fn values_of<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let values = text.lines().filter_map(|line| line.trim_start().strip_prefix(key));
    values.map(|value| value.trim().trim_matches('"')).collect()
}

/// Returns the queries of a dashboard: all texts under the keys `expr` and `query`.
fn queries_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                match inner {
                    Value::String(text) if key == "expr" || key == "query" => {
                        found.push(text.clone());
                    }
                    _ => queries_in(inner, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| queries_in(item, found)),
        _ => {}
    }
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_exist() {
    let rules = read("configs/prometheus/alerts.yml");
    let mut known = exported_names();
    known.extend(values_of(&rules, "- record: ").into_iter().map(str::to_owned));
    let dashboard: Value =
        serde_json::from_str(&read("configs/grafana/landbridge.json")).expect("JSON");
    let mut queries = Vec::new();
    queries_in(&dashboard, &mut queries);
    assert!(queries.len() > 20, "{} queries", queries.len());
    let texts = [rules, read("configs/prometheus/tests.yml"), queries.join("\n")];
    for text in &texts {
        let named = metrics_in(text);
        assert!(named.len() > 20, "{named:?}");
        let unknown: Vec<_> = named.iter().filter(|name| !known.contains(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_fault() {
    let rules = read("configs/prometheus/alerts.yml");
    let (runbook, tests) =
        (read("docs/operations/runbook.md"), read("configs/prometheus/tests.yml"));
    let alerts = values_of(&rules, "- alert: ");
    assert!(alerts.len() > 20, "{alerts:?}");
    for alert in &alerts {
        assert!(runbook.contains(&format!("\n## {alert}\n")), "no section for {alert}");
        let anchor = format!("docs/operations/runbook.md#{}", alert.to_lowercase());
        assert!(values_of(&rules, "runbook: ").contains(&&*anchor), "no line for {alert}");
        let fires = format!("exp_samples: [{{labels: '{{alertname=\"{alert}\"}}', value: 1}}]");
        assert!(tests.contains(&fires), "no fault for {alert}");
    }
    let sections = values_of(&runbook, "## ");
    let orphans: Vec<_> = sections.iter().filter(|name| !alerts.contains(*name)).collect();
    assert!(orphans.is_empty(), "sections without an alert: {orphans:?}");
}

/// Healthy hours raise no alert, and each fault raises its own alone.
#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    let folder = path_of("configs/prometheus");
    for arguments in [
        ["check", "config", "scrape.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "tests.yml"],
    ] {
        let output = match Command::new("promtool").args(arguments).current_dir(&folder).output() {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return skipping::skip("promtool is missing: apt-get install prometheus");
            }
            Err(error) => panic!("promtool: {error}"),
        };
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
    }
}
