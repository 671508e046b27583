//! Standard output and standard error of a command.
//!
//! A report goes to standard output. It is written whole, or the command fails with
//! [`UnwrittenReport`]. Everything else goes to standard error through one [`LineQueue`]: log
//! lines, messages and progress. So no caller ever waits for the reader of standard error, and an
//! unwritten line is counted. A terminal neither stops a program that writes in its background nor
//! ends one that shall outlive it.
//!
//! Files that a user names are read here too: nobody waits for a pipe without a writer.
//!
//! All functions may be called on any thread. `println!` and `eprintln!` are no substitute: they
//! panic where a stream is full or closed.

// They panic or wait where a stream is closed, full or not read: use `stdio`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod columns;
mod drawing_terminal;
mod input_file;
mod line_queue;
mod stderr;
mod stdout_report;
mod terminal_signals;
mod word_wrap;
mod write_whole;

pub use columns::{help_columns, output_columns};
pub use drawing_terminal::is_drawing_terminal;
pub use input_file::{open_input_file, read_input_file_up_to, read_input_text_up_to};
pub use line_queue::{LineQueue, OwnFormat};
pub use stderr::{flush_stderr, print_stderr_message, show_stderr_progress, stderr_queue};
pub use stdout_report::{UnwrittenReport, write_stdout_report};
pub use terminal_signals::{
    ExitOnTerminalSignal, allow_terminal_background_writes, forbid_terminal_background_writes,
    is_terminal_hangup_ignored, unblock_terminal_signals,
};
pub use word_wrap::wrap_words;
