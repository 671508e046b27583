//! Printing reports to stdout.

use super::exit::CommandError;
use gateway::observe::versioned::Versioned;

/// Prints a text and a line break to stdout.
///
/// # Errors
/// [`CommandError::Unwritten`]: the text was not written whole.
pub(crate) fn print_text(text: &str) -> Result<(), CommandError> {
    Ok(stdio::write_report(text)?)
}

/// Prints a report as one JSON object on one line of stdout, with the version of its keys.
///
/// # Errors
/// As of [`print_text`].
pub(crate) fn print_json(report: &impl serde::Serialize) -> Result<(), CommandError> {
    print_text(&Versioned::new(report).to_json())
}
