//! Target of `fuzz::local::piece_stream`; without `cargo fuzz` it replays the files on its command
//! line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::local::piece_stream);
