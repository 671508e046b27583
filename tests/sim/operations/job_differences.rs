//! Jobs in which the region files differ are named at both ends, by status, log, metrics and the
//! errors of trainers.

use gateway::client::AttachError;
use gateway::local::job_spec::JobSpec;
use gateway::observe::problem_cause::ProblemCause;
use gateway::observe::readiness::is_ready;
use gateway::observe::status::GatewayReport;
use hier_collectives::ids::GatewayId;
use scenarios::lab::mesh::Mesh;
use scenarios::observe::log_capture::Log;
use scenarios::{EAST, JOB, Lab, Shape, TOKEN, WEST, simulate};
use std::num::NonZeroU32;
use units::{ByteCount, Span};

/// Name of the second job.
const OTHER: &str = "other";
/// 45 s: a difference has lasted for so long that it was logged.
const LASTING: Span = Span::from_secs(45);

fn two_jobs() -> Shape {
    Shape { jobs: vec![(JOB, 1), (OTHER, 1)], ..Shape::new(1, 1) }
}

/// Attaches a rank, in vain; returns the text of the error.
async fn attach_in_vain(lab: &Lab, job: &str, rank: u32) -> String {
    match lab.attach_to(job, rank, 1 << 20, LASTING).await {
        Err(error @ AttachError::NoEpoch(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Returns the texts of a gateway's problems with the jobs of region files, with the blocking ones
/// first.
fn file_problems(status: &GatewayReport) -> Vec<String> {
    let of_files = status.problems.iter().filter(|p| p.cause == ProblemCause::JobFiles);
    of_files.map(|problem| format!("{}: {}", problem.subject, problem.found)).collect()
}

/// Returns the text for a job that another gateway lacks.
fn missing_there(job: &str, gateway: &str) -> String {
    format!("job {job} of gateway {gateway}: not in its region file, so that the job gets no epoch")
}

/// Returns the text for a job that only another gateway has.
fn missing_here(job: &str, gateway: &str) -> String {
    let found = "not in the region file here, so that the job gets no epoch there";
    format!("job {job} of gateway {gateway}: {found}")
}

/// Returns the number of warnings in a log with this text.
fn warnings(log: &Log, text: &str) -> usize {
    log.text().lines().filter(|line| line.contains("WARN") && line.contains(text)).count()
}

/// Gives both gateways both jobs, and checks that both begin and that no problem is left.
async fn correct(lab: &Lab) {
    for gateway in [EAST, WEST] {
        lab.set_jobs(gateway, &[(JOB, 1), (OTHER, 1)]).await;
    }
    for job in [JOB, OTHER] {
        for rank in 0..2 {
            lab.attach_to(job, rank, 1 << 20, LASTING).await.expect("attaches");
        }
    }
    lab.sleep(Span::from_secs(2)).await;
    for gateway in [EAST, WEST] {
        let status = lab.status(gateway).await;
        assert_eq!(file_problems(&status), [""; 0], "{status:?}");
        assert!(lab.metrics(gateway).render().contains("landbridge_job_differences 0\n"));
    }
}

#[test]
fn regions_with_a_job_each_name_both_jobs() {
    let log = Log::default();
    let _logging = log.listen();
    simulate(async {
        let mut lab = Lab::start(&two_jobs(), 1).await;
        lab.drop_job(WEST, OTHER).await;
        lab.drop_job(EAST, JOB).await;
        let (east, west) =
            tokio::join!(attach_in_vain(&lab, OTHER, 0), attach_in_vain(&lab, JOB, 1));
        assert!(east.contains(&missing_there(OTHER, "west-0")), "{east}");
        assert!(east.contains("add `[job.other]` there") && !east.contains(JOB), "{east}");
        assert!(west.contains(&missing_there(JOB, "east-0")), "{west}");
        for (gateway, own, peers, peer) in
            [(EAST, OTHER, JOB, "west-0"), (WEST, JOB, OTHER, "east-0")]
        {
            let status = lab.status(gateway).await;
            let expected = [missing_there(own, peer), missing_here(peers, peer)];
            assert_eq!(file_problems(&status), expected);
            assert!(!is_ready(&status.problems), "{status:?}");
            assert!(lab.metrics(gateway).render().contains("landbridge_job_differences 2\n"));
            for text in expected {
                assert_eq!(warnings(&log, &text), 1, "{text}: {}", log.text());
            }
        }
        lab.sleep(Span::from_secs(1200)).await;
        let all = warnings(&log, "so that the job gets no epoch");
        assert_eq!(all, 4, "no text again: {}", log.text());
        correct(&lab).await;
    });
}

/// The epoch of the other job goes on, and its trainers hear nothing.
#[test]
fn a_job_added_to_one_file_is_named() {
    for first in [EAST, WEST] {
        simulate(async {
            let lab = Lab::start(&Shape::new(1, 1), 2).await;
            let clients = lab.clients(1 << 20).await;
            let epoch = clients[0].epoch();
            lab.set_jobs(first, &[(JOB, 1), (OTHER, 1)]).await;
            lab.sleep(Span::from_secs(2)).await;
            let second = if first == EAST { WEST } else { EAST };
            let name = |id: GatewayId| lab.fabric.gateway(id).name.clone();
            let status = lab.status(first).await;
            assert_eq!(file_problems(&status), [missing_there(OTHER, &name(second))]);
            assert!(!is_ready(&status.problems), "{status:?}");
            let status = lab.status(second).await;
            assert_eq!(file_problems(&status), [missing_here(OTHER, &name(first))]);
            assert!(is_ready(&status.problems), "{status:?}");
            lab.set_jobs(second, &[(JOB, 1), (OTHER, 1)]).await;
            lab.sleep(Span::from_secs(2)).await;
            for gateway in [EAST, WEST] {
                let status = lab.status(gateway).await;
                assert_eq!(file_problems(&status), [""; 0], "{status:?}");
                assert!(status.jobs.iter().all(|job| job.epoch.is_some()), "{status:?}");
            }
            assert_eq!(clients[1].epoch(), epoch);
        });
    }
}

#[test]
fn a_job_removed_from_one_file_is_named() {
    simulate(async {
        let lab = Lab::start(&two_jobs(), 3).await;
        lab.sleep(Span::from_secs(2)).await;
        lab.set_jobs(WEST, &[(JOB, 1)]).await;
        lab.sleep(Span::from_secs(2)).await;
        let status = lab.status(EAST).await;
        assert_eq!(file_problems(&status), [missing_there(OTHER, "west-0")]);
        let epoch =
            |job: &str| status.jobs.iter().find(|known| known.job == job).map(|job| job.epoch);
        assert_eq!(epoch(OTHER), Some(None), "its trainers would wait for others in vain");
        assert!(matches!(epoch(JOB), Some(Some(_))), "{status:?}");
        let status = lab.status(WEST).await;
        assert_eq!(file_problems(&status), [missing_here(OTHER, "east-0")]);
        correct(&lab).await;
        for gateway in [EAST, WEST] {
            lab.set_jobs(gateway, &[(JOB, 1)]).await;
        }
        lab.sleep(Span::from_secs(2)).await;
        for gateway in [EAST, WEST] {
            let status = lab.status(gateway).await;
            assert!(status.problems.is_empty(), "removed at both: {status:?}");
        }
    });
}

/// Such jobs work: the token of each region lets its own trainers in.
#[test]
fn other_tokens_and_weights_are_named_at_both_ends() {
    let log = Log::default();
    let _logging = log.listen();
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 4).await;
        let clients = lab.clients(1 << 20).await;
        let epoch = clients[0].epoch();
        let changed = JobSpec {
            name: JOB.to_owned(),
            token: [8; 32].into(),
            memory: ByteCount::new(16 << 30),
            weight: NonZeroU32::new(3).expect("not zero"),
        };
        assert_ne!(TOKEN, [8; 32]);
        lab.gateways[usize::from(WEST.0)].update_jobs(vec![changed], Default::default()).await;
        lab.sleep(LASTING).await;
        for (gateway, peer, here, there) in [(EAST, "west-0", 1, 3), (WEST, "east-0", 3, 1)] {
            let status = lab.status(gateway).await;
            let problems = file_problems(&status);
            let [token, weight] = &problems[..] else { panic!("{problems:?}") };
            let other = format!("token of job sim of gateway {peer}: it differs from the one here");
            assert_eq!(*token, other);
            let other =
                format!("weight of job sim of gateway {peer}: it is {there} there and {here}");
            assert!(weight.starts_with(&other), "{weight}");
            assert!(is_ready(&status.problems), "{status:?}");
        }
        for part in ["token of job sim", "weight of job sim"] {
            assert_eq!(warnings(&log, part), 2, "{}", log.text());
            let lines = log.text().lines().filter(|line| line.contains(part)).count();
            assert_eq!(lines, 2, "{}", log.text());
        }
        lab.set_jobs(WEST, &[(JOB, 1)]).await;
        lab.sleep(Span::from_secs(2)).await;
        for gateway in [EAST, WEST] {
            assert!(lab.status(gateway).await.problems.is_empty());
        }
        assert_eq!(clients[0].epoch(), epoch);
    });
}

/// Regions a and c exchange through b.
#[test]
fn gateways_without_a_link_between_them_compare_jobs() {
    simulate(async {
        let lab = Mesh::of_ranks(&[1, 1, 1]).without(0, 2).start(5).await;
        let [a, b, c] = [0, 1, 2].map(GatewayId);
        let both = [(JOB, 1), (OTHER, 1)];
        lab.sleep(Span::from_secs(5)).await;
        for gateway in [b, c] {
            lab.set_jobs(gateway, &both).await;
        }
        lab.sleep(Span::from_secs(2)).await;
        let status = lab.status(a).await;
        let expected = [missing_here(OTHER, "b-0"), missing_here(OTHER, "c-0")];
        assert_eq!(file_problems(&status), expected);
        let status = lab.status(c).await;
        assert_eq!(file_problems(&status), [missing_there(OTHER, "a-0")]);
        lab.set_jobs(a, &both).await;
        lab.sleep(Span::from_secs(2)).await;
        for gateway in [a, b, c] {
            let status = lab.status(gateway).await;
            assert_eq!(file_problems(&status), [""; 0], "{status:?}");
            assert!(status.jobs.iter().all(|job| job.epoch.is_some()), "{status:?}");
        }
    });
}

#[test]
fn a_trainer_hears_which_gateway_is_missing() {
    simulate(async {
        let lab = Lab::start(&two_jobs(), 6).await;
        lab.set_outage(true);
        let text = attach_in_vain(&lab, JOB, 0).await;
        assert!(text.contains("gateway west-0: no lane is connected"), "{text}");
        assert!(!text.contains("job other"), "{text}");
    });
}
