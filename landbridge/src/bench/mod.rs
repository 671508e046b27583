//! `landbridge bench`: ranks of benchmarks, from the command line.
//!
//! [`rank`] runs and times one rank. [`reference`](mod@reference) has the contributions and the
//! reduction to compare with. [`waiting`] says what keeps a rank from going on.

mod rank;
mod reference;
mod waiting;

pub(crate) use rank::{BenchError, Measurement, RankBench, bench_rank_sha256, synchronize_ranks};
pub(crate) use waiting::run_rank_while_telling_waiting;
