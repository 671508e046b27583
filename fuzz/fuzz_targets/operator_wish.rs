//! See `fuzz::local::operator_wish`. Without `cargo fuzz` it replays the files that it is given.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::local::operator_wish);
