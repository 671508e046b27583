//! The error for the name of an element type or reduce operation that does not exist.

/// Why a name is unknown; always an error of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not one of {known}")]
pub struct UnknownName {
    given: String,
    known: String,
}

impl UnknownName {
    /// Returns the error for a name that is not among `known`.
    pub(super) fn new(given: &str, known: &[&str]) -> Self {
        Self { given: given.to_owned(), known: known.join(", ") }
    }
}
