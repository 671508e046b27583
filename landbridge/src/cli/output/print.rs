//! Printing reports to stdout.

use super::command_error::CommandError;
use gateway::observe::versioned::Versioned;

/// Prints a text for people and a line break to stdout. Lines are broken at spaces where they are
/// longer than the terminal is wide.
///
/// # Errors
/// [`CommandError::Unwritten`]: the text was not written whole.
pub(crate) fn print_text(text: &str) -> Result<(), CommandError> {
    print_verbatim(&stdio::wrap_words(text, stdio::output_columns()))
}

/// Prints a text for programs, or one that is laid out already, and a line break to stdout.
///
/// # Errors
/// Those of [`print_text`].
pub(crate) fn print_verbatim(text: &str) -> Result<(), CommandError> {
    Ok(stdio::write_stdout_report(text)?)
}

/// Prints a report as one JSON object on one line of stdout, with the version of its keys.
///
/// # Errors
/// As of [`print_text`].
pub(crate) fn print_json(report: &impl serde::Serialize) -> Result<(), CommandError> {
    print_verbatim(&Versioned::new(report).to_json())
}
