//! Warnings: log lines on which an operator should act, at most one of each cause in ten minutes.
//!
//! All parts of a gateway, on any thread, ask one [`Warnings`] before they log such a line, by
//! [`warn_if_due!`](crate::warn_if_due). A line that comes too soon after the last one of its cause
//! has level info. The metric `landbridge_warnings_total` counts both.

use crate::lock::lock_ignoring_poison;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use units::{Span, TimeNs};

/// 10 min: further lines of a cause and subject that come within this time after their last warning
/// are logged at level info. So a lasting fault does not fill the log with warnings.
const WARNING_PERIOD: Span = Span::from_secs(600);

/// 256 warnings: the most pairs of cause and subject that are remembered, so that no peer can fill
/// the memory. One more replaces the oldest, whose next line is a warning again.
const WARNINGS_MAX: usize = 256;

/// The kind of what an operator should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WarningCause {
    /// A problem of the gateway lasts.
    Problem,
    /// A link is down and gone round.
    Link,
    /// A link loses more than the fabric expects.
    Loss,
    /// A job's epoch has ended.
    Epoch,
    /// A collective has failed.
    Collective,
    /// A collective waits for ranks.
    Wait,
    /// A rank, region or link costs the others time.
    Straggler,
    /// A peer has broken the protocol.
    Peer,
    /// A trainer was refused.
    Trainer,
    /// Connections cannot be accepted.
    Accept,
    /// The certificate files cannot be used.
    Certificate,
    /// The file of the socket is gone.
    Socket,
    /// Files have changed, and are not taken up.
    Files,
    /// A limit of the system is too low.
    Limit,
    /// The service manager hears nothing.
    ServiceManager,
    /// Spans cannot be exported.
    Spans,
}

impl WarningCause {
    /// All 16 causes of warnings. The metric `landbridge_warnings_total` has a value for each from
    /// the start.
    const ALL: [Self; 16] = [
        Self::Problem,
        Self::Link,
        Self::Loss,
        Self::Epoch,
        Self::Collective,
        Self::Wait,
        Self::Straggler,
        Self::Peer,
        Self::Trainer,
        Self::Accept,
        Self::Certificate,
        Self::Socket,
        Self::Files,
        Self::Limit,
        Self::ServiceManager,
        Self::Spans,
    ];

    /// Returns the word for the cause, which the metric has in its label `cause`.
    const fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Link => "link",
            Self::Loss => "loss",
            Self::Epoch => "epoch",
            Self::Collective => "collective",
            Self::Wait => "wait",
            Self::Straggler => "straggler",
            Self::Peer => "peer",
            Self::Trainer => "trainer",
            Self::Accept => "accept",
            Self::Certificate => "certificate",
            Self::Socket => "socket",
            Self::Files => "files",
            Self::Limit => "limit",
            Self::ServiceManager => "service_manager",
            Self::Spans => "spans",
        }
    }
}

/// The label of the metric.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WarningLabel {
    cause: &'static str,
}

/// Decides which lines are warnings. Clones share the decisions.
#[derive(Debug, Clone)]
pub struct Warnings {
    /// When the last warning of each cause and subject was logged.
    last: Arc<Mutex<BTreeMap<(WarningCause, String), TimeNs>>>,
    counts: Family<WarningLabel, Counter>,
}

impl Default for Warnings {
    /// Makes the state before the first warning, with the counts of all causes at zero.
    fn default() -> Self {
        let counts = Family::<WarningLabel, Counter>::default();
        for cause in WarningCause::ALL {
            counts.get_or_create_owned(&WarningLabel { cause: cause.name() });
        }
        Self { last: Arc::default(), counts }
    }
}

impl Warnings {
    /// Counts a line about `cause` of `subject`, and returns whether it is a warning at `now`. If
    /// so, no other line of that cause and subject is one for ten minutes.
    pub fn is_due(&self, cause: WarningCause, subject: &str, now: TimeNs) -> bool {
        self.counts.get_or_create_owned(&WarningLabel { cause: cause.name() }).inc();
        let mut last = lock_ignoring_poison(&self.last);
        let key = (cause, subject.to_owned());
        if last.get(&key).is_some_and(|last| now.since(*last) < WARNING_PERIOD) {
            return false;
        }
        if last.len() >= WARNINGS_MAX && !last.contains_key(&key) {
            let oldest = last.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone());
            oldest.map(|oldest| last.remove(&oldest));
        }
        last.insert(key, now);
        true
    }

    /// Returns the counters of warnings by cause, which the metrics show.
    pub(crate) fn counts(&self) -> Family<WarningLabel, Counter> {
        self.counts.clone()
    }
}

/// Logs a line at level warn where the first argument is true, as [`Warnings::is_due`] returned it,
/// else at level info. The other arguments are those of [`tracing::warn!`].
#[macro_export]
macro_rules! warn_if_due {
    ($is_due:expr, $($line:tt)+) => {
        if $is_due {
            ::tracing::warn!($($line)+)
        } else {
            ::tracing::info!($($line)+)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_warns_once_in_ten_minutes() {
        let warnings = Warnings::default();
        let at = |s| TimeNs::from_ns(5) + Span::from_secs(s);
        let due = [0, 1, 599, 600, 601, 1200]
            .map(|s| warnings.clone().is_due(WarningCause::Link, "east-west", at(s)));
        assert_eq!(due, [true, false, false, true, false, true]);
        assert!(warnings.is_due(WarningCause::Link, "east-south", at(1201)), "another subject");
        assert!(warnings.is_due(WarningCause::Loss, "east-west", at(1201)), "another cause");
        let counted = |cause| warnings.counts.get_or_create_owned(&WarningLabel { cause }).get();
        assert_eq!((counted("link"), counted("loss")), (7, 1));
    }

    #[test]
    fn many_subjects_are_bounded_and_forget_the_oldest() {
        let warnings = Warnings::default();
        let is_due = |subject: usize, second: u64| {
            let now = TimeNs::from_ns(5) + Span::from_secs(second);
            warnings.is_due(WarningCause::Peer, &subject.to_string(), now)
        };
        assert!(is_due(0, 0));
        assert!((1..2 * WARNINGS_MAX).all(|subject| is_due(subject, 1)));
        assert_eq!(lock_ignoring_poison(&warnings.last).len(), WARNINGS_MAX);
        assert!(is_due(0, 2), "forgotten");
    }

    #[test]
    fn a_subject_that_warns_anew_replaces_itself() {
        let warnings = Warnings::default();
        let is_due = |subject: usize, second: u64| {
            let now = TimeNs::from_ns(5) + Span::from_secs(second);
            warnings.is_due(WarningCause::Peer, &subject.to_string(), now)
        };
        assert!((0..WARNINGS_MAX).all(|subject| is_due(subject, subject as u64)));
        assert!(is_due(1, 601), "ten minutes later");
        assert!(!is_due(0, 599), "the oldest is still known");
    }
}
