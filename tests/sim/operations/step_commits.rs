//! Commits of steps, and gateways that drain before they end.

use gateway::client::Client;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, Step};
use hier_collectives::post::{Failure, FailureCode};
use scenarios::collectives::batch::{Case, outcomes, post, post_all, succeeds};
use scenarios::{EAST, Lab, Shape, simulate};
use units::Span;

const CASE: Case = Case {
    op: ReduceOp::Sum,
    dtype: Dtype::F32,
    elements: 1 << 20,
    seed: 3,
    values: scenarios::collectives::batch::Values::Any,
};

/// Commits a step on all ranks at once; returns the outcome of each.
async fn commit_all(clients: &[Client], step: u64) -> Vec<Result<(), Failure>> {
    let commits = clients.iter().map(|client| {
        let client = client.clone();
        tokio::spawn(async move { client.commit(Step(step)).await })
    });
    let mut answers = Vec::new();
    for commit in commits.collect::<Vec<_>>() {
        answers.push(commit.await.expect("no panic"));
    }
    answers
}

#[test]
fn a_commit_takes_a_round_trip_after_the_last_rank() {
    simulate(async {
        let shape = Shape::new(2, 1);
        let lab = Lab::start(&shape, 1).await;
        let clients = lab.clients(32 << 20).await;
        succeeds(&clients, 2, &CASE).await;
        let begin = lab.host.now();
        assert_eq!(commit_all(&clients, 0).await, [Ok(()), Ok(()), Ok(())]);
        let took = lab.host.now().since(begin);
        assert!(took < shape.rtt + Span::from_ms(5), "{took}");
        // A rank posts and commits before another has posted.
        let mut operations = vec![post(&clients[0], &CASE).await, post(&clients[2], &CASE).await];
        let early = clients[0].clone();
        let early = tokio::spawn(async move { early.commit(Step(1)).await });
        lab.sleep(Span::from_secs(90)).await;
        assert!(!early.is_finished());
        let seen = lab.status(EAST).await.jobs.remove(0);
        assert_eq!(seen.draining, None);
        let [commit] = &seen.commits[..] else { panic!("{:?}", seen.commits) };
        assert_eq!((commit.rank, commit.step), (0, 1), "{commit:?}");
        // Rank 1 is at east, and west has no result without it.
        assert_eq!(commit.awaited, ["east", "west"]);
        assert!((90.0..91.0).contains(&commit.seconds), "{commit:?}");
        let twice = clients[0].commit(Step(1)).await.expect_err("it waits already");
        assert_eq!(twice.code, FailureCode::BadPost, "{twice}");
        assert!(!early.is_finished(), "the first one's answer is its own");
        operations.push(post(&clients[1], &CASE).await);
        assert_eq!(early.await.expect("no panic"), Ok(()));
        assert_eq!(clients[0].committed(), Some(Step(1)));
        assert!(outcomes(&mut operations).await.iter().all(Result::is_ok));
    });
}

/// The epoch ends between posts and commit, so the posts fail. A commit in the next epoch must not
/// confirm them.
#[test]
fn a_commit_confirms_no_posts_of_an_ended_epoch() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 1), 9).await;
        let mut clients = lab.clients(32 << 20).await;
        succeeds(&clients, 2, &CASE).await;
        assert!(commit_all(&clients, 0).await.iter().all(Result::is_ok));
        let before = clients[0].epoch();
        let mut operations = vec![post(&clients[0], &CASE).await];
        // A rank that comes back ends the epoch.
        drop(clients.remove(1));
        clients.insert(1, lab.client(1, 32 << 20).await);
        assert!(outcomes(&mut operations).await.iter().all(Result::is_err));
        while clients.iter().any(|client| client.epoch() == before) {
            lab.sleep(Span::from_ms(10)).await;
        }
        let failure = clients[0].commit(Step(1)).await.expect_err("it failed");
        assert_eq!(failure.code, FailureCode::EpochEnded, "{failure}");
        assert!(clients.iter().all(|client| client.committed() == Some(Step(0))));
        // Posted again, the step is committed.
        succeeds(&clients, 2, &CASE).await;
        assert!(commit_all(&clients, 1).await.iter().all(Result::is_ok));
        assert!(clients.iter().all(|client| client.committed() == Some(Step(1))));
    });
}

