//! Several jobs on the same gateways do not affect each other.

use gateway::client::{AttachError, AttachOptions, Client, GatewayAddress};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::post::FailureCode;
use scenarios::lab::credentials::CredentialKind;
use scenarios::{JOB, Lab, Shape, TOKEN, simulate};
use units::Span;

/// Name of the second job.
const OTHER: &str = "other";

fn two_jobs() -> Shape {
    Shape { jobs: vec![(JOB, 1), (OTHER, 1)], ..Shape::new(1, 1) }
}

async fn ranks(lab: &Lab, job: &str) -> Vec<Client> {
    let mut clients = Vec::new();
    for rank in 0..lab.fabric.world_size() {
        let patience = Span::from_secs(60);
        clients.push(lab.attach_to(job, rank, 8 << 20, patience).await.expect("attaches"));
    }
    clients
}

/// One all-reduce by all of them; the sum of `values`.
async fn sum(clients: &[Client], values: &[f32], elements: u64) -> Vec<f32> {
    let mut operations = Vec::new();
    for (client, value) in clients.iter().zip(values) {
        let mut tensor = client.allocate(Dtype::F32, elements).expect("room");
        tensor.write_f32(&vec![*value; usize::try_from(elements).expect("small")]);
        operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
    }
    let mut results = Vec::new();
    for operation in &mut operations {
        operation.ready().await.expect("a result");
        results.push(operation.result_f32());
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ");
    results.remove(0)
}

#[test]
fn concurrent_jobs_with_equal_numbers_do_not_mix() {
    simulate(async {
        let lab = Lab::start(&two_jobs(), 1).await;
        let (here, there) = (ranks(&lab, JOB).await, ranks(&lab, OTHER).await);
        for _ in 0..3 {
            let sums =
                tokio::join!(sum(&here, &[1.0, 2.0], 100_000), sum(&there, &[10.0, 20.0], 70_000));
            assert!(sums.0.iter().all(|value| *value == 3.0));
            assert!(sums.1.iter().all(|value| *value == 30.0));
        }
    });
}

#[test]
fn failures_and_epoch_ends_of_one_job_spare_the_other() {
    simulate(async {
        let lab = Lab::start(&two_jobs(), 2).await;
        let (mut here, there) = (ranks(&lab, JOB).await, ranks(&lab, OTHER).await);
        let epoch = there[0].epoch();
        assert!(sum(&here, &[1.0, 2.0], 1000).await.iter().all(|value| *value == 3.0));
        let tensor = here[0].allocate(Dtype::F32, 1000).expect("room");
        let mut waiting = here[0].all_reduce(tensor, ReduceOp::Sum).await.expect("posted");
        drop(here.remove(1));
        let failure = waiting.ready().await.expect_err("a rank is gone");
        assert_eq!(failure.code, FailureCode::RankLost);
        assert!(sum(&there, &[1.0, 2.0], 1000).await.iter().all(|value| *value == 3.0));
        assert_eq!(there[0].epoch(), epoch);
        let back = lab.attach_to(JOB, 1, 8 << 20, Span::from_secs(60)).await.expect("attaches");
        here.push(back);
        // The new trainer ends the epoch; the survivor posts in the next one.
        while here[0].epoch() < here[1].epoch() {
            lab.sleep(Span::from_ms(10)).await;
        }
        assert!(sum(&here, &[1.0, 2.0], 1000).await.iter().all(|value| *value == 3.0));
        assert_eq!(there[0].epoch(), epoch);
    });
}

#[test]
fn a_job_that_one_region_lacks_waits_alone() {
    simulate(async {
        let mut lab = Lab::start(&two_jobs(), 3).await;
        lab.drop_job(GatewayId(1), OTHER).await;
        let here = ranks(&lab, JOB).await;
        let alone = lab.attach_to(OTHER, 0, 8 << 20, Span::from_secs(40)).await;
        assert!(matches!(alone, Err(AttachError::NoEpoch(_))), "{alone:?}");
        assert!(sum(&here, &[1.0, 2.0], 1000).await.iter().all(|value| *value == 3.0));
        let status = lab.status(GatewayId(0)).await;
        let epochs: Vec<_> = status.jobs.iter().map(|job| job.epoch.is_some()).collect();
        assert_eq!(epochs, [false, true], "{status:?}");
    });
}

/// The trainer waits for the other region, which differs from waiting for its gateway.
#[test]
fn a_trainer_learns_that_its_gateway_died_before_epochs() {
    simulate(async {
        let mut lab = Lab::start(&two_jobs(), 3).await;
        lab.drop_job(GatewayId(1), OTHER).await;
        let way = GatewayAddress::InProcess(lab.connector(0).expect("a rank").clone());
        let attach = AttachOptions {
            epoch_timeout: Span::from_secs(600),
            ..AttachOptions::new(OTHER, TOKEN, 0, 1 << 20)
        };
        let begin = lab.host.now();
        let attaching = tokio::spawn(async move { Client::attach(&way, attach).await.map(|_| ()) });
        lab.sleep(Span::from_secs(200)).await;
        assert!(!attaching.is_finished());
        // The old one is gone for good: another one has doors of its own.
        lab.restart(GatewayId(0), CredentialKind::Valid).await;
        let told = attaching.await.expect("no panic");
        assert!(matches!(told, Err(AttachError::NoGateway { .. })), "{told:?}");
        let waited = lab.host.now().since(begin);
        assert!(waited > Span::from_secs(250) && waited < Span::from_secs(280), "{waited}");
    });
}

/// Attaches a rank of a job that the lab was not started with.
async fn attach_to_other(lab: &Lab, rank: u32) -> Result<Client, AttachError> {
    let way = GatewayAddress::InProcess(lab.connector(rank).expect("a rank").clone());
    let options = AttachOptions::new(OTHER, TOKEN, rank, 8 << 20);
    Client::attach(&way, AttachOptions { epoch_timeout: Span::from_secs(60), ..options }).await
}

/// Whichever gateway gets the job last, its peer has spoken to nobody before.
#[test]
fn a_job_added_or_removed_while_running_spares_the_others() {
    for last in [0, 1] {
        simulate(async {
            let lab = Lab::start(&Shape::new(1, 1), 4).await;
            let here = ranks(&lab, JOB).await;
            let epoch = here[0].epoch();
            let both = [(JOB, 1), (OTHER, 1)];
            lab.set_jobs(GatewayId(1 - last), &both).await;
            lab.sleep(Span::from_secs(5)).await;
            lab.set_jobs(GatewayId(last), &both).await;
            let mut there = Vec::new();
            for rank in 0..2 {
                there.push(attach_to_other(&lab, rank).await.expect("attaches"));
            }
            assert!(sum(&there, &[10.0, 20.0], 1000).await.iter().all(|value| *value == 30.0));
            lab.set_jobs(GatewayId(0), &[(JOB, 1)]).await;
            lab.sleep(Span::from_secs(1)).await;
            let why = there[0].disconnect_reason().expect("disconnected");
            assert!(why.contains("removed from the gateway's region file"), "{why}");
            let refused = attach_to_other(&lab, 0).await;
            assert!(matches!(refused, Err(AttachError::Refused(_))), "{refused:?}");
            let status = lab.status(GatewayId(0)).await;
            let removed = status.jobs.iter().filter(|job| job.removed).map(|job| &*job.job);
            assert_eq!(removed.collect::<Vec<_>>(), [OTHER]);
            assert!(sum(&here, &[1.0, 2.0], 1000).await.iter().all(|value| *value == 3.0));
            assert_eq!(here[0].epoch(), epoch);
        });
    }
}
