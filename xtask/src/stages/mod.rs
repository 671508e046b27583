//! The stages of `cargo xtask test` and `cargo xtask check`.

pub mod stage_run;
mod test_programs;
pub mod test_stages;
