use crate::observe::metrics::{MetricsRegistry, PeerPlace, metrics_page};
use crate::observe::problem_cause::ProblemCause;
use crate::observe::readiness::judge_readiness;
use crate::observe::status::{LinkReport, StragglerReport};
use crate::observe::tests::server::example;
use crate::wan::connect::tls::CertificateExpiry;
use hier_collectives::ids::RankId;
use hier_collectives::post::FailureCode;
use hier_collectives::session::Discard;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use units::Span;

/// The page in docs that is made of the descriptions.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations/metrics.md");

/// 20,000 series: a gateway with 1,000 jobs may serve at most so many. A Prometheus server takes millions.
const SERIES_MAX: usize = 20_000;

/// Returns a rank that delays its job.
fn straggling_rank() -> StragglerReport {
    StragglerReport {
        kind: "rank".to_owned(),
        name: "7".to_owned(),
        behind_seconds: 0.5,
        collectives: 3,
        since_seconds: 2.0,
    }
}

/// Returns the place of a peer in region west.
fn west() -> PeerPlace<'static> {
    PeerPlace { gateway: "west-0", region: "west", link: "east-west" }
}

/// Returns a registry in which every metric has a value.
fn filled() -> MetricsRegistry {
    let metrics = MetricsRegistry::new();
    let peer = metrics.peer_metrics(west());
    peer.sent_bytes.inc_by(5);
    metrics.peer_metrics(west()).sent_bytes.inc_by(2);
    peer.received_bytes.inc();
    peer.resent_bytes.inc();
    peer.parity_bytes.inc();
    peer.restored_segments.inc();
    peer.sent_packets.inc_by(4);
    peer.lost_packets.inc();
    peer.loss_ratio.set(0.5);
    peer.loss_alarm.set(1);
    peer.loss_alarms.inc();
    peer.lanes_up.set(1);
    peer.lanes_missing.set(3);
    peer.rtt_seconds.set(0.08);
    let job = metrics.job_metrics("train");
    job.epoch.set(2);
    job.set_awaited_seconds(RankId(3), Some(1.5));
    job.set_awaited_seconds(RankId(4), Some(1.5));
    job.set_awaited_seconds(RankId(4), None);
    let mut straggler = straggling_rank();
    job.set_straggler(Some(&straggler));
    job.add_straggler_loss(&straggler, Span::from_ms(250));
    job.add_straggler_loss(&straggler, Span::from_ms(500));
    (straggler.kind, straggler.name) = ("region".to_owned(), "west".to_owned());
    job.set_straggler(Some(&straggler));
    job.draining.set(1);
    job.waiting_commits.set(2);
    job.commit_awaited_seconds.set(2.5);
    job.set_scratch_bytes(9);
    job.set_scratch_bytes(4);
    job.count_completed("sum", 1 << 20, Span::from_ms(500), Some(0.85));
    job.count_failed(Some("sum"), FailureCode::Disagreement);
    job.count_failed(None, FailureCode::RankLost);
    job.count_epoch_end(FailureCode::RegionLost);
    metrics.segments.inc();
    metrics.lost_log_lines.inc_by(3);
    metrics.dropped_segments(Discard::Epoch).inc();
    metrics.link_down("east-west").set(1);
    metrics.lane_metrics(1, SocketAddr::from(([10, 0, 0, 1], 7401))).send_calls.inc();
    metrics.set_certificate_expiry(CertificateExpiry { own: Some(1_800_000_000), ca: None });
    let mut report = example();
    report.links = vec![LinkReport {
        between: ["east".to_owned(), "west".to_owned()],
        rate_bits_per_second: 8_000_000,
        scheduled_bits_per_second: None,
        operator_bits_per_second: Some(4_000_000),
        operator_gateway: Some("west-0".to_owned()),
        measured_bits_per_second: None,
        effective_bits_per_second: 4_000_000,
        rtt_ms: 80.0,
        loss: 0.0,
    }];
    report.peers[0].loss_alarm = true;
    report.problems = judge_readiness(&report);
    metrics.follow_report(&report);
    metrics.set_socket_problem(true);
    metrics
}

