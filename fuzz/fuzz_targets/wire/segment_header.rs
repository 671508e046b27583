//! Target of `fuzz::wire::segment_header`; without `cargo fuzz` it replays the files on its command
//! line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::wire::segment_header);
