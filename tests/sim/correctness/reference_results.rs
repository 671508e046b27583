//! Results equal the reference, on every rank, in every run.

use gateway::client::Client;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::FailureCode;
use scenarios::collectives::batch::{Case, Values, outcomes, post_all, post_with, weight};
use scenarios::collectives::data;
use scenarios::{Lab, Shape, ppm, simulate};
use std::collections::BTreeSet;
use units::Span;

/// Numbers of elements of small buffers.
const LENGTHS: [u64; 4] = [0, 1, 3, 1003];
/// Elements of a long buffer, which no segment divides.
const LONG: u64 = 1_000_003;
/// Elements of the longest buffer.
const LONGEST: u64 = 16 << 20;

/// Returns a case for every op and length, with values of every kind, then of floats with ordinary
/// ones.
fn small_cases(dtype: Dtype) -> Vec<Case> {
    let mut cases = Vec::new();
    for op in ReduceOp::ALL {
        for elements in LENGTHS {
            cases.push(Case::new(op, dtype, elements, elements + 77 * op as u64));
        }
        if dtype.is_float() {
            cases.push(Case { values: Values::Ordinary, ..Case::new(op, dtype, LENGTHS[3], 5) });
        }
    }
    cases
}

/// Runs all cases at once, checks each and returns the results.
async fn check_together(clients: &[Client], shape: &Shape, cases: &[Case]) -> Vec<Vec<u8>> {
    let mut under_way = Vec::new();
    for case in cases {
        under_way.push(post_all(clients, case).await);
    }
    let mut results = Vec::new();
    for (case, operations) in cases.iter().zip(&mut under_way) {
        let outcomes = outcomes(operations).await;
        if !case.op.accepts(case.dtype) {
            for outcome in &outcomes {
                let failure = outcome.as_ref().expect_err("an undefined reduction");
                assert_eq!(failure.code, FailureCode::BadPost, "{case:?}: {failure}");
                assert!(failure.text.contains("is not defined on"), "{failure}");
            }
            continue;
        }
        let expected = case.expected(clients.len() as u32, shape.ranks.0);
        for (rank, outcome) in outcomes.iter().enumerate() {
            let result = outcome.as_ref().unwrap_or_else(|why| panic!("{case:?}: {why}"));
            assert!(*result == expected, "{shape:?} {case:?}: rank {rank} has other bits");
        }
        if case.values == Values::Ordinary && case.dtype.is_float() {
            let error = worst_error(case, clients.len() as u32, &expected);
            assert!(error <= 1.0, "{shape:?} {case:?}: {error} of the tolerance");
        }
        results.push(expected);
    }
    results
}