#[test]
fn metrics_have_the_names_that_dashboards_use() {
    let text = filled().render();
    for line in [
        "landbridge_wan_payload_bytes_total{peer=\"west-0\",direction=\"sent\"} 7",
        "landbridge_wan_payload_bytes_total{peer=\"west-0\",direction=\"received\"} 1",
        "landbridge_wan_resent_bytes_total{peer=\"west-0\"} 1",
        "landbridge_wan_parity_bytes_total{peer=\"west-0\"} 1",
        "landbridge_restored_segments_total{peer=\"west-0\"} 1",
        "landbridge_sent_packets_total{peer=\"west-0\"} 4",
        "landbridge_lost_packets_total{peer=\"west-0\"} 1",
        "landbridge_loss_ratio{peer=\"west-0\"} 0.5",
        "landbridge_loss_alarm{peer=\"west-0\"} 1",
        "landbridge_loss_alarms_total{peer=\"west-0\"} 1",
        "landbridge_lanes_up{peer=\"west-0\"} 1",
        "landbridge_lanes_missing{peer=\"west-0\"} 3",
        "landbridge_peer_info{peer=\"west-0\",region=\"west\",link=\"east-west\"} 1",
        "landbridge_ready 1",
        "landbridge_job_differences 0",
        "landbridge_problems{cause=\"loss\"} 1",
        "landbridge_problems{cause=\"socket\"} 1",
        "landbridge_problems{cause=\"peer\"} 0",
        "landbridge_peer_rtt_seconds{peer=\"west-0\"} 0.08",
        "landbridge_epoch{job=\"train\"} 2",
        "landbridge_ranks{job=\"train\"} 1",
        "landbridge_ranks_attached{job=\"train\"} 1",
        "landbridge_oldest_collective_seconds{job=\"train\"} 1.5",
        "landbridge_awaited_seconds{job=\"train\",rank=\"3\"} 1.5",
        "landbridge_straggler_behind_seconds{job=\"train\",kind=\"region\",name=\"west\"} 0.5",
        "landbridge_straggler_lost_seconds_total{job=\"train\",kind=\"rank\",name=\"7\"} 0.75",
        "landbridge_draining{job=\"train\"} 1",
        "landbridge_waiting_commits{job=\"train\"} 2",
        "landbridge_commit_awaited_seconds{job=\"train\"} 2.5",
        "landbridge_scratch_bytes{job=\"train\"} 4",
        "landbridge_scratch_peak_bytes{job=\"train\"} 9",
        "landbridge_scratch_max_bytes{job=\"train\"} 9",
        "landbridge_segments_total 1",
        "landbridge_lost_log_lines_total 3",
        "landbridge_collectives_total{job=\"train\",op=\"sum\",outcome=\"completed\"} 1",
        "landbridge_collectives_total{job=\"train\",op=\"sum\",outcome=\"disagreed\"} 1",
        "landbridge_collectives_total{job=\"train\",op=\"unknown\",outcome=\"failed\"} 1",
        "landbridge_collective_failures_total{job=\"train\",code=\"rank_lost\"} 1",
        "landbridge_epoch_ends_total{job=\"train\",code=\"region_lost\"} 1",
        "landbridge_epoch_ends_total{job=\"train\",code=\"stalled\"} 0",
        "landbridge_collective_bytes_total{job=\"train\",op=\"sum\"} 1048576",
        "landbridge_collective_seconds_count{job=\"train\",op=\"sum\"} 1",
        "landbridge_collective_efficiency_ratio_sum{job=\"train\",op=\"sum\"} 0.85",
        "landbridge_dropped_segments_total{reason=\"other_epoch\"} 1",
        "landbridge_link_down{link=\"east-west\"} 1",
        "landbridge_link_capacity_bytes_per_second{link=\"east-west\"} 1000000.0",
        "landbridge_link_limit_bytes_per_second{link=\"east-west\"} 500000.0",
        "landbridge_link_measured_bytes_per_second{link=\"east-west\"} 1000000.0",
        "landbridge_certificate_expiry_timestamp_seconds{certificate=\"own\"} 1800000000.0",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    assert!(text.contains("landbridge_build_info{version=\""), "{text}");
    assert!(!text.contains("name=\"7\"} 0.5"), "the straggler of before is shown");
}

/// Returns the names of the labels of each metric in OpenMetrics text, by the metric's name with
/// its suffixes. A histogram's `le` is left out.
fn labels_of_samples(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once(['{', ' ']).expect("a sample");
        let labels = labels.split("=\"").filter_map(|part| {
            let label = part.rsplit(['{', ',', '"']).next()?;
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            (!label.is_empty() && label != "le" && label.chars().all(is_name))
                .then(|| label.to_owned())
        });
        found.entry(name.to_owned()).or_default().extend(labels);
    }
    found
}

#[test]
fn descriptions_name_type_unit_and_labels_as_exported() {
    let metrics = filled();
    let text = metrics.render();
    let samples = labels_of_samples(&text);
    for metric in metrics.described() {
        let name = metric.description.name;
        let kind = format!("# TYPE {name} {}", metric.kind.as_str());
        assert!(text.lines().any(|line| line == kind), "no `{kind}` in\n{text}");
        let unit = metric.description.unit;
        if !unit.is_empty() {
            assert!(name.ends_with(&format!("_{unit}")), "{name}: {unit}");
            let line = format!("# UNIT {name} {unit}");
            assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
        }
        let sample = match metric.kind.as_str() {
            "histogram" => format!("{name}_count"),
            _ => metric.query_name(),
        };
        let described = metric.description.labels.iter().map(|label| (*label).to_owned()).collect();
        assert_eq!(samples.get(&sample), Some(&described), "{name}");
    }
    let types = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(types, metrics.described().len(), "each is described once");
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    let metrics = MetricsRegistry::new();
    for metric in metrics.described() {
        let (name, unit) = (metric.description.name, metric.description.unit);
        assert!(name.starts_with("landbridge_") || name.starts_with("process_"), "{name}");
        let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.chars().all(is_plain), "{name}");
        assert!(
            ["", "bytes", "seconds", "ratio", "bytes_per_second"].contains(&unit),
            "{name} has {unit}, no base unit"
        );
        for suffix in ["_total", "_count", "_sum", "_bucket", "_avg", "_min", "_bits", "_ms"] {
            assert!(!name.ends_with(suffix), "{name}");
        }
        for text in [metric.description.meaning, metric.description.advice] {
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('|'), "{name}");
        }
    }
}

