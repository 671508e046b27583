//! Printing reports to stdout.

use super::exit::CommandError;

/// Prints a text and a line break to stdout.
///
/// # Errors
/// [`CommandError::Unwritten`]: the text was not written whole.
pub(crate) fn print_text(text: &str) -> Result<(), CommandError> {
    Ok(stdio::write_report(text)?)
}

/// Prints a value as one JSON object on one line of stdout.
///
/// # Errors
/// As of [`print_text`].
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), CommandError> {
    print_text(&serde_json::to_string(value).expect("keys are strings"))
}
