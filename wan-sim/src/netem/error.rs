//! The errors of words that describe no link.

use crate::SpecError;

/// Words that describe no link. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetemError {
    /// An unknown word, or one in the wrong place.
    #[error("`{word}` is not understood here; accepted: {accepted}")]
    Unknown {
        /// The word.
        word: String,
        /// The words that are accepted here.
        accepted: &'static str,
    },
    /// The value of a word is missing or invalid.
    #[error("`{word}` wants {wanted}, not `{value}`")]
    Value {
        /// The word.
        word: &'static str,
        /// The value found; empty at the end of the text.
        value: String,
        /// The values that are accepted.
        wanted: &'static str,
    },
    /// A repeated word, one of which would have no effect.
    #[error("`{word}` is given twice: give one")]
    Twice {
        /// The word.
        word: String,
    },
    /// Netem knows it, this model does not.
    #[error("`{word}` is refused: {reason}")]
    Refused {
        /// The word, with its value where that is the trouble.
        word: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A word without effect by itself.
    #[error("`{word}` has no effect without {needed}")]
    Without {
        /// The word.
        word: &'static str,
        /// The word that it needs.
        needed: &'static str,
    },
    /// The words are understood, but no link can be like that.
    #[error("{0}")]
    Spec(#[from] SpecError),
}
