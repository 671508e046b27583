//! The command line of `wan-sim`, which `landbridge wan-sim` offers, too.

mod command;
mod exit;
mod interrupt;
mod json;
mod lab;
mod output;
mod progress;
mod relay;
mod show;
mod tc;
mod usage;

pub use command::{Command, run_command};
pub use exit::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_UNAVAILABLE, EXIT_USAGE};
pub use lab::LabCommand;
pub use relay::RelayArgs;
pub use tc::TcArgs;
pub use usage::{explain_usage_error, fit_usage_help, parse_command_line};
