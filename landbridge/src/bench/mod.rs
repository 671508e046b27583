//! `landbridge bench`: ranks of benchmarks, from the command line.
//!
//! [`rank`] runs and times one rank. [`reference`](mod@reference) has the contributions and the
//! reduction to compare with.

mod rank;
mod reference;

pub(crate) use rank::{BenchError, Measurement, RankBench, sha256_hex, synchronize_ranks};
