//! The outcomes of all collectives of a run, or of many runs.

use crate::faults::spec::fault::Fault;
use std::collections::BTreeMap;
use units::{Span, TimeNs};

/// The summary of one or more runs.
#[derive(Debug, Clone, Default)]
pub struct RunSummary {
    /// Outcomes of single ranks: `completed`, or the failure's code; those of commits begin with
    /// `commit `.
    pub outcomes: BTreeMap<String, u64>,
    /// Results of single ranks, by the kind of collective.
    pub completed: BTreeMap<String, u64>,
    /// Waits of single ranks, by their outcome.
    pub waits: BTreeMap<String, Waits>,
    /// The longest time after the last fault until a job worked again.
    pub recovery: Span,
    /// The most memory that was ever mapped for a job, and its limit, both in bytes.
    pub fullest: Option<(u64, u64)>,
    /// Faults that struck, by kind.
    pub faults: BTreeMap<String, Struck>,
    /// Violated promises in words; empty is good.
    pub wrong: Vec<String>,
}

/// Waits that ended alike.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// The longest.
    pub longest: Span,
    /// The least time that was left until a deadline.
    pub least_left: Option<Span>,
}

/// Faults of a kind that struck.
#[derive(Debug, Clone, Copy, Default)]
pub struct Struck {
    /// Number of strikes.
    pub times: u64,
    /// Number of strikes that could affect a collective in flight.
    pub in_flight: u64,
}

impl RunSummary {
    /// The share of faults that struck while collectives were under way that they could touch.
    pub fn struck_in_flight(&self) -> f64 {
        let times: u64 = self.faults.values().map(|struck| struck.times).sum();
        let in_flight: u64 = self.faults.values().map(|struck| struck.in_flight).sum();
        in_flight as f64 / times.max(1) as f64
    }

    /// Adds the summary of another run.
    pub fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome.clone()).or_default() += count;
        }
        for (kind, count) in &other.completed {
            *self.completed.entry(kind.clone()).or_default() += count;
        }
        for (kind, struck) in &other.faults {
            let all = self.faults.entry(kind.clone()).or_default();
            all.times += struck.times;
            all.in_flight += struck.in_flight;
        }
        for (heard, waits) in &other.waits {
            self.waits.entry(heard.clone()).or_default().add(waits.longest, waits.least_left);
        }
        self.recovery = self.recovery.max(other.recovery);
        self.fullest = fuller(self.fullest, other.fullest);
        self.wrong.extend(other.wrong.iter().cloned());
    }

    pub(in crate::faults) fn count(&mut self, outcome: &str) {
        *self.outcomes.entry(outcome.to_owned()).or_default() += 1;
    }

    pub(in crate::faults) fn struck(&mut self, fault: &Fault, in_flight: bool) {
        let struck = self.faults.entry(fault.kind()).or_default();
        struck.times += 1;
        struck.in_flight += u64::from(in_flight);
    }

    pub(in crate::faults) fn used(&mut self, most: u64, limit: u64) {
        self.fullest = fuller(self.fullest, Some((most, limit)));
    }

    /// Records the duration of a wait, by its outcome.
    pub(in crate::faults) fn waited(
        &mut self,
        heard: &str,
        since: TimeNs,
        deadline: TimeNs,
        now: TimeNs,
    ) {
        let (waited, left) = (now.since(since), deadline.since(now));
        self.waits.entry(heard.to_owned()).or_default().add(waited, Some(left));
    }
}

impl Waits {
    fn add(&mut self, longest: Span, left: Option<Span>) {
        self.longest = self.longest.max(longest);
        self.least_left = self.least_left.into_iter().chain(left).min();
    }
}

/// The one of which a larger part is in use.
fn fuller(one: Option<(u64, u64)>, other: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let part = |(most, limit): &(u64, u64)| *most as f64 / *limit as f64;
    one.into_iter().chain(other).max_by(|one, other| part(one).total_cmp(&part(other)))
}
