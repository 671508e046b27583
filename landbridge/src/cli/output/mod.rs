//! Shared by all commands: exit codes, printing, tables, logs, and the tie to a parent process.

pub(super) mod command_error;
pub(super) mod exit;
pub(super) mod fatal_signals;
mod json_log;
mod log_line;
pub(super) mod logging;
pub(super) mod parent;
pub(super) mod print;
mod sentence_fields;
pub(super) mod table;
