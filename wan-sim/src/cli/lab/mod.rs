//! `wan-sim lab`: labs of network namespaces, each known by its file.

mod args;
mod commands;
mod failure;
mod home;
mod up;

pub use args::LabCommand;
pub(super) use commands::run_lab_command;
