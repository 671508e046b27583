//! Results of checks.

use serde::Serialize;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingVerdict {
    /// The subject is in order.
    Ok,
    /// The gateway works, but not as well as it could.
    Warning,
    /// The gateway will not work.
    Failed,
    /// The check was not possible, for the reason in `found`.
    Skipped,
}

/// One check and its result. The field names are keys of the JSON output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// File, setting or peer that was checked.
    pub subject: String,
    /// Result.
    pub verdict: FindingVerdict,
    /// Observation.
    pub found: String,
    /// Action to take; `None` if none is needed.
    pub advice: Option<String>,
}

impl Finding {
    /// Returns the finding that the subject of a check is in order.
    pub(super) fn ok(check: &'static str, subject: impl ToString, found: impl ToString) -> Self {
        let (subject, found) = (subject.to_string(), found.to_string());
        Self { check, subject, verdict: FindingVerdict::Ok, found, advice: None }
    }

    /// Turns the finding into a warning, with the action to take.
    pub(super) fn into_warning(self, advice: impl ToString) -> Self {
        Self { verdict: FindingVerdict::Warning, advice: Some(advice.to_string()), ..self }
    }

    /// Turns the finding into a failure, with the action to take.
    pub(super) fn into_failure(self, advice: impl ToString) -> Self {
        Self { verdict: FindingVerdict::Failed, advice: Some(advice.to_string()), ..self }
    }

    /// Marks the check as not possible, for the reason in `found`.
    pub(super) fn into_skipped(self) -> Self {
        Self { verdict: FindingVerdict::Skipped, ..self }
    }
}
