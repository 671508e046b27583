//! Target of `fuzz::wire::control_message`; without `cargo fuzz` it replays the files on its
//! command line.
#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_main!(fuzz::wire::control_message);
