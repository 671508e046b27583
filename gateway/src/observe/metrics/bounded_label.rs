//! Labels whose values are bounded, so that no number of jobs, ranks or links floods a scraper.

use std::collections::BTreeSet;

/// The value that a label has for all jobs, ranks or stragglers beyond the limit of their number.
const OTHER_LABEL: &str = "other";

/// 64 jobs: the first 64 since the start have a `job` label of their own, and further jobs share
/// `other`. A job has some hundred series.
/// Tested by `a_thousand_jobs_have_bounded_series`.
pub(super) const JOB_LABELS_MAX: usize = 64;

/// 16 ranks, and 16 stragglers: the first of a job that have a label of their own; further ones
/// share `other`. More are no single culprit.
/// Tested by `a_thousand_jobs_have_bounded_series`.
pub(super) const NAMES_OF_JOB_MAX: usize = 16;

/// A label that keeps the first values that it is given, and has `other` for all further ones.
#[derive(Debug)]
pub(super) struct BoundedLabel {
    known: BTreeSet<String>,
    max: usize,
}

impl BoundedLabel {
    /// Makes a label of at most `max` values besides `other`.
    pub fn new(max: usize) -> Self {
        Self { known: BTreeSet::new(), max }
    }

    /// Returns the value of the label for `value`: itself while there is room, else `other`.
    pub fn label(&mut self, value: &str) -> String {
        if !self.known.contains(value) {
            if self.known.len() >= self.max {
                return OTHER_LABEL.to_owned();
            }
            self.known.insert(value.to_owned());
        }
        value.to_owned()
    }
}
