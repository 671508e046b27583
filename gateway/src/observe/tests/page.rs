use super::server::{example, example_fabric};
use crate::observe::history::History;
use crate::observe::problem_cause::{ProblemCause, ProblemReport};
use crate::observe::status::*;
use serde_json::Value;

/// The parts of the page's script.
const SCRIPTS: [&str; 4] = [
    include_str!("../status_page/model.js"),
    include_str!("../status_page/tables.js"),
    include_str!("../status_page/pictures.js"),
    include_str!("../status_page/main.js"),
];

/// Returns a report with one of each thing that a report can hold.
fn full_example() -> GatewayReport {
    let mut report = example();
    let between = ["east".to_owned(), "west".to_owned()];
    report.links.push(LinkReport {
        between: between.clone(),
        rate_bits_per_second: 500_000_000,
        scheduled_bits_per_second: None,
        operator_bits_per_second: None,
        operator_gateway: None,
        measured_bits_per_second: None,
        effective_bits_per_second: 500_000_000,
        rtt_ms: 80.0,
        loss: 0.001,
    });
    let why = "silent".to_owned();
    report.links_down.push(LinkOutageReport { between, seconds: 9.0, why, way_round: None });
    report.problems.push(ProblemReport {
        cause: ProblemCause::Link,
        blocks: false,
        subject: "link east-west".to_owned(),
        found: "down".to_owned(),
        remedy: None,
    });
    let (job, gateway) = ("train".to_owned(), "west-0".to_owned());
    report.job_differences.push(JobDifference {
        job,
        gateway,
        kind: JobDifferenceKind::OtherToken,
    });
    let (collectives, uncommitted) = (vec![7], vec![0]);
    report.jobs[0].draining = Some(DrainReport { seconds_left: 9.0, collectives, uncommitted });
    report
}

/// Returns the objects of a gateway by the names that variables of the script have.
fn objects() -> Vec<(&'static str, Value)> {
    let status = serde_json::to_value(full_example()).expect("JSON");
    let fabric = serde_json::to_value(example_fabric()).expect("JSON");
    let mut history = History::default();
    for uptime_seconds in [1.0, 2.0] {
        history.add_report(&GatewayReport { uptime_seconds, ..example() });
    }
    let history = serde_json::to_value(history.report()).expect("JSON");
    let job = status["jobs"][0].clone();
    vec![
        ("peer", status["peers"][0].clone()),
        ("link", status["links"][0].clone()),
        ("outage", status["links_down"][0].clone()),
        ("problem", status["problems"][0].clone()),
        ("difference", status["job_differences"][0].clone()),
        ("rank", job["ranks"][0].clone()),
        ("plan", job["plan"].clone()),
        ("totals", job["totals"].clone()),
        ("straggler", job["straggler"].clone()),
        ("collective", job["collectives"][0].clone()),
        ("commit", job["commits"][0].clone()),
        ("draining", job["draining"].clone()),
        ("job", job),
        ("status", status),
        ("region", fabric["regions"][0].clone()),
        ("member", fabric["regions"][0]["gateways"][0].clone()),
        ("edge", fabric["links"][0].clone()),
        ("fabric", fabric),
        ("sample", history["samples"][0].clone()),
        ("history", history),
    ]
}

/// Returns the keys that a script reads of the variable with this name.
fn keys_read(script: &str, variable: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let access = format!("{variable}.");
    let places = script.match_indices(&access).filter(|(at, _)| {
        let before = script[..*at].chars().next_back();
        // A key of another object may have the same name.
        before.is_none_or(|c| !is_name(c) && c != '.')
    });
    let key = |(at, _): (usize, &str)| {
        let rest = &script[at + access.len()..];
        rest.chars().take_while(|c| is_name(*c)).collect::<String>()
    };
    places.map(key).filter(|key| !key.is_empty()).collect()
}

/// Returns a script without its comments.
fn without_comments(script: &str) -> String {
    let code = |line: &&str| {
        let start = line.trim_start();
        !start.starts_with("//") && !start.starts_with("/*") && !start.starts_with('*')
    };
    script.lines().filter(code).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_reads_only_keys_that_a_gateway_gives() {
    let mut read = 0;
    for script in SCRIPTS.map(without_comments) {
        for (variable, object) in objects() {
            let object = object.as_object().expect(variable);
            for key in keys_read(&script, variable) {
                read += 1;
                assert!(object.contains_key(&key), "{variable}.{key} is not in the JSON");
            }
        }
    }
    assert!(read > 100, "only {read} keys found");
}

#[test]
fn keys_are_found_behind_their_variable_alone() {
    let script = "peer.rtt_ms + poll.peer.x; const p = peer.loss; speer.y; peers.map()";
    assert_eq!(keys_read(script, "peer"), ["rtt_ms", "loss"]);
    assert_eq!(without_comments("/** a.b */\nc.d // e\n  // f\n * g"), "c.d // e");
}
