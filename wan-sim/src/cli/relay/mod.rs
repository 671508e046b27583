//! `wan-sim relay`: a UDP relay until it is interrupted.

mod args;
mod control;
mod report;
mod run;
mod settings;

pub use args::RelayArgs;
pub(super) use run::run_relay;
