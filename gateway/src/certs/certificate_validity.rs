//! The period in which a certificate is valid.

use time::{Duration, OffsetDateTime};

/// The period in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    pub(super) not_before: OffsetDateTime,
    pub(super) not_after: OffsetDateTime,
}

impl CertificateValidity {
    /// Returns a period from one hour ago, for hosts whose clocks differ, until `days` days from
    /// now.
    pub fn days(days: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self { not_before: now - CLOCK_SKEW_MAX, not_after: now + Duration::days(days.into()) }
    }

    /// Returns a period from one hour ago until `seconds` seconds from now, for tests of a gateway
    /// whose certificate expires while it runs.
    pub fn seconds(seconds: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self {
            not_before: now - CLOCK_SKEW_MAX,
            not_after: now + Duration::seconds(seconds.into()),
        }
    }

    /// Returns a period that begins tomorrow, for tests that such a certificate is refused.
    pub fn not_yet() -> Self {
        let now = OffsetDateTime::now_utc();
        Self { not_before: now + Duration::days(1), not_after: now + Duration::days(2) }
    }

    /// Returns a period that ended an hour ago, for tests that such a certificate is refused.
    pub fn expired() -> Self {
        let now = OffsetDateTime::now_utc();
        Self { not_before: now - Duration::days(2), not_after: now - CLOCK_SKEW_MAX }
    }
}

/// 1 h: how long before the moment of its issue a certificate is valid already. So a host whose
/// clock is up to 1 h behind the issuer's clock accepts a new certificate without a wait.
const CLOCK_SKEW_MAX: Duration = Duration::hours(1);