#[test]
fn the_page_of_metrics_equals_the_generated_one() {
    let page = std::fs::read_to_string(PAGE).expect("docs/operations/metrics.md");
    assert!(
        page == metrics_page(),
        "run: cargo run -p gateway --example metrics > docs/operations/metrics.md"
    );
}

#[test]
fn a_thousand_jobs_have_bounded_series() {
    let metrics = MetricsRegistry::new();
    let jobs = 1000;
    for number in 0..jobs {
        let job = metrics.job_metrics(&format!("job-{number:04}"));
        job.epoch.set(if number == 999 { 0 } else { 2 });
        job.waiting_commits.set(1);
        for rank in 0..100 {
            job.set_awaited_seconds(RankId(rank), Some(f64::from(rank)));
            let name = rank.to_string();
            let straggler = StragglerReport { name, ..straggling_rank() };
            job.set_straggler(Some(&straggler));
            job.add_straggler_loss(&straggler, Span::from_ms(10));
        }
        for op in ["sum", "mean", "barrier"] {
            job.count_completed(op, 10, Span::from_ms(5), Some(0.5));
        }
        for code in FailureCode::ALL {
            job.count_failed(Some("sum"), code);
        }
    }
    let text = metrics.render();
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < SERIES_MAX, "{series} series");
    // The first 64 jobs have labels of their own; the 936 others count as one.
    for line in [
        "landbridge_collectives_total{job=\"job-0063\",op=\"sum\",outcome=\"completed\"} 1",
        "landbridge_collectives_total{job=\"other\",op=\"sum\",outcome=\"completed\"} 936",
        "landbridge_collective_seconds_count{job=\"other\",op=\"mean\"} 936",
        "landbridge_waiting_commits{job=\"other\"} 936",
        "landbridge_epoch{job=\"job-0000\"} 2",
        "landbridge_epoch{job=\"other\"} 0",
        "landbridge_awaited_seconds{job=\"job-0000\",rank=\"15\"} 15",
        "landbridge_awaited_seconds{job=\"job-0000\",rank=\"other\"} 99",
        "landbridge_awaited_seconds{job=\"other\",rank=\"other\"} 99",
        "landbridge_straggler_behind_seconds{job=\"other\",kind=\"rank\",name=\"other\"} 0.5",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    assert!(!text.contains("job-0064"), "beyond the limit");
    let name_15 =
        "landbridge_straggler_lost_seconds_total{job=\"job-0001\",kind=\"rank\",name=\"15\"}";
    assert!(text.contains(name_15) && !text.contains("kind=\"rank\",name=\"16\""), "{text}");
    assert_eq!(metrics.job_metrics("job-0999").epoch.get(), 0, "the same metrics again");
}

#[test]
fn metrics_of_the_process_are_read_at_each_scrape() {
    let metrics = MetricsRegistry::new();
    let read = |name: &str| -> f64 {
        let text = metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    };
    assert!(read("process_resident_memory_bytes") > 1e6);
    assert!(read("process_threads") >= 1.0);
    assert!(read("process_start_time_seconds") > 1.6e9);
    assert!(read("process_max_fds") >= read("process_open_fds"));
    assert!(read("process_open_fds") >= 3.0);
    let before = read("process_cpu_seconds_total");
    assert!(read("process_cpu_seconds_total") >= before);
}

#[test]
fn every_cause_has_the_name_that_json_has() {
    for cause in ProblemCause::ALL {
        let json = serde_json::to_string(&cause).expect("JSON");
        assert_eq!(json, format!("\"{}\"", cause.name()));
    }
    let names: BTreeSet<&str> = ProblemCause::ALL.map(ProblemCause::name).into();
    assert_eq!(names.len(), ProblemCause::ALL.len());
}

#[test]
fn a_lane_has_counters_of_its_packets_and_calls() {
    let metrics = MetricsRegistry::new();
    let lane = metrics.lane_metrics(1, SocketAddr::from(([10, 0, 0, 1], 7401)));
    lane.send_calls.inc();
    lane.sent_packets.inc_by(40);
    let text = metrics.render();
    for line in [
        "landbridge_udp_send_calls_total{lane=\"1\",address=\"10.0.0.1:7401\"} 1",
        "landbridge_udp_sent_packets_total{lane=\"1\",address=\"10.0.0.1:7401\"} 40",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}
