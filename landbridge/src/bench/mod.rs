//! `landbridge bench`: ranks of benchmarks, from the command line.
//!
//! [`rank_bench`] runs and times one rank. [`reference_element`] has the contributions and the
//! reduction to compare with. [`waiting`] says what keeps a rank from going on.

mod rank_bench;
mod reference_element;
mod waiting;

pub(crate) use rank_bench::{
    BenchError, Measurement, RankBench, bench_rank_sha256, synchronize_bench_ranks,
};
pub(crate) use waiting::run_bench_telling_waiting;
