//! The error of a call: a status, and a text for people.

use crate::call_status::CallStatus;
use gateway::client::{ArenaFull, AttachError, GroupError, PostError, PostErrorKind, StoreError};
use gateway::memory::arena::ArenaError;
use hier_collectives::post::Failure;
use hier_collectives::store::StoreRequestError;
use units::ByteCount;

/// Why a call failed. What it was to do is undone or left to the caller's next call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// The status that the call returns.
    pub status: CallStatus,
    /// The cause and the remedy.
    pub text: String,
}

impl CallError {
    /// Makes an error with this status, which the call returns, and this text for people.
    pub fn new(status: CallStatus, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Makes the error of an argument that cannot be used, with [`CallStatus::InvalidArgument`].
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(CallStatus::InvalidArgument, text)
    }
}

impl From<Failure> for CallError {
    /// Makes the error of a failed collective or commit: the failure's text, with the status of its
    /// code.
    fn from(failure: Failure) -> Self {
        Self::new(CallStatus::of_failure(failure.code), failure.to_string())
    }
}

impl From<PostError> for CallError {
    /// Makes the error of a collective or send that was not posted.
    fn from(error: PostError) -> Self {
        match error.kind {
            PostErrorKind::Failed(failure) => Self::from(failure),
            kind @ PostErrorKind::TimedOut => Self::new(CallStatus::PostTimedOut, kind.to_string()),
        }
    }
}

impl From<ArenaFull> for CallError {
    /// Makes the error of an arena without room, with [`CallStatus::ArenaFull`] and advice.
    fn from(full: ArenaFull) -> Self {
        Self::new(
            CallStatus::ArenaFull,
            format!(
                "the arena has no room for {} more: wait for operations whose results were \
                 not fetched, free memory, or connect with a larger arena_bytes",
                ByteCount::new(full.wanted).rounded()
            ),
        )
    }
}

impl From<AttachError> for CallError {
    /// Makes the error of a rank that was not attached; the status says who can mend it.
    fn from(error: AttachError) -> Self {
        let status = match &error {
            AttachError::NoGateway { .. } | AttachError::Lost(_) => CallStatus::NoGateway,
            AttachError::Access(_) | AttachError::Untrusted(_) => CallStatus::AccessDenied,
            AttachError::Credentials(_) => CallStatus::Config,
            AttachError::Refused(_) => CallStatus::Refused,
            AttachError::NoEpoch(_) => CallStatus::NoEpoch,
            AttachError::Memory(ArenaError::BadSize(_)) => CallStatus::InvalidArgument,
            AttachError::Memory(_) => CallStatus::LimitReached,
        };
        Self::new(status, error.to_string())
    }
}

impl From<GroupError> for CallError {
    /// Makes the error of a group that was not made. A failure keeps the status of its code.
    fn from(error: GroupError) -> Self {
        let status = match &error {
            GroupError::Failed(failure) => CallStatus::of_failure(failure.code),
            GroupError::ArenaFull(full) => return Self::from(*full),
            GroupError::NotMet(_) => CallStatus::NoEpoch,
            GroupError::NoRank
            | GroupError::Twice(_)
            | GroupError::UnknownRank { .. }
            | GroupError::KeyOrder => CallStatus::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<StoreError> for CallError {
    /// Makes the error of a request to the store that has no outcome.
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::Failed(failure) => CallStatus::of_store_failure(failure.code),
            StoreError::Request(request) => return Self::from(*request),
            StoreError::Disconnected(_) => CallStatus::GatewayLost,
        };
        Self::new(status, error.to_string())
    }
}

impl From<StoreRequestError> for CallError {
    /// Makes the error of a request with keys or values that are not allowed:
    /// [`CallStatus::InvalidArgument`].
    fn from(error: StoreRequestError) -> Self {
        Self::invalid(error.to_string())
    }
}
