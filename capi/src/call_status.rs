//! The status of a call.

use hier_collectives::post::FailureCode;
use hier_collectives::store::StoreFailureCode;
use std::ffi::CStr;

/// The status of a call, with its number in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum CallStatus {
    /// The call did what it says.
    Ok = 0,
    /// [`FailureCode::Disagreement`].
    RanksDisagree = 1,
    /// [`FailureCode::BadPost`].
    BadRequest = 2,
    /// [`FailureCode::TimedOut`].
    RanksTimedOut = 3,
    /// [`FailureCode::RankLost`].
    RankLost = 4,
    /// [`FailureCode::RegionLost`].
    RegionLost = 5,
    /// [`FailureCode::EpochEnded`].
    EpochEnded = 6,
    /// [`FailureCode::Stalled`].
    Stalled = 7,
    /// [`FailureCode::ShuttingDown`].
    ShuttingDown = 8,
    /// [`FailureCode::GatewayLost`].
    GatewayLost = 9,
    /// [`FailureCode::MembershipChanged`].
    MembershipChanged = 10,
    /// An argument cannot be used.
    InvalidArgument = 32,
    /// A file cannot be used.
    Config = 33,
    /// No gateway answers.
    NoGateway = 34,
    /// The socket is not for this user, or may be a third user's.
    AccessDenied = 35,
    /// The gateway refused the rank.
    Refused = 36,
    /// No epoch began in time.
    NoEpoch = 37,
    /// The arena has no room.
    ArenaFull = 38,
    /// A limit of the system is reached.
    LimitReached = 39,
    /// A wait ended before its operation.
    WaitTimeout = 40,
    /// The handle belongs to the parent of this process.
    Forked = 41,
    /// A panic was caught.
    Internal = 42,
    /// [`StoreFailureCode::TimedOut`].
    StoreTimedOut = 43,
    /// [`StoreFailureCode::Unconfirmed`].
    StoreUnconfirmed = 44,
    /// [`StoreFailureCode::Busy`].
    StoreBusy = 45,
    /// [`StoreFailureCode::Refused`].
    StoreRefused = 46,
    /// There was no room to post in time.
    PostTimedOut = 47,
}

impl CallStatus {
    /// All 27 statuses that a function of the library can return, by which numbers are decoded.
    pub const ALL: [Self; 27] = [
        Self::Ok,
        Self::RanksDisagree,
        Self::BadRequest,
        Self::RanksTimedOut,
        Self::RankLost,
        Self::RegionLost,
        Self::EpochEnded,
        Self::Stalled,
        Self::ShuttingDown,
        Self::GatewayLost,
        Self::MembershipChanged,
        Self::InvalidArgument,
        Self::Config,
        Self::NoGateway,
        Self::AccessDenied,
        Self::Refused,
        Self::NoEpoch,
        Self::ArenaFull,
        Self::LimitReached,
        Self::WaitTimeout,
        Self::Forked,
        Self::Internal,
        Self::StoreTimedOut,
        Self::StoreUnconfirmed,
        Self::StoreBusy,
        Self::StoreRefused,
        Self::PostTimedOut,
    ];

    /// Returns the status that a C function gives for a failed collective or commit.
    pub fn of_failure(code: FailureCode) -> Self {
        match code {
            FailureCode::Disagreement => Self::RanksDisagree,
            FailureCode::BadPost => Self::BadRequest,
            FailureCode::TimedOut => Self::RanksTimedOut,
            FailureCode::RankLost => Self::RankLost,
            FailureCode::RegionLost => Self::RegionLost,
            FailureCode::EpochEnded => Self::EpochEnded,
            FailureCode::Stalled => Self::Stalled,
            FailureCode::ShuttingDown => Self::ShuttingDown,
            FailureCode::GatewayLost => Self::GatewayLost,
            FailureCode::MembershipChanged => Self::MembershipChanged,
        }
    }

    /// Returns the status that a C function gives for a failed request to the store.
    pub fn of_store_failure(code: StoreFailureCode) -> Self {
        match code {
            StoreFailureCode::TimedOut => Self::StoreTimedOut,
            StoreFailureCode::Unconfirmed => Self::StoreUnconfirmed,
            StoreFailureCode::Busy => Self::StoreBusy,
            StoreFailureCode::Refused => Self::StoreRefused,
        }
    }

    /// Returns the status with the number `code` in the header, if there is one.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as i32 == code)
    }

    /// Returns whether the posts of ranks are at fault, so that the same posts would fail again.
    pub fn is_fault_of_posts(self) -> bool {
        matches!(self, Self::RanksDisagree | Self::BadRequest)
    }

    /// Returns the meaning of the status in a few words for people, with who is at fault in
    /// parentheses.
    pub fn words(self) -> &'static CStr {
        match self {
            Self::Ok => c"no error",
            Self::RanksDisagree => c"ranks disagree (cause: caller)",
            Self::BadRequest => c"bad request (cause: caller)",
            Self::RanksTimedOut => c"timed out waiting for ranks (cause: caller)",
            Self::RankLost => c"rank lost (cause: peer)",
            Self::RegionLost => c"region lost (cause: link)",
            Self::EpochEnded => c"epoch ended (cause: peer)",
            Self::Stalled => c"exchange stalled (cause: link)",
            Self::ShuttingDown => c"gateway shutting down (cause: gateway)",
            Self::GatewayLost => c"gateway lost (cause: gateway)",
            Self::MembershipChanged => c"membership changed (cause: peer)",
            Self::InvalidArgument => c"invalid argument (cause: caller)",
            Self::Config => c"unusable file (cause: caller)",
            Self::NoGateway => c"no gateway (cause: gateway)",
            Self::AccessDenied => c"access denied (cause: caller)",
            Self::Refused => c"refused (cause: gateway)",
            Self::NoEpoch => c"no epoch (cause: peer)",
            Self::ArenaFull => c"arena full (cause: caller)",
            Self::LimitReached => c"limit of the system (cause: caller)",
            Self::WaitTimeout => c"not ready in time (cause: caller)",
            Self::Forked => c"forked process (cause: caller)",
            Self::Internal => c"fault of the library",
            Self::StoreTimedOut => c"store timed out, nothing changed (cause: caller)",
            Self::StoreUnconfirmed => c"store timed out, change unconfirmed (cause: link)",
            Self::StoreBusy => c"store busy (cause: gateway)",
            Self::StoreRefused => c"refused by the store (cause: caller)",
            Self::PostTimedOut => c"no room for a post (cause: caller)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_keep_their_numbers_and_words() {
        for code in FailureCode::ALL {
            let status = CallStatus::of_failure(code);
            assert_eq!(status as i32, i32::from(code as u8), "{code}");
            assert_eq!(status.words().to_str(), Ok(code.to_string().as_str()));
            assert_eq!(status.is_fault_of_posts(), code.is_fault_of_posts());
        }
    }

    #[test]
    fn failures_of_the_store_have_numbers_in_their_order() {
        for code in StoreFailureCode::ALL {
            let status = CallStatus::of_store_failure(code);
            assert_eq!(status as i32, CallStatus::Internal as i32 + code as i32, "{code:?}");
        }
    }

    #[test]
    fn every_status_is_found_by_its_number() {
        for status in CallStatus::ALL {
            assert_eq!(CallStatus::from_code(status as i32), Some(status));
        }
        assert_eq!(CallStatus::from_code(11), None);
    }
}
