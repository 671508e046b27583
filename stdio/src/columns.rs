//! The width of the terminal.

use std::io::{self, IsTerminal};
use terminal_size::{Width, terminal_size};

/// 80 columns: the width of reports where standard output is no terminal, and the greatest width of
/// help texts. Terminals are commonly no narrower.
const COLUMNS_DEFAULT: u16 = 80;

/// Returns the number of columns that a report may use: those of the terminal, or 80.
pub fn output_columns() -> u16 {
    let size = io::stdout().is_terminal().then(terminal_size).flatten();
    size.map_or(COLUMNS_DEFAULT, |(Width(columns), _)| columns)
}

/// Returns the number of columns of a help text, at most 80: those of the terminal on any stream,
/// else those of the variable `COLUMNS`. People read help in pagers, too.
pub fn help_columns() -> u16 {
    let told = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let found = terminal_size().map(|(Width(columns), _)| columns).or_else(told);
    found.map_or(COLUMNS_DEFAULT, |columns| columns.min(COLUMNS_DEFAULT))
}
