//! `wan-sim lab`: labs of network namespaces, each known by its file.

mod args;
mod failure;
mod home;
mod run;
mod up;

pub use args::LabCommand;
pub(super) use run::run_lab_command;
