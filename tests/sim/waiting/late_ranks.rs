//! Late posts, ranks that detach and return, and link outages delay collectives without failing
//! them.

use gateway::client::{Client, DEFAULT_TIMEOUT, Operation};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::post::{Failure, FailureCode};
use scenarios::collectives::batch::{Case, outcomes, post, post_all, post_with, succeeds};
use scenarios::lab::mesh::Mesh;
use scenarios::{Lab, Shape, mbit, simulate};
use units::{BitRate, Span};

const CASE: Case = Case {
    op: ReduceOp::Sum,
    dtype: Dtype::F32,
    elements: 1 << 20,
    seed: 11,
    values: scenarios::collectives::batch::Values::Any,
};
const ARENA: u64 = 32 << 20;

/// Every operation succeeded with the right bits.
async fn all_right(operations: &mut [Operation], ranks: u32, east: u32) {
    let expected = CASE.expected(ranks, east);
    for outcome in outcomes(operations).await {
        assert!(outcome.expect("a result") == expected, "other bits");
    }
}

/// Checks that every operation failed with the same text, and that contributions are intact.
async fn all_failed(operations: Vec<Operation>) -> Failure {
    let mut failures = Vec::new();
    for mut operation in operations {
        failures.push(operation.ready().await.expect_err("no result"));
        let tensor = operation.reclaim().await.expect("the slots are the rank's again");
        let bytes = tensor.read();
        assert!(CASE.contributions(4).iter().any(|own| **own == bytes), "a contribution changed");
    }
    let first = failures.pop().expect("at least one");
    assert!(failures.iter().all(|failure| *failure == first), "{first} but {failures:?}");
    first
}

/// Waits until every rank is in an epoch after `before`.
async fn next_epoch(lab: &Lab, clients: &[Client], before: u64) {
    let begin = lab.host.now();
    while clients.iter().any(|client| client.epoch().0 <= before) {
        assert!(lab.host.now().since(begin) < Span::from_secs(60), "no epoch after {before}");
        lab.sleep(Span::from_ms(100)).await;
    }
}

/// A collective succeeds: at once, or in the epoch after `epoch` when the failure says so.
async fn works_again(lab: &Lab, clients: &[Client], epoch: u64) {
    let mut operations = post_all(clients, &CASE).await;
    let outcomes = outcomes(&mut operations).await;
    if outcomes.iter().all(Result::is_ok) {
        let expected = CASE.expected(3, 2);
        return assert!(outcomes.iter().all(|got| *got == Ok(expected.clone())), "other bits");
    }
    for failure in outcomes.into_iter().filter_map(Result::err) {
        let over = [FailureCode::RegionLost, FailureCode::EpochEnded];
        assert!(over.contains(&failure.code), "{failure}");
    }
    next_epoch(lab, clients, epoch).await;
    succeeds(clients, 2, &CASE).await;
}

#[test]
fn everybody_waits_for_a_late_rank() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(ARENA).await;
        for late in [Span::from_secs(90), Span::from_secs(20 * 60)] {
            for who in 0..4 {
                let mut operations = Vec::new();
                for client in clients.iter().filter(|client| client.rank().0 != who) {
                    operations.push(post(client, &CASE).await);
                }
                lab.sleep(late).await;
                operations.push(post(&clients[who as usize], &CASE).await);
                all_right(&mut operations, 4, 2).await;
            }
        }
    });
}

#[test]
fn a_timeout_names_who_is_awaited() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(ARENA).await;
        // Whoever is impatient tells the story: in the late rank's region or in the other.
        for impatient in [2, 0] {
            let begin = lab.host.now();
            let mut operations = Vec::new();
            for client in &clients[..3] {
                let timeout = if client.rank().0 == impatient {
                    Span::from_secs(60)
                } else {
                    DEFAULT_TIMEOUT
                };
                operations.push(post_with(client, &CASE, 1.0, timeout).await);
            }
            let failure = all_failed(operations).await;
            let waited = lab.host.now().since(begin);
            assert!(waited >= Span::from_secs(60) && waited < Span::from_secs(61), "{waited}");
            assert_eq!(failure.code, FailureCode::TimedOut, "{failure}");
            assert!(failure.text.contains("waiting for rank 3 (west);"), "{failure}");
            let late = all_failed(vec![post(&clients[3], &CASE).await]).await;
            assert_eq!(late, failure, "the late rank hears the same");
            succeeds(&clients, 2, &CASE).await;
        }
    });
}

