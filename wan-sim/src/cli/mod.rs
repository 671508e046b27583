//! The command line of `wan-sim`, which `landbridge wan-sim` offers, too.

mod command;
mod exit_codes;
mod interrupt;
mod json;
mod lab;
mod output;
mod progress_line;
mod relay;
mod show;
mod tc;
mod usage;

pub use command::{Command, run_wan_sim_command};
pub use exit_codes::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_UNAVAILABLE, EXIT_USAGE};
pub use lab::LabCommand;
pub use relay::RelayArgs;
pub use tc::TcArgs;
pub use usage::{explain_usage_error, fit_usage_help, parse_arguments_or_usage};
