//! See `fuzz::config::fabric_config`. Without `cargo fuzz` it replays the files that it is given.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::config::fabric_config);
