//! The stages of `cargo xtask test` and `cargo xtask check`.

pub mod stage_runner;
mod test_programs;
pub mod test_stages;
