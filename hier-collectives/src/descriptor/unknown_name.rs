//! The error for the name of an element type or reduce operation that does not exist.

/// Why a name is unknown; always an error of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not one of {known}")]
pub struct UnknownName {
    pub(super) given: String,
    pub(super) known: &'static str,
}
