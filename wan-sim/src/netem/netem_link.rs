//! A link as netem's words describe it: the result of the parser, and what is printed.

use crate::LinkSpec;

/// A link as netem's words describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Netem {
    /// The link, in one direction.
    pub link: LinkSpec,
    /// The seed, where the words name one.
    pub seed: Option<u64>,
}
