//! Posts that disagree or are invalid fail on every rank, and the next collective works.

use gateway::client::{Client, DEFAULT_TIMEOUT, Operation};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::FailureCode;
use scenarios::collectives::batch::{Case, outcomes, post, post_with, succeeds};
use scenarios::{Lab, Shape, simulate};
use units::Span;

/// 200 s, by which late ranks post after the others.
const MINUTES: Span = Span::from_secs(200);

/// Returns three disagreements: the agreed case, a case that differs in a field, and the words that
/// the error must have.
fn disagreements() -> [(Case, Case, [&'static str; 3]); 3] {
    let agreed = Case::new(ReduceOp::Sum, Dtype::F32, 1000, 3);
    [
        (agreed, Case { dtype: Dtype::F16, ..agreed }, ["dtype", "f32", "f16"]),
        (agreed, Case { op: ReduceOp::Max, ..agreed }, ["op", "sum", "max"]),
        (agreed, Case { elements: 1007, ..agreed }, ["length", "1000", "1007"]),
    ]
}

/// Asserts that every operation fails with `code` and a text that has all `words`, and gives its
/// contribution back unchanged.
async fn all_fail(
    cases: &[Case],
    mut operations: Vec<Operation>,
    code: FailureCode,
    words: &[&str],
) {
    for outcome in outcomes(&mut operations).await {
        let failure = outcome.expect_err("no result");
        assert_eq!(failure.code, code, "{failure}");
        for word in words {
            assert!(failure.text.contains(word), "`{word}` is not in: {failure}");
        }
    }
    for (rank, (operation, case)) in operations.into_iter().zip(cases).enumerate() {
        let tensor = operation.reclaim().await.expect("the slots are the rank's again");
        assert!(tensor.read() == *case.contributions(4)[rank], "rank {rank}: {case:?}");
    }
}

/// Posts the case of each rank; `late` ranks post minutes after the others.
async fn post_each(lab: &Lab, clients: &[Client], cases: &[Case], late: &[u32]) -> Vec<Operation> {
    let mut operations = Vec::new();
    for turn in [false, true] {
        for (client, case) in clients.iter().zip(cases) {
            let rank = client.rank().0;
            if late.contains(&rank) == turn {
                operations.push((rank, post(client, case).await));
            }
        }
        if !late.is_empty() {
            lab.sleep(MINUTES).await;
        }
    }
    operations.sort_by_key(|(rank, _)| *rank);
    operations.into_iter().map(|(_, operation)| operation).collect()
}

/// Posts differing cases on `dissenters`. Ranks 0 and 1 are in east, 2 and 3 in west.
fn ranks_disagree(dissenters: &[u32], late: &[u32]) {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(1 << 20).await;
        for (agreed, other, [field, one, two]) in disagreements() {
            let of = |rank: u32| if dissenters.contains(&rank) { other } else { agreed };
            let cases: Vec<Case> = (0..4).map(of).collect();
            let operations = post_each(&lab, &clients, &cases, late).await;
            let field = format!("disagree on {field}:");
            let words = [&field, &*format!("posted {one}"), &*format!("posted {two}")];
            all_fail(&cases, operations, FailureCode::Disagreement, &words).await;
            succeeds(&clients, 2, &agreed).await;
        }
    });
}

#[test]
fn within_the_first_region() {
    ranks_disagree(&[1], &[]);
}

#[test]
fn within_the_second_region() {
    ranks_disagree(&[3], &[]);
}

#[test]
fn across_regions() {
    ranks_disagree(&[2, 3], &[]);
}

#[test]
fn within_a_region_minutes_later() {
    ranks_disagree(&[1], &[1]);
    ranks_disagree(&[0], &[1]);
    ranks_disagree(&[3], &[3]);
}

#[test]
fn across_regions_minutes_later() {
    ranks_disagree(&[2, 3], &[2, 3]);
    ranks_disagree(&[2, 3], &[0, 1]);
    ranks_disagree(&[2, 3], &[0, 3]);
}

#[test]
fn a_late_poster_gets_the_failure_of_the_others() {
    ranks_disagree(&[1], &[2, 3]);
    ranks_disagree(&[2], &[0]);
}

#[test]
fn a_weight_that_is_no_weight() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(1 << 20).await;
        for weight in [f64::NAN, f64::INFINITY, -1.0] {
            let case = Case::new(ReduceOp::Avg, Dtype::F32, 1000, 4);
            let mut operations = Vec::new();
            for client in &clients {
                let weight = if client.rank().0 == 2 { weight } else { 1.0 };
                operations.push(post_with(client, &case, weight, DEFAULT_TIMEOUT).await);
            }
            let words = ["rank 2 (west)", "weight", &weight.to_string()];
            all_fail(&[case; 4], operations, FailureCode::BadPost, &words).await;
            succeeds(&clients, 2, &case).await;
        }
    });
}

#[test]
fn undefined_reductions_fail_on_every_rank() {
    simulate(async {
        let lab = Lab::start(&Shape::new(2, 2), 1).await;
        let clients = lab.clients(1 << 20).await;
        let pairs = ReduceOp::ALL.into_iter().flat_map(|op| Dtype::ALL.map(|dtype| (op, dtype)));
        for (op, dtype) in pairs.filter(|(op, dtype)| !op.accepts(*dtype)) {
            let case = Case::new(op, dtype, 1000, 4);
            let operations = post_each(&lab, &clients, &[case; 4], &[]).await;
            let words = [op.name(), "is not defined on", dtype.name()];
            all_fail(&[case; 4], operations, FailureCode::BadPost, &words).await;
            succeeds(&clients, 2, &Case { op: ReduceOp::Sum, ..case }).await;
        }
    });
}
