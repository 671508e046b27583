//! A golden file of splits of a global batch. The tests of the Python client read the same file, so
//! that ranks of both languages compute equal splits, to the bit.
//!
//! After a change of the splits, `LANDBRIDGE_WRITE_GOLDEN=1 cargo test -p gateway --test
//! golden_batch` writes the file anew.

mod golden_file;

use hier_collectives::batch::{BATCH_MAX, BatchError, BatchSplit, batch_shares_within};
use serde_json::{Value, json};

const CASES: usize = 120;
const SEQUENCES: usize = 24;

/// Pseudo-random numbers by SplitMix64, the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    /// Returns speeds: some equal, some far apart.
    fn speeds(&mut self) -> Vec<f64> {
        let ranks = 1 + self.below(12);
        let speed = |numbers: &mut Self| match numbers.below(7) {
            0..3 => [0.25, 0.5, 1.0, 2.0, 3.0][numbers.below(5) as usize],
            3..5 => 0.1 + 9.9 * numbers.fraction(),
            5 => 1e-6 + 1e6 * numbers.fraction(),
            _ => f64::from_bits(1 + numbers.below(3)),
        };
        (0..ranks).map(|_| speed(self)).collect()
    }

    fn batch(&mut self) -> u64 {
        match self.below(3) {
            0 => self.below(60),
            1 => self.below(5_000),
            _ => self.below(BATCH_MAX + 1),
        }
    }

    /// Returns limits of the ranks, whose sum may be less than the batch.
    fn limits(&mut self, batch: u64, ranks: usize) -> Vec<u64> {
        let limit = |numbers: &mut Self| match numbers.below(4) {
            0 => u64::MAX,
            1 => numbers.below(1 + batch / 4),
            _ => numbers.below(2 + 2 * batch),
        };
        (0..ranks).map(|_| limit(self)).collect()
    }
}

/// Returns the limits, or `null` if there are none.
fn limits_of(limits: &[u64]) -> Value {
    if limits.iter().all(|limit| *limit == u64::MAX) { Value::Null } else { json!(limits) }
}

/// Returns the shares of a batch; `null` where it is refused.
fn shares_of(batch: u64, speeds: &[f64], limits: &[u64]) -> Value {
    let shares = batch_shares_within(batch, speeds, limits).ok();
    json!({ "batch": batch, "speeds": speeds, "limits": limits_of(limits), "shares": shares })
}

fn cases(numbers: &mut Numbers) -> Vec<Value> {
    let unlimited = [u64::MAX; 2];
    let mut cases = vec![
        shares_of(1, &[], &[]),
        shares_of(1, &[1.0, 0.0], &unlimited),
        shares_of(1, &[-1.0, 1.0], &unlimited),
        shares_of(1, &[f64::MAX; 2], &unlimited),
        shares_of(1, &[1.0; 2], &[1]),
        shares_of(BATCH_MAX + 1, &[1.0; 2], &unlimited),
        shares_of(51, &[1.0, 100.0], &unlimited),
        shares_of(4, &[1.0, 1.0], &[1, 2]),
        // In another order of operations, quotas differ in their last bit.
        shares_of(9, &[0.2, 0.6, 1.3], &[u64::MAX; 3]),
    ];
    for case in 0..CASES {
        let (batch, speeds) = (numbers.batch(), numbers.speeds());
        let mut limits = vec![u64::MAX; speeds.len()];
        if case % 2 == 1 {
            limits = numbers.limits(batch, speeds.len());
        }
        cases.push(shares_of(batch, &speeds, &limits));
    }
    cases
}

/// Returns a split and the exchanges that it handles, step by step. Speeds jitter, change for good
/// or are invalid; some ranks diverge or split another batch.
fn sequence(numbers: &mut Numbers) -> Value {
    let (batch, mut speeds) = (numbers.batch(), numbers.speeds());
    let limits = match numbers.below(2) {
        0 => vec![u64::MAX; speeds.len()],
        _ => vec![batch / speeds.len() as u64 + 1 + numbers.below(2 + batch); speeds.len()],
    };
    let begun = speeds.clone();
    let mut split = BatchSplit::new(batch, &speeds, &limits).expect("the ranks hold it");
    let mut steps = vec![];
    for _ in 0..25 {
        let rank = numbers.below(speeds.len() as u64) as usize;
        match numbers.below(10) {
            0 => speeds[rank] *= 0.5,
            1 => speeds[rank] = speeds[rank] * 2.0 + 0.01,
            _ => {}
        }
        let mut now: Vec<f64> =
            speeds.iter().map(|speed| speed * (0.98 + 0.04 * numbers.fraction())).collect();
        match numbers.below(20) {
            0 => now[rank] = -1.0,
            // Not measured yet.
            1..4 => now[rank] = 0.0,
            _ => {}
        }
        let (other, apart) = (numbers.below(20) == 0, numbers.below(20) == 0);
        steps.push(step(&mut split, &now, Fault { rank, other, apart }));
    }
    let (agreed, limits) = (split.agreed_digest(), limits_of(&limits));
    json!({ "batch": batch, "speeds": begun, "limits": limits, "agreed": agreed, "steps": steps })
}

/// Returns a split that could improve by 5 %, or by a little less.
fn at_the_edge(speed: f64) -> Value {
    let (batch, begun, limits) = (2000, [1.0, 1.0], [u64::MAX; 2]);
    let mut split = BatchSplit::new(batch, &begun, &limits).expect("no limits");
    let steps = [(); 5].map(|()| step(&mut split, &[1.0, speed], NO_FAULT));
    let (agreed, limits) = (split.agreed_digest(), limits_of(&limits));
    json!({ "batch": batch, "speeds": begun, "limits": limits, "agreed": agreed, "steps": steps })
}

/// Faults of one rank in an exchange.
struct Fault {
    rank: usize,
    /// True if the rank splits another batch.
    other: bool,
    /// True if the rank has diverged.
    apart: bool,
}

const NO_FAULT: Fault = Fault { rank: 0, other: false, apart: false };

/// Lets a split handle an exchange in which `rank` has another batch, or has diverged.
fn step(split: &mut BatchSplit, speeds: &[f64], fault: Fault) -> Value {
    let Fault { rank, other, apart } = fault;
    let mut agreed = vec![split.agreed_digest(); speeds.len()];
    let mut states = vec![split.state_digest(); speeds.len()];
    agreed[rank] ^= u64::from(other);
    states[rank] ^= u64::from(apart);
    let outcome = split.handle_exchange(speeds, &agreed, &states);
    json!({
        "speeds": speeds, "rank": rank, "other": other, "apart": apart,
        "unlike": matches!(outcome, Err(BatchError::Unlike { .. })), "changed": outcome.ok(),
        "shares": split.shares(), "state": split.state_digest(),
    })
}

#[test]
fn batches_split_as_in_the_golden_file() {
    let mut numbers = Numbers(1);
    let mut lines = cases(&mut numbers);
    lines.extend((0..SEQUENCES).map(|_| sequence(&mut numbers)));
    lines.extend([1050.0 / 950.0, 1049.0 / 951.0].map(at_the_edge));
    golden_file::compare("batch_splits.jsonl", &lines);
    // The file has each kind of outcome.
    let count = |key: &str, value: Value| {
        let steps = lines.iter().filter_map(|line| line["steps"].as_array()).flatten();
        steps.filter(|step| step[key] == value).count()
    };
    let kinds = [json!(true), json!(false), Value::Null].map(|value| count("changed", value));
    assert!(kinds.iter().all(|count| *count > 5), "{kinds:?}");
    assert!(count("unlike", json!(true)) > 5);
}
