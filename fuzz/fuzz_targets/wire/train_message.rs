//! Target of `fuzz::wire::train_message`; without `cargo fuzz` it replays the files on its command
//! line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::wire::train_message);
