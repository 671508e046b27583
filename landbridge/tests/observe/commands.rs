//! The JSON of every command against its schema.

use super::deployment::{BINARY, Deployment, Team};
use super::schema::Schema;
use super::{LAYOUT, east_status, get, json, running};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the program to its end.
fn landbridge(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().expect("runs")
}

/// Returns the path of an example.
fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(name).display().to_string()
}

/// Runs a command and compares its JSON with a schema.
fn check(schema: &str, arguments: &[&str]) -> Value {
    let report = json(&landbridge(arguments));
    Schema::load(schema).assert_valid(&report);
    report
}

#[test]
fn commands_on_files_print_what_their_schemas_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("keys").display().to_string();
    let (fabric, east) = (example("two-region/fabric.toml"), example("two-region/east.toml"));
    let three = example("three-regions/fabric.toml");
    check("commands/check.json", &["check", "--no-secrets", &fabric, &east, "--json"]);
    let faulty = check("commands/check.json", &["check", &fabric, "nowhere.toml", "--json"]);
    assert_eq!(faulty["faults"].as_array().map(Vec::len), Some(1), "{faulty}");
    let earlier = folder.path().join("earlier.toml").display().to_string();
    let text = std::fs::read_to_string(&fabric).expect("an example");
    let text = text.replace("rtt = ", "controller = \"link-share\"\nrtt = ");
    std::fs::write(&earlier, text).expect("written");
    let fixed = check("commands/check.json", &["check", &earlier, "--fix", "--dry-run", "--json"]);
    assert!(
        fixed["faults"][0]["replacement"] == fixed["fixed"][0]["changes"][0]["after"],
        "{fixed}"
    );
    check("commands/config.json", &["config", "--config", &east, "--json"]);
    check("commands/certs.json", &["certs", "--fabric", &fabric, "--out", &out, "--json"]);
    let new = folder.path().join("new").display().to_string();
    let sites = ["init", "--region", "east=192.0.2.10", "--region", "west=198.51.100.7"];
    let rest = ["--ranks", "8", "--port-rate", "1Gbit/s", "--link", "east-west=80ms"];
    let made = [&sites[..], &rest, &["--out", &new, "--json"]].concat();
    assert_eq!(check("commands/init.json", &made)["regions"][1]["first_rank"], 8);
    let plan = ["plan", "--fabric", &three, "--size", "1MiB", "--json"];
    check("plan/plan.json", &plan);
    check("plan/plan.json", &[&plan[..], &["--simulate"]].concat());
    for operation in [
        "reduce",
        "broadcast",
        "all-gather",
        "reduce-scatter",
        "gather",
        "scatter",
        "all-to-all",
        "send",
    ] {
        let plan = ["plan", "--fabric", &three, "--op", operation, "--json"];
        let report = check("plan/plan.json", &plan);
        assert_eq!(report["operation"], operation);
        let eta = report["eta"].as_f64().expect("a number");
        assert!(eta > 0.2 && eta <= 1.0, "{operation}: eta {eta}");
        let shares = report["shares"].as_object().expect("by gateway");
        let sum: f64 = shares.values().filter_map(Value::as_f64).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{operation}: {shares:?}");
    }
    let batch = ["plan", "batch", "--fabric", &three, "--global-batch", "64", "--json"];
    check("plan/batch.json", &batch);
    check("plan/traffic.json", &["plan", "traffic", "--json"]);
    let efficiency = ["plan", "efficiency", "--model", "llama3-8b", "--json"];
    let one_point = ["--distances", "100", "--convergence", "16"];
    check("plan/efficiency.json", &[&efficiency[..], &one_point].concat());
}

