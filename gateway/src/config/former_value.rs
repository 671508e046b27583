//! Values that earlier versions took, and the values that replace them.
//!
//! The reader records the replacement with the fault of such a value, `landbridge check --fix` writes
//! it, and docs/configuration.md lists all of [`FORMER_VALUES`].

use serde::{Serialize, Serializer};
use std::ops::Range;

/// A value that an earlier version took.
pub(super) struct FormerValue {
    /// The path of its key, as the reference page spells it.
    pub key: &'static str,
    /// The value as a file spells it.
    pub earlier: &'static str,
    /// The value that replaces it.
    pub now: &'static str,
    /// The change, in a sentence.
    pub change: &'static str,
}

impl FormerValue {
    /// Says what is wrong with the value, as a phrase after it.
    pub(super) fn problem(&self) -> String {
        format!("is of an earlier version; `landbridge check --fix` writes {}", self.now)
    }
}

/// The controller of a link whose rate is known and ours, by its earlier name.
pub(super) const LINK_SHARE: FormerValue = FormerValue {
    key: "link.A-B.controller",
    earlier: "\"link-share\"",
    now: "\"dedicated\"",
    change: "The controller has another name.",
};

/// A port in `listen` of a gateway that nobody dials, which was ignored.
pub(super) const DIALLING_PORT: FormerValue = FormerValue {
    key: "gateway.GATEWAY.listen",
    earlier: "\"0.0.0.0:7400\" without `wan`",
    now: "\"0.0.0.0:0\"",
    change: "A gateway without `wan` dials from any port. The port was ignored.",
};

/// All values that earlier versions took, for the reference page.
pub(super) const FORMER_VALUES: [FormerValue; 2] = [LINK_SHARE, DIALLING_PORT];

/// A text that `landbridge check --fix` writes in place of a value of an earlier version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replacement {
    /// The first byte of the value in the text of its file.
    start: usize,
    /// The byte behind the value.
    end: usize,
    /// The value that replaces it, as a file spells it.
    value: String,
}

impl Replacement {
    /// Makes the replacement of the value at a span of a file's text.
    pub(super) fn new(span: &Range<usize>, value: String) -> Self {
        Self { start: span.start, end: span.end, value }
    }

    /// Returns the bytes of the file's text that are replaced.
    pub fn span(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns the value as a file spells it.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl Serialize for Replacement {
    /// Serialises the value as a text: its place says nothing to readers of the fault.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.value)
    }
}
