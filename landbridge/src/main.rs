//! The `landbridge` command: the daemon, and the commands around it.
//!
//! [`cli`] parses the command line and prints; below it are the modules that do a command's work
//! where that is more than a call into the library `gateway`: [`doctor`], [`firewall`],
//! [`init`], [`mod@bench`], [`explain`], [`quickstart`] and [`trace`]. Nothing here is used by the daemon.

// They panic or wait where a stream is closed, full or not read: use `stdio`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod cli;
mod doctor;
mod explain;
mod firewall;
mod init;
mod quickstart;
mod trace;

/// Runs the program `landbridge` with the arguments of this process. Returns its exit code.
fn main() -> cli::Exit {
    cli::main()
}
