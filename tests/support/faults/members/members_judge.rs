//! The promises about members, checked against what every rank sees.

use crate::faults::judge::outcomes::RunSummary;
use hier_collectives::ids::Epoch;
use hier_collectives::post::{Failure, FailureCode};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The judge of a run.
#[derive(Debug)]
pub(super) struct MembersJudge {
    /// Whether nothing but an operator changes the members.
    calm: bool,
    state: Mutex<JudgeState>,
}

#[derive(Debug, Default)]
struct JudgeState {
    told: RunSummary,
    /// The ranks of each epoch, by their numbers in the fabric.
    members: BTreeMap<Epoch, BTreeSet<u32>>,
    /// The step that each rank of an epoch begins with.
    first: BTreeMap<Epoch, u64>,
    /// The number of steps that each rank has done.
    done: BTreeMap<u32, u64>,
}

/// The place of a rank in its steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepPlace {
    pub rank: u32,
    pub epoch: Epoch,
    pub step: u64,
    /// Whether the step was begun: a bucket of it is done, or it is begun again.
    pub is_begun: bool,
}

impl fmt::Display for StepPlace {
    /// Prints rank, epoch and step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, epoch {}, step {}", self.rank, self.epoch, self.step)
    }
}

impl MembersJudge {
    /// Returns the judge of a run in which only operators change the members, if it is `calm`.
    pub fn new(calm: bool) -> Self {
        Self { calm, state: Mutex::default() }
    }

    /// Checks the world of a rank as an epoch begins: it is the same on all ranks of the epoch.
    pub fn entered(&self, rank: u32, epoch: Epoch, members: &BTreeSet<u32>) {
        let mut state = self.lock();
        let known = state.members.entry(epoch).or_insert_with(|| members.clone()).clone();
        if known != *members || !members.contains(&rank) {
            let text = format!("epoch {epoch}: rank {rank} is told {members:?}, others {known:?}");
            state.told.wrong.push(text);
        }
    }

    /// Checks the step that a rank goes on with: it is the same on all ranks of the epoch.
    pub fn goes_on(&self, rank: u32, epoch: Epoch, step: u64) {
        let mut state = self.lock();
        let known = *state.first.entry(epoch).or_insert(step);
        if known != step {
            let text =
                format!("epoch {epoch}: rank {rank} goes on with step {step}, others {known}");
            state.told.wrong.push(text);
        }
    }

    /// Checks an average: over the ranks of the epoch, of their numbers and the step.
    pub fn averaged(&self, at: StepPlace, members: &BTreeSet<u32>, mean: f32) {
        let mut state = self.lock();
        let sum: f32 = members.iter().map(|rank| *rank as f32).sum();
        let expected = sum / members.len() as f32 + at.step as f32;
        if (mean - expected).abs() > AVERAGE_ERROR_MAX {
            state.told.wrong.push(format!("{at}: {mean} instead of {expected}"));
        }
        state.told.count("completed");
    }

    /// Records a step that a rank has done.
    pub fn stepped(&self, at: StepPlace) {
        let mut state = self.lock();
        state.told.count("commit confirmed");
        *state.done.entry(at.rank).or_default() += 1;
    }

    /// Checks a failure: while only operators change members, no step that was begun fails but for the
    /// rank that slips, and nothing fails otherwise.
    pub fn failed(&self, at: StepPlace, failure: &Failure) {
        let mut state = self.lock();
        state.told.count(&format!("{:?}", failure.code));
        let is_change =
            matches!(failure.code, FailureCode::MembershipChanged | FailureCode::EpochEnded);
        let is_slip = failure.code == FailureCode::Disagreement;
        if self.calm && !is_slip && (at.is_begun || !is_change) {
            state.told.wrong.push(format!("{at} was interrupted: {failure}"));
        }
    }

    /// Records an event, by its kind.
    pub fn happened(&self, kind: &str) {
        self.lock().told.count(kind);
    }

    /// Records a violated promise.
    pub fn wrong(&self, text: String) {
        self.lock().told.wrong.push(text);
    }

    /// Returns the number of steps that a rank has done.
    pub fn steps_done(&self, rank: u32) -> u64 {
        self.lock().done.get(&rank).copied().unwrap_or(0)
    }

    /// Returns the summary.
    pub fn summary(&self) -> RunSummary {
        self.lock().told.clone()
    }

    fn lock(&self) -> MutexGuard<'_, JudgeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 0.001: the largest error of an average. Numbers are below 10,000, and their sums exact.
const AVERAGE_ERROR_MAX: f32 = 0.001;