/// Returns the largest distance from arithmetic in f64, as a share of the error that rounding
/// explains.
fn worst_error(case: &Case, ranks: u32, result: &[u8]) -> f64 {
    let contributions = case.contributions(ranks);
    let inputs: Vec<_> = contributions.iter().map(|b| data::as_f64(case.dtype, b)).collect();
    let total: f64 = (0..ranks).map(weight).sum();
    let result = data::as_f64(case.dtype, result);
    let error = |(index, got): (usize, &f64)| {
        let column: Vec<f64> = inputs.iter().map(|input| input[index]).collect();
        let weighted = || column.iter().zip(0..).map(|(x, rank)| x * weight(rank) / total);
        let magnitude: f64 = column.iter().map(|x| x.abs()).sum();
        let (want, scale) = match case.op {
            ReduceOp::Sum => (column.iter().sum(), magnitude),
            ReduceOp::Avg => (weighted().sum(), weighted().map(f64::abs).sum()),
            ReduceOp::Min => (column.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
            ReduceOp::Max => (column.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
            ReduceOp::Prod => {
                let product: f64 = column.iter().product();
                (product, product.abs())
            }
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => {
                unreachable!("no operations of floats")
            }
        };
        // Each operation rounds once; a partial and a result are rounded to the dtype.
        let allowed = f64::from(ranks + 2) * (roundoff(case.dtype) * scale + least(case.dtype));
        (got - want).abs() / allowed
    };
    result.iter().enumerate().map(error).fold(0.0, f64::max)
}

/// Returns the largest relative error of one rounding.
fn roundoff(dtype: Dtype) -> f64 {
    let bits = match dtype {
        Dtype::F64 => 53,
        Dtype::F32 => 24,
        Dtype::F16 => 11,
        _ => 8,
    };
    0.5f64.powi(bits)
}

/// Returns the least positive number, by which an underflow may be off.
fn least(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => f64::from_bits(1),
        Dtype::F32 => f64::from(f32::from_bits(1)),
        Dtype::F16 => 0.5f64.powi(24),
        _ => 0.5f64.powi(133),
    }
}

/// Runs all small cases on one shape, in one lab; returns the results in order.
fn small_results(shape: &Shape, seed: u64) -> Vec<Vec<u8>> {
    simulate(async {
        let lab = Lab::start(shape, seed).await;
        let clients = lab.clients(1 << 20).await;
        let mut results = Vec::new();
        for dtype in Dtype::ALL {
            results.extend(check_together(&clients, shape, &small_cases(dtype)).await);
        }
        results
    })
}

/// Runs all small cases with `east` ranks in east, near without loss, then far with loss: the bits
/// must be equal.
fn small_cases_with_east(east: u32) {
    for west in 1..=4 {
        let shape = Shape { rtt: Span::from_ms(20), ..Shape::new(east, west) };
        let first = small_results(&shape, 1);
        let other = Shape {
            rtt: Span::from_ms(110),
            loss: ppm(10_000),
            jitter: Span::from_ms(2),
            ..Shape::new(east, west)
        };
        let second = small_results(&other, u64::from(1000 * east + west));
        assert!(first == second, "{east}+{west}: the second run has other bits");
        // Floats have five operations, and a case of ordinary values; other types have seven.
        assert_eq!(first.len(), 4 * 5 * 5 + 9 * 7 * 4, "every reduction that is defined");
    }
}

#[test]
fn one_rank_in_the_first_region() {
    small_cases_with_east(1);
}

#[test]
fn two_ranks_in_the_first_region() {
    small_cases_with_east(2);
}

#[test]
fn three_ranks_in_the_first_region() {
    small_cases_with_east(3);
}

#[test]
fn four_ranks_in_the_first_region() {
    small_cases_with_east(4);
}

/// Returns cases of dtype, op, ranks of both regions and loss, in which any two values of any two
/// of them meet. Shapes come from two orthogonal Latin squares over GF(4).
fn pairwise_cases() -> Vec<(Dtype, ReduceOp, u32, u32, bool)> {
    let mut cases = Vec::new();
    for (d, dtype) in (0u32..).zip(Dtype::ALL) {
        for (o, op) in [0u32, 1, 2, 3, 1, 0, 2, 3].into_iter().zip(ReduceOp::ALL) {
            if op.accepts(dtype) {
                let (east, west) = ((d ^ o) & 3, (d ^ [0, 2, 3, 1][o as usize]) & 3);
                cases.push((dtype, op, east + 1, west + 1, (d + op as u32).is_multiple_of(2)));
            }
        }
    }
    cases
}

#[test]
fn any_two_factors_of_the_long_cases_meet() {
    let mut pairs = BTreeSet::new();
    for (dtype, op, east, west, lossy) in pairwise_cases() {
        let values = [dtype as u32, op as u32, east, west, u32::from(lossy)];
        for one in 0..values.len() {
            for other in one + 1..values.len() {
                pairs.insert((one, other, values[one], values[other]));
            }
        }
    }
    let sizes = [13, 8, 4, 4, 2];
    let products = (0..5).flat_map(|one| (one + 1..5).map(move |other| sizes[one] * sizes[other]));
    let undefined = 9 + 4 * 3;
    assert_eq!(pairs.len(), products.sum::<usize>() - undefined, "all that are defined");
}

fn check_alone(shape: &Shape, case: Case, seed: u64) {
    simulate(async {
        let lab = Lab::start(shape, seed).await;
        let clients = lab.clients(2 * case.elements * case.dtype.size() + 4096).await;
        let results = check_together(&clients, shape, &[case]).await;
        assert_eq!(results.len(), 1);
    });
}

fn long_cases(part: usize) {
    for (index, (dtype, op, east, west, lossy)) in pairwise_cases().into_iter().enumerate() {
        if index % 2 == part {
            let loss = ppm(if lossy { 1000 } else { 0 });
            let shape = Shape { loss, rtt: Span::from_ms(30), ..Shape::new(east, west) };
            let case = Case::new(op, dtype, LONG, index as u64);
            check_alone(&shape, case, index as u64);
            if dtype.is_float() {
                let case = Case { values: Values::Ordinary, ..case };
                check_alone(&shape, case, 100 + index as u64);
            }
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_million_elements_even_cases() {
    long_cases(0);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_million_elements_odd_cases() {
    long_cases(1);
}

#[test]
fn sixteen_mebi_elements_wide() {
    let shape = Shape { loss: ppm(1000), ..Shape::new(1, 1) };
    check_alone(&shape, Case::new(ReduceOp::Sum, Dtype::F32, LONGEST, 1), 1);
    check_alone(&Shape::new(2, 2), Case::new(ReduceOp::Min, Dtype::I32, LONGEST, 2), 2);
}

#[test]
fn sixteen_mebi_elements_narrow() {
    let shape = Shape { loss: ppm(1000), ..Shape::new(2, 1) };
    check_alone(&shape, Case::new(ReduceOp::Avg, Dtype::Bf16, LONGEST, 3), 3);
    check_alone(&Shape::new(1, 3), Case::new(ReduceOp::Prod, Dtype::U8, LONGEST, 4), 4);
}

#[test]
fn an_average_without_the_weights_misses_the_reference() {
    simulate(async {
        let lab = Lab::start(&Shape::new(3, 1), 1).await;
        let clients = lab.clients(1 << 20).await;
        let case = Case::new(ReduceOp::Avg, Dtype::F32, 1003, 9);
        let case = Case { values: Values::Ordinary, ..case };
        let mut weighted = post_all(&clients, &case).await;
        let mut unweighted = Vec::new();
        for client in &clients {
            unweighted.push(post_with(client, &case, 1.0, Span::from_secs(60)).await);
        }
        for result in outcomes(&mut weighted).await {
            assert!(worst_error(&case, 4, &result.expect("a result")) <= 1.0);
        }
        for result in outcomes(&mut unweighted).await {
            let error = worst_error(&case, 4, &result.expect("a result"));
            assert!(error > 1000.0, "only {error} of the tolerance away");
        }
    });
}
