//! Tests of the commands `plan`, `check` on plans, and their simulations.

use super::{code, configs, json, landbridge};

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
fn a_send_without_a_link_is_planned_over_gateways_between() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("fabric.toml").display().to_string();
    let example = std::fs::read_to_string(configs().join("three-regions/fabric.toml"));
    let example = example.expect("an example");
    let (two_links, _) = example.split_once("[link.oslo-west]").expect("the last link");
    std::fs::write(&path, two_links).expect("written");
    let arguments = ["plan", "--fabric", &path, "--op", "send", "--size", "64MiB", "--json"];
    for (ends, ways, gateways) in [
        (
            ["west-0", "oslo-0"],
            &["west east", "east oslo"][..],
            &["east-0", "oslo-0", "west-0"][..],
        ),
        (["oslo-0", "east-2"], &["oslo east"], &["east-0", "east-2", "oslo-0"]),
        (["east-2", "west-0"], &["east west"], &["east-0", "east-2", "west-0"]),
    ] {
        let output = landbridge(&[&arguments[..], &["--root", ends[0], "--to", ends[1]]].concat());
        assert_eq!(code(&output), 0, "{output:?}");
        let plan = json(&output);
        let links = plan["link_bytes"].as_array().expect("a list").iter();
        let loaded: Vec<String> = links
            .filter(|link| link["bytes"].as_u64() > Some(0))
            .map(|link| {
                assert_eq!(link["bytes"].as_u64(), Some(64 << 20), "{link}");
                let end = |key: &str| link[key].as_str().expect("a region").to_owned();
                format!("{} {}", end("from"), end("to"))
            })
            .collect();
        assert_eq!(loaded.len(), ways.len(), "{loaded:?}");
        assert!(ways.iter().all(|way| loaded.iter().any(|link| link == way)), "{loaded:?}");
        let shares = plan["shares"].as_object().expect("by gateway");
        assert_eq!(shares.keys().collect::<Vec<_>>(), gateways);
        let (predicted, bound) = (&plan["predicted_seconds"], &plan["bound_seconds"]);
        let eta = bound.as_f64().expect("a number") / predicted.as_f64().expect("a number");
        assert!((0.5..=1.0).contains(&eta), "{ends:?}: {eta}");
    }
}

#[test]
fn a_picture_has_the_trees_of_its_operation() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let svg = directory.path().join("plan.svg").display().to_string();
    let fabric = configs().join("three-regions/fabric.toml").display().to_string();
    // Below each tree: the part of the bytes that take it. Of the ranks 3, 3 and 2 are in east.
    for (more, roots, labels) in [
        (&["--op", "all-gather"][..], 5, &["28.6 %, results", "14.3 %, results"][..]),
        (&["--op", "reduce-scatter"], 5, &["28.6 %, partials", "14.3 %, partials"]),
        (&["--op", "scatter", "--root", "oslo-0"], 1, &["100 %, results"]),
        (&["--op", "all-to-all"], 5, &["28.6 %, results"]),
        (&["--op", "send", "--root", "west-0", "--to", "oslo-0"], 1, &["100 %, results"]),
        (&["--op", "broadcast"], 4, &["%, results", "up to 4 MiB"]),
        (&["--op", "barrier"], 1, &["up to 4 MiB"]),
    ] {
        let arguments = ["plan", "--fabric", &fabric, "--svg", &svg];
        let output = landbridge(&[&arguments[..], more].concat());
        assert_eq!(code(&output), 0, "{more:?}");
        let picture = std::fs::read_to_string(&svg).expect("written");
        for label in labels {
            assert!(picture.contains(&format!("{label}</text>")), "{more:?}: {label}: {picture}");
        }
        let texts = picture.split("<text").filter(|text| {
            text.contains("results<") || text.contains("partials<") || text.contains(">up to")
        });
        assert_eq!(texts.count(), roots, "{more:?}: {picture}");
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
