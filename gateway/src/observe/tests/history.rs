use super::server::example;
use crate::observe::history::{History, HistorySample};
use crate::observe::problem_cause::{ProblemCause, ProblemReport};
use crate::observe::status::GatewayReport;
use crate::observe::versioned::Versioned;

/// Returns the report of a gateway after some seconds, in which it did so many times the same.
fn after(seconds: f64, times: u64) -> GatewayReport {
    let mut report = example();
    report.uptime_seconds = seconds;
    let peer = &mut report.peers[0];
    (peer.sent_bytes, peer.received_bytes, peer.lost_packets) = (100 * times, 50 * times, times);
    let totals = &mut report.jobs[0].totals;
    (totals.completed, totals.failed, totals.bytes) = (2 * times, times, 1000 * times);
    (totals.seconds, totals.bound_seconds) = (times as f64, 0.5 * times as f64);
    report
}

/// Returns the samples of a history, as its JSON has them.
fn samples(history: &History) -> Vec<serde_json::Value> {
    let json = Versioned::new(history.report()).to_json();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["version"], &json["interval_seconds"]), (&1.into(), &10.0.into()), "{json}");
    json["samples"].as_array().expect("a list").clone()
}

#[test]
fn a_sample_is_the_difference_of_two_reports() {
    let mut history = History::default();
    history.add_report(&after(5.0, 1));
    assert!(samples(&history).is_empty(), "one report shows no difference");
    let mut report = after(15.0, 4);
    report.problems = vec![ProblemReport {
        cause: ProblemCause::Peer,
        blocks: true,
        subject: "gateway west-0".to_owned(),
        found: "no lane".to_owned(),
        remedy: None,
    }];
    history.add_report(&report);
    let expected = HistorySample {
        at_seconds: 15.0,
        seconds: 10.0,
        sent_bytes: 300,
        received_bytes: 150,
        lost_packets: 3,
        completed: 6,
        failed: 3,
        collective_bytes: 3000,
        collective_seconds: 3.0,
        bound_seconds: 1.5,
        problems: 1,
        ready: false,
    };
    assert_eq!(samples(&history), [serde_json::to_value(expected).expect("JSON")]);
}

#[test]
fn sums_are_over_all_peers_and_jobs() {
    let mut history = History::default();
    let twice = |seconds, times| {
        let mut report = after(seconds, times);
        report.peers.push(report.peers[0].clone());
        report.jobs.push(report.jobs[0].clone());
        report
    };
    history.add_report(&twice(1.0, 0));
    history.add_report(&twice(2.0, 1));
    let sample = &samples(&history)[0];
    assert_eq!((&sample["sent_bytes"], &sample["completed"]), (&200.into(), &4.into()), "{sample}");
}

#[test]
fn the_oldest_sample_makes_room() {
    let mut history = History::default();
    for number in 0..1000 {
        history.add_report(&after(10.0 * number as f64, number));
    }
    let kept = samples(&history);
    assert_eq!(kept.len(), 360);
    assert_eq!(kept[0]["at_seconds"], 10.0 * 640.0);
    assert_eq!(kept[359]["at_seconds"], 10.0 * 999.0);
}

#[test]
fn a_report_twice_or_from_before_adds_no_sample() {
    let mut history = History::default();
    for seconds in [10.0, 10.0, 5.0] {
        history.add_report(&after(seconds, 9));
    }
    assert!(samples(&history).is_empty());
    // Counters that went back, as those of a job that is gone, give no negative number.
    history.add_report(&after(20.0, 1));
    assert_eq!(samples(&history)[0]["sent_bytes"], 0);
}
