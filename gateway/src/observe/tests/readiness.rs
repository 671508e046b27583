use super::server::example;
use crate::observe::problem_cause::ProblemCause;
use crate::observe::readiness::{describe_unready_epoch, is_ready, judge_readiness};
use crate::observe::status::{
    DrainReport, GatewayReport, JobDifference, JobDifferenceKind, LinkOutageReport, LinkReport,
    PeerState,
};

/// Returns cause and text of each problem, and whether the gateway is ready.
fn judged(report: &GatewayReport) -> (Vec<(ProblemCause, String)>, bool) {
    let problems = judge_readiness(report);
    let ready = is_ready(&problems);
    (problems.iter().map(|problem| (problem.cause, problem.to_string())).collect(), ready)
}

#[test]
fn a_gateway_in_its_epoch_has_no_problem() {
    assert_eq!(judged(&example()), (vec![], true));
}

#[test]
fn a_peer_without_lanes_blocks_until_the_first_epoch() {
    let mut report = example();
    let peer = &mut report.peers[0];
    (peer.state, peer.lanes_up) = (PeerState::Connecting, 0);
    peer.problem = Some("its fabric differs from ours".to_owned());
    let (problems, ready) = judged(&report);
    let text = "gateway west-0: no lane is connected: its fabric differs from ours".to_owned();
    assert_eq!((problems, ready), (vec![(ProblemCause::Peer, text.clone())], true));
    report.jobs[0].epoch = None;
    let waits = "job train: no epoch: it waits for west-0".to_owned();
    let expected = vec![(ProblemCause::Peer, text), (ProblemCause::Job, waits)];
    assert_eq!(judged(&report), (expected, false));
    report.jobs[0].removed = true;
    assert!(judged(&report).1, "no trainer can attach to a removed job");
}

#[test]
fn missing_lanes_are_a_warning_with_a_remedy() {
    let mut report = example();
    let peer = &mut report.peers[0];
    (peer.state, peer.lanes_up) = (PeerState::Degraded, 1);
    peer.problem = Some("3 of 4 UDP ports do not answer".to_owned());
    peer.remedy = Some("open them".to_owned());
    let (problems, ready) = judged(&report);
    let text = "gateway west-0: 1 of 4 lanes are connected: 3 of 4 UDP ports do not answer; open \
                them";
    assert_eq!((problems, ready), (vec![(ProblemCause::Lanes, text.to_owned())], true));
}

#[test]
fn a_link_that_is_down_is_named_with_its_pair() {
    let mut report = example();
    report.links_down.push(LinkOutageReport {
        between: ["east".to_owned(), "west".to_owned()],
        seconds: 12.4,
        why: "silent for 8 s".to_owned(),
        way_round: Some("gateway south-0".to_owned()),
    });
    let (problems, ready) = judged(&report);
    let text = "link east-west: down for 12.4 s (silent for 8 s); it is gone round by way of gateway \
                south-0; mend the path between both regions; it is used again once it is up";
    assert_eq!((problems, ready), (vec![(ProblemCause::Link, text.to_owned())], true));
    report.links_down[0].way_round = None;
    report.jobs[0].epoch = None;
    let (problems, ready) = judged(&report);
    assert!(!ready && problems[0].1.contains("no single gateway"), "{problems:?}");
}

#[test]
fn peers_that_have_not_joined_are_named() {
    let mut report = example();
    report.peers[0].state = PeerState::Meeting;
    report.jobs[0].epoch = None;
    let (problems, ready) = judged(&report);
    assert!(!ready && problems.len() == 1, "{problems:?}");
    assert!(
        problems[0].1.contains("lanes are up, and the job has not begun at west-0"),
        "{problems:?}"
    );
    report.peers.clear();
    let (problems, ready) = judged(&report);
    assert!(!ready && problems[0].1.contains("not all gateways"), "{problems:?}");
}

#[test]
fn blocking_problems_stand_first() {
    let mut report = example();
    report.peers[0].loss_alarm = true;
    report.restart_needed = vec!["gateway.east-0.memory".to_owned()];
    report.file_faults = vec!["east.toml:9: no TOML".to_owned()];
    report.socket_problem = Some("its socket is gone".to_owned());
    report.processor_problem = Some("cpu.max of cgroup / allows 0.03 processors".to_owned());
    let drain = DrainReport { seconds_left: 9.0, collectives: vec![], uncommitted: vec![] };
    report.jobs[0].draining = Some(drain);
    let (problems, ready) = judged(&report);
    let causes: Vec<_> = problems.iter().map(|(cause, _)| *cause).collect();
    let expected = [
        ProblemCause::ShuttingDown,
        ProblemCause::Socket,
        ProblemCause::Processor,
        ProblemCause::Loss,
        ProblemCause::Restart,
        ProblemCause::Files,
    ];
    assert_eq!((&causes[..], ready), (&expected[..], false));
}

