//! Target of `fuzz::store::store_request`; without `cargo fuzz` it replays the files on its command line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::store::store_request);