#[test]
fn commands_at_gateways_print_what_their_schemas_say() {
    let deployment = running();
    let east = deployment.path("east.toml").display().to_string();
    check("gateway/rate.json", &["rate", "east-west", "10 Mbit/s", "--config", &east, "--json"]);
    check("gateway/rate.json", &["rate", "east-west", "scheduled", "--config", &east, "--json"]);
    let left = Command::new(BINARY).args(["leave", "west", "--config", &east]).output();
    assert_eq!(left.expect("runs").status.code(), Some(64), "the quorum is all regions");
    check("commands/doctor.json", &["doctor", "--config", &east, "--json"]);
    let ports = check("commands/ports.json", &["ports", "--config", &east, "--json"]);
    // Without a relay, west is where the fabric says.
    assert_eq!(deployment.west, deployment.west_wan);
    assert_eq!(ports["rules"][0]["destination_ports"][0], deployment.west_wan.port(), "{ports}");
    let status = check("gateway/status.json", &["status", "--config", &east, "--json"]);
    let schema = Schema::load("gateway/status.json");
    let (_, body) = get(east_status(&deployment), "/status", "");
    let served: Value = serde_json::from_str(&body).expect("JSON");
    schema.assert_valid(&served);
    assert_eq!(served["gateway"], status["gateway"]);
    for (path, schema) in [
        ("/history", "gateway/history.json"),
        ("/fabric", "gateway/fabric.json"),
        ("/dump", "gateway/dump.json"),
    ] {
        let (_, body) = get(east_status(&deployment), path, "");
        let served: Value = serde_json::from_str(&body).expect("JSON");
        Schema::load(schema).assert_valid(&served);
    }
    drop(deployment);
    // A gateway without its peer has problems, and lanes that are missing.
    let mut alone = Deployment::new(&LAYOUT);
    alone.run_gateway("east");
    let (_, body) = get(east_status(&alone), "/status", "");
    let served: Value = serde_json::from_str(&body).expect("JSON");
    schema.assert_valid(&served);
    assert!(served["problems"].as_array().is_some_and(|all| !all.is_empty()), "{served}");
}

#[test]
fn a_status_of_jobs_at_work_fits_its_schema() {
    let deployment = running();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[1, 20, 300], 1 << 17).await.expect("a sum");
        let (_, body) = get(east_status(&deployment), "/status", "");
        let served: Value = serde_json::from_str(&body).expect("JSON");
        Schema::load("gateway/status.json").assert_valid(&served);
        assert_eq!(served["jobs"][0]["epoch"], team.epoch().0, "{served}");
        let totals = &served["jobs"][0]["totals"];
        assert_eq!((&totals["completed"], &totals["bytes"]), (&1.into(), &(1 << 20).into()));
        let seconds = |key: &str| totals[key].as_f64().expect("a number");
        assert!(seconds("seconds") > 0.0 && seconds("bound_seconds") > 0.0, "{totals}");
        let (_, body) = get(east_status(&deployment), "/dump", "");
        let dump: Value = serde_json::from_str(&body).expect("JSON");
        Schema::load("gateway/dump.json").assert_valid(&dump);
        let flight = &dump["flights"][0]["collectives"][0];
        assert_eq!((&flight["bytes"], &flight["end"]["code"]), (&(1 << 20).into(), &Value::Null));
        let posts = flight["posts"].as_array().expect("posts");
        let ranks: Vec<_> = posts.iter().map(|post| &post["rank"]).collect();
        assert_eq!(ranks, [0, 1], "{flight}");
    });
}

#[test]
fn a_benchmark_prints_what_its_schema_says() {
    let deployment = running();
    let rank = |rank: u32| {
        let region = if rank < LAYOUT.east { "east" } else { "west" };
        let mut line = Command::new(BINARY);
        line.args(["bench", "all-reduce", "--json", "--iterations", "1", "--size", "8 KiB"])
            .args(["--rank", &rank.to_string(), "--config"])
            .arg(deployment.path(&format!("{region}.toml")))
            .stdout(Stdio::piped());
        line.spawn().expect("starts")
    };
    let ranks: Vec<_> = (0..LAYOUT.east + LAYOUT.west).map(rank).collect();
    for rank in ranks {
        let measured = json(&rank.wait_with_output().expect("ends"));
        Schema::load("commands/bench.json").assert_valid(&measured);
    }
}