#[test]
fn a_longer_path_than_the_fabrics_is_a_problem() {
    let mut report = example();
    report.peers[0].long_rtt_seconds = Some(0.3012);
    report.links = vec![LinkReport {
        between: ["east".to_owned(), "west".to_owned()],
        rate_bits_per_second: 1_000_000_000,
        scheduled_bits_per_second: None,
        operator_bits_per_second: None,
        operator_gateway: None,
        measured_bits_per_second: None,
        effective_bits_per_second: 1_000_000_000,
        rtt_ms: 80.0,
        loss: 0.0,
    }];
    let problems = judge_readiness(&report);
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let [text] = &texts[..] else { panic!("{texts:?}") };
    let found = "gateway west-0: the RTT to it is 301 ms, the fabric says 80 ms; set `rtt`";
    assert!(text.starts_with(found), "{text}");
    assert!(is_ready(&problems), "it works, but not as well as it could");
}

/// Returns a difference of west's region file in a job.
fn differing(job: &str, kind: JobDifferenceKind) -> JobDifference {
    JobDifference { job: job.to_owned(), gateway: "west-0".to_owned(), kind }
}

#[test]
fn a_job_missing_elsewhere_blocks_and_explains_its_wait() {
    let mut report = example();
    report.jobs[0].epoch = None;
    report.peers[0].state = PeerState::Meeting;
    report.job_differences = vec![
        differing("train", JobDifferenceKind::MissingThere),
        differing("zoo", JobDifferenceKind::MissingHere),
    ];
    let there = "job train of gateway west-0: not in its region file, so that the job gets no \
                 epoch; add `[job.train]` there and send that gateway SIGHUP, or remove the job \
                 here";
    let here = "job zoo of gateway west-0: not in the region file here, so that the job gets no \
                epoch there; add `[job.zoo]` here and send this gateway SIGHUP, or remove it there";
    let expected = [there, here].map(|text| (ProblemCause::JobFiles, text.to_owned()));
    assert_eq!(judged(&report), (expected.to_vec(), false));
    assert_eq!(describe_unready_epoch(&report, "train").as_deref(), Some(there));
    report.job_differences.remove(0);
    assert!(!judged(&report).1, "without an epoch");
    report.jobs[0].epoch = Some(1);
    assert!(judged(&report).1, "the job of another gateway is a warning");
}

#[test]
fn other_tokens_and_weights_are_warnings() {
    let mut report = example();
    let weights = JobDifferenceKind::OtherWeight { here: 1, there: 3 };
    report.job_differences =
        vec![differing("train", JobDifferenceKind::OtherToken), differing("train", weights)];
    let (problems, ready) = judged(&report);
    assert!(ready && problems.len() == 2, "{problems:?}");
    let token = "token of job train of gateway west-0: it differs from the one here";
    assert!(problems[0].1.starts_with(token), "{problems:?}");
    let weight = "weight of job train of gateway west-0: it is 3 there and 1 here";
    assert!(problems[1].1.starts_with(weight), "{problems:?}");
}

#[test]
fn trainers_hear_what_keeps_their_job_alone_waiting() {
    let mut report = example();
    assert_eq!(describe_unready_epoch(&report, "train"), None, "in its epoch");
    assert_eq!(describe_unready_epoch(&report, "zoo"), None, "no such job");
    report.jobs[0].epoch = None;
    report.peers[0].state = PeerState::Connecting;
    report.peers[0].problem = Some("3 of 4 UDP ports do not answer".to_owned());
    report.job_differences = vec![differing("zoo", JobDifferenceKind::MissingThere)];
    let text = "gateway west-0: no lane is connected: 3 of 4 UDP ports do not answer";
    assert_eq!(describe_unready_epoch(&report, "train").as_deref(), Some(text));
    report.peers[0].state = PeerState::Meeting;
    let why = describe_unready_epoch(&report, "train").expect("waits");
    assert!(
        why.starts_with("job train: no epoch: lanes are up, and the job has not begun at west-0"),
        "{why}"
    );
    report.jobs[0].removed = true;
    assert_eq!(describe_unready_epoch(&report, "train"), None);
}
