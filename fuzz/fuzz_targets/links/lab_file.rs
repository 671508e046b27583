//! Target of `fuzz::links::lab_file`; without `cargo fuzz` it replays the files on its command
//! line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::links::lab_file);