#[test]
fn a_rank_lost_before_its_post_may_come_back() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let mut clients = lab.clients(ARENA).await;
        succeeds(&clients, 2, &CASE).await;
        let mut operations = Vec::new();
        for client in &clients[..3] {
            operations.push(post(client, &CASE).await);
        }
        lab.sleep(Span::from_secs(100)).await;
        let (before, begin) = (clients[0].epoch().0, lab.host.now());
        drop(clients.pop());
        let failure = all_failed(operations).await;
        assert_eq!(failure.code, FailureCode::RankLost, "{failure}");
        assert!(failure.text.contains("rank 3 (west)"), "{failure}");
        assert!(lab.host.now().since(begin) < Span::from_secs(1), "an outcome at once");
        clients.push(lab.client(3, ARENA).await);
        next_epoch(&lab, &clients, before).await;
        succeeds(&clients, 2, &CASE).await;
    });
}

/// The rank has posted nothing yet. The others wait while it is detached, and it posts in the same
/// epoch once it is back.
#[test]
fn a_rank_without_posts_in_an_epoch_is_awaited() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let mut clients = lab.clients(ARENA).await;
        let epoch = clients[0].epoch();
        drop(clients.pop());
        let mut operations = Vec::new();
        for client in &clients {
            operations.push(post(client, &CASE).await);
        }
        lab.sleep(Span::from_secs(100)).await;
        clients.push(lab.client(3, ARENA).await);
        operations.push(post(&clients[3], &CASE).await);
        all_right(&mut operations, 4, 2).await;
        assert!(clients.iter().all(|client| client.epoch() == epoch));
    });
}

#[test]
fn posts_of_a_rank_that_left_count() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let mut clients = lab.clients(ARENA).await;
        let mut operations = post_all(&clients, &CASE).await;
        lab.sleep(Span::from_ms(45)).await;
        drop(clients.remove(1));
        drop(operations.remove(1));
        all_right(&mut operations, 4, 2).await;
        let before = clients[0].epoch().0;
        clients.insert(1, lab.client(1, ARENA).await);
        next_epoch(&lab, &clients, before).await;
        succeeds(&clients, 2, &CASE).await;
    });
}

#[test]
fn a_rank_that_attaches_again_ends_what_waits_for_it() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let mut clients = lab.clients(ARENA).await;
        // It posted one that waits for rank 3, then it is restarted.
        let mut operations = Vec::new();
        for client in &clients[..3] {
            operations.push(post(client, &CASE).await);
        }
        lab.sleep(Span::from_secs(5)).await;
        let before = clients[0].epoch().0;
        drop(clients.remove(0));
        drop(operations.remove(0));
        lab.sleep(Span::from_secs(5)).await;
        clients.insert(0, lab.client(0, ARENA).await);
        let failure = all_failed(operations).await;
        assert_eq!(failure.code, FailureCode::EpochEnded, "{failure}");
        assert!(failure.text.contains("rank 0 (east) attached again"), "{failure}");
        next_epoch(&lab, &clients, before).await;
        succeeds(&clients, 2, &CASE).await;
    });
}

