//! Printing to stdout.

use std::io::Write;

/// Prints a text and a line break to stdout. A reader that has closed the pipe, such as `head`, is
/// no error.
pub(crate) fn print_text(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{}", text.trim_end());
}

/// Prints a value as one JSON object on one line of stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) {
    print_text(&serde_json::to_string(value).expect("keys are strings"));
}
