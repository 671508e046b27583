//! Shared by all commands: exit codes, printing, tables, logs, and the tie to a parent process.

pub(super) mod abort;
pub(super) mod exit;
mod log_line;
pub(super) mod logging;
pub(super) mod parent;
pub(super) mod print;
pub(super) mod table;
