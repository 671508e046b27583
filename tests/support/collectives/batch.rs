//! One collective on every rank: contributions and expected results.

use crate::collectives::data;
use gateway::client::{Client, DEFAULT_TIMEOUT, Operation};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::Failure;
use hier_collectives::reduce::dispatch_slices;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::Span;

/// A collective whose contributions follow from a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// Elements of the buffer.
    pub elements: u64,
    /// The seed of the contributions.
    pub seed: u64,
    /// The kind of numbers.
    pub values: Values,
}

/// The kind of numbers that contributions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Numbers of every kind; see [`data::contribution`].
    Any,
    /// Numbers with a close f64 reference; see [`data::ordinary`].
    Ordinary,
}

/// The contributions of one case that were made.
#[derive(Debug, Default)]
struct MadeContributions {
    case: Option<Case>,
    by_rank: BTreeMap<u32, Arc<Vec<u8>>>,
}

thread_local! {
    /// The contributions of the case that this thread used last.
    static LATEST_CASE: RefCell<MadeContributions> = RefCell::default();
}

impl Case {
    /// Returns a case with values of every kind.
    pub fn new(op: ReduceOp, dtype: Dtype, elements: u64, seed: u64) -> Self {
        Self { op, dtype, elements, seed, values: Values::Any }
    }

    /// Returns the contribution of each rank.
    pub fn contributions(&self, ranks: u32) -> Vec<Arc<Vec<u8>>> {
        (0..ranks).map(|rank| self.contribution(rank)).collect()
    }

    /// Returns the contribution of a rank. It is made once for a thread's latest case: a run posts
    /// it, computes the expected result from it, and often repeats the case.
    pub fn contribution(&self, rank: u32) -> Arc<Vec<u8>> {
        LATEST_CASE.with_borrow_mut(|made| {
            if made.case != Some(*self) {
                *made = MadeContributions { case: Some(*self), by_rank: BTreeMap::new() };
            }
            let make = || match self.values {
                Values::Any => data::contribution(self.dtype, self.elements, rank, self.seed),
                Values::Ordinary => data::ordinary(self.dtype, self.elements, rank, self.seed),
            };
            Arc::clone(made.by_rank.entry(rank).or_insert_with(|| Arc::new(make())))
        })
    }

    /// The result that every rank must get by any algorithm, where no order of operands changes the
    /// bits.
    pub fn in_any_order(&self, ranks: u32) -> Vec<u8> {
        let contributions = self.contributions(ranks);
        let inputs: Vec<(&[u8], f64)> = contributions.iter().map(|c| (&c[..], 1.0)).collect();
        let mut out = vec![0; contributions[0].len()];
        dispatch_slices(self.op, self.dtype, &mut out, &inputs).expect("fitting slices");
        out
    }

    /// The result that every rank must get when the first `east` of `ranks` are in the first
    /// region.
    pub fn expected(&self, ranks: u32, east: u32) -> Vec<u8> {
        let weights: Vec<f64> = (0..ranks).map(weight).collect();
        let contributions = self.contributions(ranks);
        data::expected(self.op, self.dtype, &contributions, &weights, east as usize)
    }
}

/// A rank's weight in averages: no two ranks of a scenario have the same.
pub fn weight(rank: u32) -> f64 {
    [1.0, 2.5, 0.5, 3.25, 0.125, 7.0, 1.75, 0.3][rank as usize % 8]
}

/// Posts `case` on `client`, with the contribution and weight of its rank.
pub async fn post(client: &Client, case: &Case) -> Operation {
    post_with(client, case, weight(client.rank().0), DEFAULT_TIMEOUT).await
}

/// Posts `case` on `client` with another weight and timeout.
pub async fn post_with(client: &Client, case: &Case, weight: f64, timeout: Span) -> Operation {
    let mut tensor = client.allocate(case.dtype, case.elements).expect("room in the arena");
    tensor.write(&case.contribution(client.rank().0));
    client.all_reduce_with(tensor, case.op, weight, timeout).await.expect("posted")
}

/// Posts `case` on every rank.
pub async fn post_all(clients: &[Client], case: &Case) -> Vec<Operation> {
    let contributions = case.contributions(clients.len() as u32);
    let mut operations = Vec::new();
    for (client, contribution) in clients.iter().zip(&contributions) {
        let mut tensor = client.allocate(case.dtype, case.elements).expect("room in the arena");
        tensor.write(contribution);
        let weight = weight(client.rank().0);
        let posted = client.all_reduce_with(tensor, case.op, weight, DEFAULT_TIMEOUT).await;
        operations.push(posted.expect("posted"));
    }
    operations
}

/// Waits for all operations; returns the result or failure of each rank.
pub async fn outcomes(operations: &mut [Operation]) -> Vec<Result<Vec<u8>, Failure>> {
    let mut outcomes = Vec::new();
    for operation in operations {
        let ready = operation.ready().await;
        outcomes.push(ready.map(|_| operation.result()));
    }
    outcomes
}

/// Runs one all-reduce over all ranks and checks the bits of each result.
///
/// # Panics
/// When a result is wrong or missing.
pub async fn succeeds(clients: &[Client], east: u32, case: &Case) {
    let expected = case.expected(clients.len() as u32, east);
    let mut operations = post_all(clients, case).await;
    for (rank, outcome) in outcomes(&mut operations).await.into_iter().enumerate() {
        let result = outcome.unwrap_or_else(|failure| panic!("{case:?}: rank {rank}: {failure}"));
        assert!(result == expected, "{case:?}: rank {rank} has other bits");
    }
}
