//! Messages between a rank and the session: posts and commits one way, events the other.

use crate::codec::{DecodeError, FieldReader, write_text, write_u64};
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, Sequence, Step};
use units::{Span, TimeNs};

/// A rank's request for one collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Post {
    /// The epoch that the rank is in.
    pub epoch: Epoch,
    /// Number of the collective.
    pub sequence: Sequence,
    /// The operation and the buffer's shape.
    pub descriptor: Descriptor,
    /// The rank's weight in an average, finite and not negative.
    pub weight: f64,
    /// Time that the rank waits for the other ranks to post.
    pub timeout: Span,
}

/// A rank's request to be notified when a step is complete in every region.
///
/// The step is all collectives that the rank posted since its last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The epoch that the rank is in.
    pub epoch: Epoch,
    /// The rank's number for the step.
    pub step: Step,
    /// Time that the rank waits for the other regions.
    pub timeout: Span,
}

/// A step whose collectives are complete in every region.
///
/// The order is that of time, since collectives are numbered through all epochs. Trainers choose
/// the numbers of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Committed {
    /// One past the last collective of the step.
    pub below: Sequence,
    /// The step.
    pub step: Step,
}

/// An event that the session reports to a rank.
#[derive(Debug, Clone, PartialEq)]
pub enum RankEvent {
    /// An epoch began. Its collectives are numbered from `next` on.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
        /// Number of the first collective.
        next: Sequence,
        /// The last step that some gateway knows to be complete in every region, also when
        /// this rank's commit failed.
        committed: Option<Step>,
    },
    /// The result is in the rank's result slot and may be read. The gateway may still forward it
    /// from there.
    ResultReady {
        /// The collective.
        sequence: Sequence,
        /// Instants of the collective.
        timing: Timing,
    },
    /// Both slots may be written again, since every receipt has arrived.
    ContributionFree {
        /// The collective.
        sequence: Sequence,
    },
    /// The collective failed. Both slots belong to the rank again.
    Failed {
        /// The collective.
        sequence: Sequence,
        /// Why.
        failure: Failure,
    },
    /// All ranks of every region have the step's results.
    Committed {
        /// The step.
        step: Step,
    },
    /// It is unknown here whether every region has the step's results. The next epoch reports
    /// whether some gateway knows.
    CommitFailed {
        /// The step.
        step: Step,
        /// The reason, and the steps that each region completed.
        failure: Failure,
    },
}

/// Instants of one collective on the gateway's clock.
///
/// All gateways and ranks of one host read the same monotonic clock, so these are comparable there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Instant at which the last local rank posted.
    pub posted: TimeNs,
    /// Instant at which the first segment was ready to be sent.
    pub wan_begin: TimeNs,
    /// Instant at which the last segment arrived.
    pub wan_end: TimeNs,
    /// Instant at which every local rank had the result.
    pub ready: TimeNs,
}

/// Why a collective failed.
///
/// The gateway that detects the fault writes the text, which reaches every rank of every region
/// unchanged. The contribution is intact; the result slot holds no meaningful value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct Failure {
    /// The kind of failure, which tells the party at fault.
    pub code: FailureCode,
    /// The cause and the remedy in at most [`Failure::MAX_TEXT_BYTES`] bytes.
    pub text: String,
}

impl Failure {
    /// 1,024 bytes, the longest text of a failure, so that it fits every frame.
    /// Tested by `responses_survive_the_wire`.
    pub const MAX_TEXT_BYTES: usize = 1024;

    /// Makes a failure of kind `code`; a text longer than [`Self::MAX_TEXT_BYTES`] is truncated at
    /// a character.
    pub fn new(code: FailureCode, text: impl Into<String>) -> Self {
        let mut text: String = text.into();
        let mut end = text.len().min(Self::MAX_TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self { code, text }
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
        if text.len() > Self::MAX_TEXT_BYTES {
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
}

impl FailureCode {
    /// All failure codes.
    pub const ALL: [Self; 9] = [
        Self::Disagreement,
        Self::BadPost,
        Self::TimedOut,
        Self::RankLost,
        Self::RegionLost,
        Self::EpochEnded,
        Self::Stalled,
        Self::ShuttingDown,
        Self::GatewayLost,
    ];
    /// Returns the failure code with wire number `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }
}

impl std::fmt::Display for FailureCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Disagreement => "ranks disagree (caller)",
            Self::BadPost => "bad request (caller)",
            Self::TimedOut => "timed out waiting for ranks (caller)",
            Self::RankLost => "rank lost (peer)",
            Self::RegionLost => "region lost (link)",
            Self::EpochEnded => "epoch ended (peer)",
            Self::Stalled => "exchange stalled (link)",
            Self::ShuttingDown => "gateway shutting down (us)",
            Self::GatewayLost => "gateway lost (us)",
        })
    }
}

impl Committed {
    /// Appends an optional committed step to the message `out`: a flag, then the step and the
    /// collective behind it.
    pub(crate) fn write_optional(committed: Option<Self>, out: &mut Vec<u8>) {
        match committed {
            None => out.push(0),
            Some(Self { step, below }) => {
                out.push(1);
                write_u64(out, step.0);
                write_u64(out, below.0);
            }
        }
    }

    /// Reads an optional committed step: a flag, then the step and the collective behind it.
    pub(crate) fn read_optional(reader: &mut FieldReader<'_>) -> Result<Option<Self>, DecodeError> {
        if !reader.read_flag()? {
            return Ok(None);
        }
        Ok(Some(Self { step: Step(reader.read_u64()?), below: Sequence(reader.read_u64()?) }))
    }
}
