//! Printing to stdout.

use std::io::Write;

/// Prints a text and a line break. A reader that has closed the pipe, such as `head`, is no error.
pub(crate) fn show(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{}", text.trim_end());
}

/// Prints one JSON object.
pub(crate) fn show_json(value: &impl serde::Serialize) {
    show(&serde_json::to_string(value).expect("keys are strings"));
}
