//! What passes between a rank and the session: posts one way, events the other.

use crate::codec::{DecodeError, Reader, put_text, put_u64};
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, Sequence, Step};
use units::{Span, TimeNs};

/// A rank's request for one collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Post {
    /// The epoch the rank believes in.
    pub epoch: Epoch,
    /// The collective's number.
    pub sequence: Sequence,
    /// The operation and the buffer's shape.
    pub descriptor: Descriptor,
    /// The rank's weight in an average, finite and not negative.
    pub weight: f64,
    /// How long the rank is ready to wait for the others to post.
    pub timeout: Span,
}

/// A rank's request to hear when a step is complete in every region: all collectives that the
/// rank posted since its last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The epoch the rank believes in.
    pub epoch: Epoch,
    /// The rank's number for the step.
    pub step: Step,
    /// How long the rank is ready to wait for the other regions.
    pub timeout: Span,
}

/// A step whose collectives are known to be complete in every region. The greater is the
/// later: collectives are numbered on through all epochs, steps as the trainers like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Committed {
    /// One past its last collective.
    pub below: Sequence,
    /// The step.
    pub step: Step,
}

/// What a rank is told.
#[derive(Debug, Clone, PartialEq)]
pub enum RankEvent {
    /// An epoch began; collectives are numbered from `next`.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
        /// The first collective's number.
        next: Sequence,
        /// The last step that some gateway knows to be complete in every region, also when
        /// this rank's commit failed.
        committed: Option<Step>,
    },
    /// The result is in the rank's result slot, to be read; the gateway may still forward
    /// it from there.
    ResultReady {
        /// The collective.
        sequence: Sequence,
        /// When what happened.
        timing: Timing,
    },
    /// Both slots may be written again: every receipt is in.
    ContributionFree {
        /// The collective.
        sequence: Sequence,
    },
    /// The collective failed; both slots are the rank's again.
    Failed {
        /// The collective.
        sequence: Sequence,
        /// Why.
        failure: Failure,
    },
    /// Every region has the step's collectives, on all its ranks.
    Committed {
        /// The step.
        step: Step,
    },
    /// It is not known here whether every region has the step's collectives. The next epoch
    /// says whether some gateway knows.
    CommitFailed {
        /// The step.
        step: Step,
        /// Why, and which region completed what.
        failure: Failure,
    },
}

/// Instants of one collective on the gateway's clock. On one host all gateways and ranks
/// read the same monotonic clock, so that these compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// The last local rank posted.
    pub posted: TimeNs,
    /// The first segment was ready to leave.
    pub wan_begin: TimeNs,
    /// The last segment arrived.
    pub wan_end: TimeNs,
    /// The result was in place on every local rank.
    pub ready: TimeNs,
}

/// Why a collective failed. The text is composed once, where the fault was seen, and
/// reaches every rank of every region unchanged. The contribution is intact; the result
/// slot holds no meaningful value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct Failure {
    /// The kind, which says whose fault it is.
    pub code: FailureCode,
    /// What happened and what to do, at most [`Failure::MAX_TEXT_BYTES`].
    pub text: String,
}

impl Failure {
    /// Longest text carried, in bytes.
    pub const MAX_TEXT_BYTES: usize = 1024;

    /// A failure; a longer text is cut at a character.
    pub fn new(code: FailureCode, text: impl Into<String>) -> Self {
        let mut text: String = text.into();
        let mut end = text.len().min(Self::MAX_TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self { code, text }
    }
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FailureCode {
    /// Callers disagree on the collective: the text names field, ranks and values.
    Disagreement = 1,
    /// The caller asked for what is not defined or not allowed.
    BadPost = 2,
    /// A rank did not post within the caller's timeout.
    TimedOut = 3,
    /// A rank that is awaited went away.
    RankLost = 4,
    /// A region cannot be reached any more.
    RegionLost = 5,
    /// The epoch ended under the collective.
    EpochEnded = 6,
    /// Every rank posted, but the exchange made no progress by its deadline.
    Stalled = 7,
    /// The gateway is shutting down.
    ShuttingDown = 8,
    /// The connection to the gateway is gone; the trainer's client says so itself.
    GatewayLost = 9,
}

impl FailureCode {
    /// Every code.
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
    /// The code with wire number `code`.
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

/// Appends a failure: code, text.
pub fn put_failure(out: &mut Vec<u8>, failure: &Failure) {
    out.push(failure.code as u8);
    put_text(out, &failure.text);
}

/// Appends a committed step, or that there is none.
pub(crate) fn put_committed(out: &mut Vec<u8>, committed: Option<Committed>) {
    match committed {
        None => out.push(0),
        Some(Committed { step, below }) => {
            out.push(1);
            put_u64(out, step.0);
            put_u64(out, below.0);
        }
    }
}

impl Reader<'_> {
    /// A committed step, if there is one.
    pub(crate) fn committed(&mut self) -> Result<Option<Committed>, DecodeError> {
        if !self.flag()? {
            return Ok(None);
        }
        Ok(Some(Committed { step: Step(self.u64()?), below: Sequence(self.u64()?) }))
    }

    /// A failure.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn failure(&mut self) -> Result<Failure, DecodeError> {
        let code = FailureCode::from_code(self.u8()?).ok_or(DecodeError::Unknown("failure"))?;
        let text = self.text()?;
        if text.len() > Failure::MAX_TEXT_BYTES {
            return Err(DecodeError::Invalid("text"));
        }
        Ok(Failure { code, text })
    }
}