#[test]
fn lines_of_trace_and_log_are_as_their_schemas_say() {
    let mut deployment = Deployment::new(&LAYOUT);
    let trace = deployment.path("east.jsonl");
    let mut east = Command::new("sh");
    east.args(["-c", "exec \"$0\" \"$@\" --trace \"$TRACE\"", BINARY]).env("TRACE", &trace);
    east.env("LANDBRIDGE_LOG_FORMAT", "json");
    deployment.run_gateway_by("east", east);
    deployment.run_gateway("west");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[1, 20, 300], 1 << 17).await.expect("a sum");
    });
    let mut east = deployment.gateways.remove(0);
    let pid = rustix::process::Pid::from_child(&east.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    assert!(east.process.wait().expect("ends").success());
    let text = std::fs::read_to_string(&trace).expect("a trace");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    lines.iter().for_each(|line| Schema::load("lines/trace.json").assert_valid(line));
    assert_eq!((&lines[0]["event"], &lines[0]["version"]), (&"begin".into(), &1.into()));
    for event in ["lane", "link"] {
        assert!(lines.iter().any(|line| line["event"] == event), "no {event} in {text}");
    }
    let summary = check("commands/trace.json", &["trace", &trace.display().to_string(), "--json"]);
    assert_eq!(summary["gateway"], "east-0", "{summary}");
    let log = east.log.text();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.for_each(|line| Schema::load("lines/log.json").assert_valid(&line));
    assert!(log.contains("\"peer\""), "{log}");
}

#[test]
fn a_quickstart_prints_what_its_schema_says() {
    let small = ["--size", "1 MiB", "--steps", "2", "--iterations", "1", "--ranks", "1,1"];
    check("commands/quickstart.json", &[&["quickstart", "--json"][..], &small].concat());
}

#[test]
fn a_region_that_leaves_is_printed_as_the_schema_says() {
    let mut deployment = Deployment::new(&LAYOUT);
    let fabric = deployment.path("fabric.toml");
    let text = std::fs::read_to_string(&fabric).expect("a file");
    std::fs::write(&fabric, format!("quorum = [\"east\"]\n{text}")).expect("written");
    deployment.run_gateways();
    let east = deployment.path("east.toml").display().to_string();
    let status = || check("gateway/status.json", &["status", "--config", &east, "--json"]);
    while status()["membership"]["term"].is_null() {}
    let left = check("gateway/membership.json", &["leave", "west", "--config", &east, "--json"]);
    assert_eq!(left["left"], serde_json::json!(["west"]), "{left}");
}

#[test]
fn an_applied_fabric_is_printed_as_schemas_say() {
    let mut deployment = Deployment::new(&LAYOUT);
    let file = deployment.path("fabric.toml");
    let text = format!("quorum = [\"east\"]\n{}", std::fs::read_to_string(&file).expect("a file"));
    std::fs::write(&file, &text).expect("written");
    deployment.run_gateways();
    let [east, keys, changed] = ["east.toml", "keys", "changed.toml"]
        .map(|name| deployment.path(name).display().to_string());
    let slower = format!("version = 1\n{}", text.replace("rtt = \"", "rtt = \"1"));
    std::fs::write(&changed, slower).expect("written");
    let sign = ["fabric", "sign", &changed, "--ca", &keys, "--json"];
    let signed = check("gateway/fabric-sign.json", &sign);
    assert_eq!(signed["fabric_version"], 1, "{signed}");
    while
        check("gateway/status.json", &["status", "--config", &east, "--json"])["membership"]["term"]
            .is_null()
    {}
    let apply = ["fabric", "apply", &changed, "--within", "1 s", "--config", &east, "--json"];
    let applied = check("gateway/fabric-change.json", &apply);
    assert_eq!(applied["fabric"]["version"], 1, "{applied}");
}

#[test]
fn a_help_of_no_columns_is_as_without_them() {
    let help = |columns: Option<&str>| {
        let mut command = Command::new(BINARY);
        command.args(["doctor", "--help"]).env_remove("COLUMNS").stdin(Stdio::null());
        columns.map(|columns| command.env("COLUMNS", columns));
        String::from_utf8(command.output().expect("runs").stdout).expect("text")
    };
    let usual = help(None);
    for columns in ["0", "", "wide", "-5", "200", "99999999999"] {
        assert_eq!(help(Some(columns)), usual, "COLUMNS={columns}");
    }
    let narrow = help(Some("40"));
    assert_ne!(narrow, usual);
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
}

#[test]
fn a_file_above_its_limit_names_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = format!("{}/../configs/two-region/fabric.toml", env!("CARGO_MANIFEST_DIR"));
    let out = folder.path().join("out");
    for arguments in [&["certs", "--fabric", &fabric][..], &["man"]] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", BINARY]).args(arguments);
        let output = command.arg("--out").arg(&out).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains("the limit is 0 B (ulimit -f"), "{said}");
    }
}
