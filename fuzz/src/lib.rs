//! One fuzz target for each decoder: a function over any bytes that panics when the decoder breaks
//! a promise.
//!
//! No decoder panics. An accepted input survives being encoded and decoded again. The memory that a
//! decoder allocates is bounded by the length of its input. A refusal names the problem and its
//! place. `cargo fuzz` runs a target over inputs of libFuzzer and watches its time.
//! `tests/short.rs` runs it over the seeds and over seeded mutations of them.

mod bounds;
pub mod config;
mod fuzz_target;
pub mod links;
pub mod local;
pub mod mutate;
pub mod seeds;
pub mod store;
pub mod wire;

pub use fuzz_target::{FuzzTarget, TARGETS};

use std::path::PathBuf;
use std::process::ExitCode;

/// The program of a target: libFuzzer under `cargo fuzz`, or else [`replay_fuzz_files`].
#[macro_export]
macro_rules! fuzz_main {
    ($check:path) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $check(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::replay_fuzz_files($check)
        }
    };
}

/// Runs a target once over each file on the command line, so that a finding can be reproduced
/// without `cargo fuzz` and its toolchain.
pub fn replay_fuzz_files(check: fn(&[u8])) -> ExitCode {
    let files: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        eprintln!("Usage: cargo run -p fuzz --bin TARGET -- FILE...");
        return ExitCode::from(64);
    }
    for file in files {
        match std::fs::read(&file) {
            Ok(bytes) => check(&bytes),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::from(64);
            }
        }
        println!("{}: good", file.display());
    }
    ExitCode::SUCCESS
}