/// Five regions in a chain. The first region's broadcast reaches the second at once and takes
/// thirteen seconds to the third. Meanwhile the first sees no progress.
#[test]
fn progress_behind_a_relay_is_no_stall() {
    simulate(async {
        let mut mesh = Mesh::of_ranks(&[1; 5]);
        mesh.links.retain(|link| link.regions.1 - link.regions.0 == 1);
        let slow = BitRate::from_bits_per_second(20_000_000);
        mesh.links
            .iter_mut()
            .filter(|link| link.regions == (1, 2))
            .for_each(|link| link.rate = slow);
        let lab = mesh.start(1).await;
        let clients = lab.clients(80 << 20).await;
        let large = Case { elements: 8 << 20, ..CASE };
        let sent = large.contribution(0);
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for client in &clients {
            let mut tensor = client.allocate(large.dtype, large.elements).expect("room");
            if client.rank() == RankId(0) {
                tensor.write(&sent);
            }
            before.push(client.broadcast(tensor, RankId(0)).await.expect("posted"));
        }
        let small = Case { dtype: Dtype::I32, ..CASE };
        for client in &clients {
            behind.push(post(client, &small).await);
        }
        let begun = lab.host.now();
        for outcome in outcomes(&mut behind).await {
            assert!(outcome.expect("a result") == small.in_any_order(5), "other bits");
        }
        assert!(lab.host.now().since(begun) > Span::from_secs(13), "no longer than a stall");
        for outcome in outcomes(&mut before).await {
            assert!(outcome.expect("a result") == *sent, "other bits");
        }
    });
}

/// Cuts the link `after` the posts of a collective of half a second for `cut`. Every rank gets an outcome
/// in time, and the next collective works. Returns whether this one succeeded.
fn cut_in_the_middle(seed: u64, after: Span, cut: Span) -> bool {
    simulate(async {
        let shape = Shape { rate: mbit(250), ..Shape::new(2, 1) };
        let lab = Lab::start(&shape, seed).await;
        let clients = lab.clients(48 << 20).await;
        let case = Case { elements: 4 << 20, ..CASE };
        let expected = case.expected(3, 2);
        let mut operations = post_all(&clients, &case).await;
        lab.sleep(after).await;
        let (before, begin) = (clients[0].epoch().0, lab.host.now());
        lab.set_outage(true);
        let mut results = Vec::new();
        let mut healing = Box::pin(lab.sleep(cut));
        let all = async { results = outcomes(&mut operations).await };
        tokio::select! {
            biased;
            () = all => {}
            () = &mut healing => {}
        }
        if results.is_empty() {
            lab.set_outage(false);
            results = outcomes(&mut operations).await;
        }
        let waited = lab.host.now().since(begin);
        assert!(waited < Span::from_secs(21), "seed {seed}: an outcome only after {waited}");
        let mut good = true;
        for result in results {
            match result {
                Ok(result) => assert!(result == expected, "seed {seed}: other bits"),
                Err(failure) => {
                    let typed =
                        [FailureCode::Stalled, FailureCode::RegionLost, FailureCode::EpochEnded];
                    assert!(typed.contains(&failure.code), "seed {seed}: {failure}");
                    good = false;
                }
            }
        }
        lab.sleep((begin + cut).since(lab.host.now())).await;
        lab.set_outage(false);
        let contributions = case.contributions(3);
        for (operation, contribution) in operations.into_iter().zip(contributions) {
            let tensor = operation.reclaim().await.expect("the slots are the rank's again");
            assert!(tensor.read() == *contribution, "seed {seed}: a contribution changed");
        }
        works_again(&lab, &clients, before).await;
        good
    })
}

#[test]
fn a_cut_of_a_moment_is_survived() {
    for seed in 0..3 {
        let after = Span::from_ms(100 + 200 * seed);
        assert!(cut_in_the_middle(seed, after, Span::from_secs(1)), "seed {seed}");
    }
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_cut_of_five_seconds_ends_in_time() {
    for seed in 0..8 {
        cut_in_the_middle(seed, Span::from_ms(10 + 90 * seed), Span::from_secs(5));
    }
}

#[test]
fn a_cut_of_a_minute_fails_and_heals() {
    for seed in 0..3 {
        let after = Span::from_ms(50 + 200 * seed);
        assert!(!cut_in_the_middle(seed, after, Span::from_secs(60)), "seed {seed}");
    }
}

#[test]
fn a_cut_while_waiting_for_a_rank_is_survived() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(ARENA).await;
        let mut operations = Vec::new();
        for client in &clients[..3] {
            operations.push(post(client, &CASE).await);
        }
        lab.sleep(Span::from_secs(30)).await;
        lab.set_outage(true);
        lab.sleep(Span::from_secs(5)).await;
        lab.set_outage(false);
        lab.sleep(Span::from_secs(30)).await;
        operations.push(post(&clients[3], &CASE).await);
        all_right(&mut operations, 4, 2).await;
    });
}
