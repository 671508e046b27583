//! See `fuzz::wire::parity_stream`. Without `cargo fuzz` it replays the files that it is given.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::wire::parity_stream);
