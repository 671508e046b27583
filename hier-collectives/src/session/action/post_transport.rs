//! The way of a post's bytes to this gateway and back.

/// The way of a post's bytes. By default the rank's memory is shared: all of the contribution is
/// here, and the rank sees its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PostTransport {
    /// The first byte of the contribution that is still to come; `None` if all are here.
    pub missing_from: Option<u64>,
    /// Whether [`Action::ResultPlaced`](super::Action::ResultPlaced) reports each part of the result.
    pub reports_result: bool,
    /// How many bytes the rank announced, where its contribution has another number of them; such a
    /// post is refused.
    pub misfit: Option<ContributionMisfit>,
}

/// A contribution whose rank announced another number of bytes than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContributionMisfit {
    /// Bytes that follow the post, as the rank says.
    pub announced: u64,
    /// Bytes of the contribution, as the post and the place of the rank say.
    pub contribution: u64,
}
