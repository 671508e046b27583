//! `wan-sim lab`: labs of network namespaces, each known by its file.

mod args;
mod lab_commands;
mod lab_failure;
mod lab_home;
mod up;

pub use args::LabCommand;
pub(super) use lab_commands::run_lab_command;
