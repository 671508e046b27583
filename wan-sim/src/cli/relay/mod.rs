//! `wan-sim relay`: a UDP relay until it is interrupted.

mod relay_args;
mod relay_control;
mod relay_report;
mod relay_run;
mod relay_settings;

pub use relay_args::RelayArgs;
pub(super) use relay_run::run_relay;
