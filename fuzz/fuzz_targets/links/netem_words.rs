//! Target of `fuzz::links::netem_words`; without `cargo fuzz` it replays the files on its command
//! line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::links::netem_words);
