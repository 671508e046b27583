//! The promises about members, checked against what every rank sees.

use super::step_history::{EpochId, RankState, StepHistory, StepPlace};
use crate::faults::judge::outcomes::RunSummary;
use hier_collectives::ids::{Epoch, GatewayId, Step};
use hier_collectives::post::{Failure, FailureCode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use units::TimeNs;

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
    history: StepHistory,
    /// The number of steps that each rank has done.
    done: BTreeMap<u32, u64>,
    /// The last epoch, and that which each gateway has been in since it was started.
    last: EpochId,
    remembered: BTreeMap<GatewayId, EpochId>,
    /// How often no gateway has been left that remembers the last epoch.
    generation: u64,
    /// How often ranks have heard that others were lost or are back.
    changes: u64,
}

/// The averages of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketAverages {
    /// The average of 2 to the power of each rank's number.
    pub of_ranks: f32,
    /// The average of a number that follows from each rank's step and state, and the rank's own.
    pub of_states: f32,
    pub own_state: f32,
}

impl MembersJudge {
    /// Returns the judge of a run in which only operators change the members, if it is `calm`.
    pub fn new(calm: bool) -> Self {
        Self { calm, state: Mutex::default() }
    }

    /// Returns the epoch that has this number now.
    pub fn epoch_now(&self, number: Epoch) -> EpochId {
        EpochId { generation: self.lock().generation, number }
    }

    /// Checks the world of a rank, at a gateway that remembers the epoch unless it is gone by now, as an
    /// epoch begins.
    pub fn entered(
        &self,
        at: StepPlace,
        gateway: Option<GatewayId>,
        members: &BTreeSet<u32>,
        committed: Option<Step>,
    ) {
        let mut state = self.lock();
        state.last = state.last.max(at.epoch);
        state.remembered.extend(gateway.map(|gateway| (gateway, at.epoch)));
        let wrong = state.history.enter(at, members, committed);
        state.told.wrong.extend(wrong);
    }

    /// Notes that a gateway is killed, which forgets all epochs. If no other remembers the last one, its
    /// number may come again.
    pub fn killed(&self, gateway: GatewayId) {
        let mut state = self.lock();
        state.remembered.remove(&gateway);
        let last = state.last;
        let is_known = state.remembered.values().any(|epoch| *epoch == last);
        state.generation += u64::from(!is_known && last.generation == state.generation);
    }

    /// Checks the state that a rank goes on with.
    pub fn goes_on(&self, at: StepPlace, with: RankState) {
        let mut state = self.lock();
        let wrong = state.history.begin(at, with);
        state.told.wrong.extend(wrong);
    }

    /// Checks that a rank may have a result of an epoch now.
    pub fn has_result(&self, rank: u32, epoch: EpochId, now: TimeNs) {
        let mut state = self.lock();
        let wrong = state.history.note_result(rank, epoch, now);
        state.told.wrong.extend(wrong);
    }

    /// Checks the averages of a bucket: over the ranks of the epoch, of equal states.
    pub fn averaged(&self, at: StepPlace, members: &BTreeSet<u32>, averages: BucketAverages) {
        let mut state = self.lock();
        let sum: u32 = members.iter().map(|rank| 1u32 << rank).sum();
        let expected = sum as f32 / members.len() as f32;
        let differs = |one: f32, other: f32| (one - other).abs() > AVERAGE_ERROR_MAX;
        if differs(averages.of_ranks, expected) || differs(averages.of_states, averages.own_state) {
            let text = format!("{at}: {averages:?}, where the ranks average {expected}");
            state.told.wrong.push(text);
        }
        state.told.count("completed");
    }

    /// Records a step that a rank has done, and is in the state `after` then.
    pub fn stepped(&self, at: StepPlace, after: RankState) {
        let mut state = self.lock();
        state.told.count("commit confirmed");
        *state.done.entry(at.rank).or_default() += 1;
        let wrong = state.history.confirm(at, after);
        state.told.wrong.extend(wrong);
    }

    /// Checks a failure. While only operators change members, a step that was begun fails only
    /// where a rank slips. A step that was not begun may also fail by a change of the members.
    pub fn failed(&self, at: StepPlace, failure: &Failure) {
        use FailureCode::{Disagreement, EpochEnded, MembershipChanged, RegionLost};
        let mut state = self.lock();
        state.told.count(&format!("{:?}", failure.code));
        let is_change = matches!(failure.code, MembershipChanged | EpochEnded);
        state.changes += u64::from(is_change || failure.code == RegionLost);
        let is_slip = failure.code == Disagreement;
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

    /// Returns how often ranks have heard that others were lost or are back.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Returns the summary.
    pub fn summary(&self) -> RunSummary {
        self.lock().told.clone()
    }

    fn lock(&self) -> MutexGuard<'_, JudgeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 0.05: the largest error of an average. Sums are exact, below 2^20, and averages of other ranks or
/// states are further apart.
const AVERAGE_ERROR_MAX: f32 = 0.05;