/// The link is down for a minute during commits. Failed commits name the state of each region, and
/// the next epoch gives all ranks the same state.
#[test]
fn a_cut_during_commits_leaves_no_region_in_doubt() {
    let mut confirmed = Vec::new();
    for cut_after in [0, 20, 39, 45, 59, 120] {
        confirmed.push(simulate(async {
            let lab = Lab::start(&Shape::new(2, 1), cut_after).await;
            let clients = lab.clients(32 << 20).await;
            succeeds(&clients, 2, &CASE).await;
            let before = clients[0].epoch();
            // West commits later, so that one region may hear of the other only.
            let west = async {
                lab.sleep(Span::from_ms(20)).await;
                clients[2].commit(Step(4)).await
            };
            let cut = async {
                lab.sleep(Span::from_ms(cut_after)).await;
                lab.set_outage(true);
                lab.sleep(Span::from_secs(60)).await;
                lab.set_outage(false);
            };
            let (mut answers, west, ()) = tokio::join!(commit_all(&clients[..2], 4), west, cut);
            answers.push(west);
            while clients.iter().any(|client| client.epoch() == before) {
                lab.sleep(Span::from_ms(100)).await;
            }
            let confirmed = answers.iter().filter(|answer| answer.is_ok()).count();
            for (client, answer) in clients.iter().zip(&answers) {
                // All have prepared the step, so that it is complete, whoever heard so.
                assert_eq!(client.committed(), Some(Step(4)), "{cut_after} ms");
                if let Err(failure) = answer {
                    assert_eq!(failure.code, FailureCode::RegionLost, "{failure}");
                    for told in ["step 4", "region east", "region west"] {
                        assert!(failure.text.contains(told), "{failure}");
                    }
                }
            }
            succeeds(&clients, 2, &CASE).await;
            assert!(commit_all(&clients, 5).await.iter().all(Result::is_ok));
            confirmed
        }));
    }
    assert_eq!((confirmed.first(), confirmed.last()), (Some(&0), Some(&3)), "{confirmed:?}");
    assert!(confirmed.iter().any(|count| [1, 2].contains(count)), "{confirmed:?}");
}

/// Either gateway drains in the middle of an exchange. The exchange is finished and committed,
/// later posts are refused, and the gateway ends long before its limit.
#[test]
fn a_gateway_that_drains_finishes_what_is_posted() {
    for who in 0..2 {
        simulate(async {
            let lab = Lab::start(&Shape::new(2, 1), 7).await;
            let clients = lab.clients(160 << 20).await;
            succeeds(&clients, 2, &CASE).await;
            assert!(commit_all(&clients, 0).await.iter().all(Result::is_ok));
            let case = Case { elements: 8 << 20, ..CASE };
            let mut operations = post_all(&clients, &case).await;
            lab.sleep(Span::from_ms(100)).await;
            let begin = lab.host.now();
            let trainers = async {
                lab.sleep(Span::from_ms(1)).await;
                let id = GatewayId(who as u16);
                let seen = lab.status(id).await.jobs.remove(0).draining.expect("it drains");
                assert_eq!(seen.collectives, [1], "{seen:?}");
                assert!((24.0..25.0).contains(&seen.seconds_left), "{seen:?}");
                let results = outcomes(&mut operations).await;
                let expected = case.expected(3, 2);
                assert!(results.iter().all(|got| *got == Ok(expected.clone())));
                let seen = lab.status(id).await.jobs.remove(0).draining.expect("it drains");
                let owing = lab.fabric.gateway(id).ranks.clone().collect::<Vec<_>>();
                assert_eq!(seen.uncommitted, owing, "{seen:?}");
                assert!(commit_all(&clients, 1).await.iter().all(Result::is_ok));
                let mut refused = post_all(&clients, &CASE).await;
                for outcome in outcomes(&mut refused).await {
                    let failure = outcome.expect_err("no new posts");
                    let over = [FailureCode::ShuttingDown, FailureCode::EpochEnded];
                    assert!(over.contains(&failure.code), "{failure}");
                }
            };
            tokio::join!(lab.gateways[who].drain(Span::from_secs(25)), trainers);
            assert!(lab.host.now().since(begin) < Span::from_secs(2));
        });
    }
}
