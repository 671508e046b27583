//! Failures of collectives and commits: kinds, texts, and their encoding.

use crate::codec::{DecodeError, FieldReader, write_text};

/// Why a collective failed.
///
/// The gateway that detects the fault writes the text, which reaches every rank of every region
/// unchanged. The contribution is intact; the result slot holds no meaningful value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct Failure {
    /// The kind of failure, which tells the party at fault.
    pub code: FailureCode,
    /// The cause and the remedy in at most [`Failure::TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

impl Failure {
    /// 1,024 bytes: the longest text of a failure, a chosen length; a longer text is truncated. A
    /// failure then fits every message between trainer and gateway, and between gateways.
    /// Tested by `responses_survive_the_wire`.
    pub const TEXT_BYTES_MAX: usize = 1024;

    /// Makes a failure of kind `code`; a text longer than [`Self::TEXT_BYTES_MAX`] is truncated at
    /// a character.
    pub fn new(code: FailureCode, text: impl Into<String>) -> Self {
        Self { code, text: Self::truncate_text(text.into()) }
    }

    /// Truncates a text longer than [`Self::TEXT_BYTES_MAX`] at a character.
    pub fn truncate_text(mut text: String) -> String {
        let mut end = text.len().min(Self::TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    }

    /// Appends the failure to the message `out`: one byte of code, then the text.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.push(self.code as u8);
        write_text(out, &self.text);
    }

    /// Reads a failure: one byte of code, then the text.
    ///
    /// # Errors
    /// [`DecodeError`] when the code is unknown, the text is too long, or bytes are missing.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let code = FailureCode::from_code(reader.read_u8()?);
        let code = code.ok_or(DecodeError::Unknown("failure"))?;
        let text = reader.read_text()?;
        if text.len() > Self::TEXT_BYTES_MAX {
            return Err(DecodeError::Invalid("text"));
        }
        Ok(Self { code, text })
    }
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FailureCode {
    /// Ranks disagree on the collective; the text names the field, the ranks and the values.
    Disagreement = 1,
    /// The caller requested an undefined or forbidden operation.
    BadPost = 2,
    /// A rank did not post within the caller's timeout.
    TimedOut = 3,
    /// A rank that had to post disconnected.
    RankLost = 4,
    /// A region has become unreachable.
    RegionLost = 5,
    /// The epoch ended before the collective was complete.
    EpochEnded = 6,
    /// All ranks posted, but the exchange made no progress until its deadline.
    Stalled = 7,
    /// The gateway is shutting down.
    ShuttingDown = 8,
    /// The connection to the gateway was lost; the trainer's client reports it itself.
    GatewayLost = 9,
    /// The regions with which the job goes on have changed.
    MembershipChanged = 10,
}

impl FailureCode {
    /// All failure codes.
    pub const ALL: [Self; 10] = [
        Self::Disagreement,
        Self::BadPost,
        Self::TimedOut,
        Self::RankLost,
        Self::RegionLost,
        Self::EpochEnded,
        Self::Stalled,
        Self::ShuttingDown,
        Self::GatewayLost,
        Self::MembershipChanged,
    ];

    /// Returns the failure code with wire number `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    /// Whether a rank that posts after the end of an epoch hears the failure that ended the epoch, in
    /// place of `EpochEnded`.
    pub const fn replaces_epoch_ended(self) -> bool {
        self.is_fault_of_posts() || matches!(self, Self::MembershipChanged)
    }

    /// Whether the posts of ranks are at fault, so that the same posts would fail again.
    pub const fn is_fault_of_posts(self) -> bool {
        matches!(self, Self::Disagreement | Self::BadPost)
    }
}

impl std::fmt::Display for FailureCode {
    /// Prints the cause, with the party that caused it in parentheses: `rank lost (cause: peer)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Disagreement => "ranks disagree (cause: caller)",
            Self::BadPost => "bad request (cause: caller)",
            Self::TimedOut => "timed out waiting for ranks (cause: caller)",
            Self::RankLost => "rank lost (cause: peer)",
            Self::RegionLost => "region lost (cause: link)",
            Self::EpochEnded => "epoch ended (cause: peer)",
            Self::Stalled => "exchange stalled (cause: link)",
            Self::ShuttingDown => "gateway shutting down (cause: gateway)",
            Self::GatewayLost => "gateway lost (cause: gateway)",
            Self::MembershipChanged => "membership changed (cause: peer)",
        })
    }
}
