//! The rendezvous at which the ranks of a job agree on the next attempt, as a launcher's lets them.

use crate::faults::timeline::Timeline;
use hier_collectives::ids::Epoch;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use units::{Span, TimeNs};

/// One attempt at a round; it is good once every rank has all results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Number of the attempt within its job.
    pub number: u64,
    /// The epoch in which it is made.
    pub epoch: Epoch,
}

/// The next action of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAction {
    /// Wait for the others.
    Wait,
    /// Take part.
    Go(Attempt),
    /// All is done.
    End,
}

/// An attempt that all ranks have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// Whether every rank has all results.
    pub good: bool,
    /// The time when the attempt began.
    pub begun: TimeNs,
    /// The time since the last fault ended, where this was the first good attempt after it.
    pub recovered: Option<Span>,
}

/// The progress of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Rounds are made until there are enough.
    Rounds,
    /// There are enough; new attempts wait.
    Held,
    /// The next attempt is the last, and must be good.
    Probe,
    /// The last attempt is in progress.
    Probing,
    /// The last attempt is over.
    Ended,
}

/// The rendezvous of one job.
#[derive(Debug)]
pub struct Rendezvous {
    job: usize,
    ranks: u32,
    rounds: u32,
    timeline: Timeline,
    state: Mutex<RendezvousState>,
}

#[derive(Debug)]
struct RendezvousState {
    phase: Phase,
    rounds_done: u32,
    /// Whether all faults have begun; rounds go on until then.
    struck: bool,
    /// The time when the last fault ended.
    healed: Option<TimeNs>,
    /// Whether an attempt was good after the last fault.
    recovered: bool,
    /// The waiting ranks, and the epoch that each believes in.
    here: BTreeMap<u32, Epoch>,
    attempt: Option<Attempt>,
    /// The time when the attempt began.
    begun: TimeNs,
    /// Whether the epoch of the attempt is over, so that no rank may begin it.
    void: bool,
    /// The ranks that have begun the attempt, and whether it was good for those that have ended it.
    part: BTreeMap<u32, Option<bool>>,
}

impl Rendezvous {
    /// A rendezvous for the ranks of a job, which runs `rounds` rounds.
    pub fn new(job: usize, ranks: u32, rounds: u32, timeline: Timeline) -> Self {
        let state = RendezvousState {
            phase: Phase::Rounds,
            rounds_done: 0,
            struck: false,
            healed: None,
            recovered: false,
            here: BTreeMap::new(),
            attempt: None,
            begun: TimeNs::default(),
            void: false,
            part: BTreeMap::new(),
        };
        Self { job, ranks, rounds, timeline, state: Mutex::new(state) }
    }

    /// A rank asks what to do; ask again after a while when it is to wait.
    pub fn ask(&self, rank: u32, epoch: Epoch, now: TimeNs) -> NextAction {
        let mut state = self.lock();
        if state.phase == Phase::Ended {
            return NextAction::End;
        }
        if let Some(order) = state.join(rank, epoch) {
            return order;
        }
        state.here.insert(rank, epoch);
        let all_here = state.here.len() == self.ranks as usize
            && state.here.values().all(|theirs| *theirs == epoch);
        if all_here && matches!(state.phase, Phase::Rounds | Phase::Probe) {
            if state.phase == Phase::Probe {
                state.phase = Phase::Probing;
            }
            let number = state.attempt.map_or(1, |attempt| attempt.number + 1);
            state.attempt = Some(Attempt { number, epoch });
            state.begun = now;
            state.void = false;
            state.here.clear();
            state.part.clear();
            self.timeline.say(format_args!("job {}", self.job), || {
                format!("attempt {number} begins in epoch {epoch}")
            });
        }
        state.join(rank, epoch).unwrap_or(NextAction::Wait)
    }

    /// Records that a rank has ended its part of an attempt. Returns the outcome when it was the
    /// last rank.
    pub fn ended(&self, rank: u32, attempt: Attempt, good: bool, now: TimeNs) -> Option<Over> {
        let mut state = self.lock();
        if state.attempt != Some(attempt) {
            return None;
        }
        state.part.insert(rank, Some(good));
        let ended = state.part.values().flatten().count();
        if ended < self.ranks as usize {
            return None;
        }
        let good = state.part.values().all(|good| *good == Some(true));
        state.rounds_done += u32::from(good);
        let healed = state.healed.filter(|healed| good && state.begun >= *healed);
        let recovered = healed.filter(|_| !state.recovered).map(|healed| now.since(healed));
        state.recovered |= recovered.is_some();
        let calm = state.struck && (state.healed.is_none() || state.recovered);
        state.phase = match state.phase {
            Phase::Probing => Phase::Ended,
            Phase::Rounds if state.rounds_done >= self.rounds && calm => Phase::Held,
            phase => phase,
        };
        let begun = state.begun;
        let verdict = if good { "good" } else { "failed" };
        self.timeline.say(format_args!("job {}", self.job), || {
            format!("attempt {} is over: {verdict}", attempt.number)
        });
        Some(Over { good, begun, recovered })
    }

    /// A rank's process is gone; the next one has done nothing yet.
    pub fn lost(&self, rank: u32) {
        let mut state = self.lock();
        state.here.remove(&rank);
        state.part.remove(&rank);
    }

    /// A gateway is gone, and the epoch with it. Once all have restarted the next one may have
    /// the same number.
    pub fn epoch_over(&self) {
        let mut state = self.lock();
        state.void = true;
        state.here.clear();
    }

    /// Records that all faults have begun.
    pub fn struck(&self) {
        self.lock().struck = true;
    }

    /// Records that all faults are over, so that one more attempt must be good.
    pub fn healed(&self, now: TimeNs) {
        let mut state = self.lock();
        state.healed = Some(now);
        if state.phase == Phase::Held {
            state.phase = Phase::Rounds;
        }
    }

    /// The next attempt is the last one, and must be good.
    pub fn probe(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Rounds | Phase::Held) {
            state.phase = Phase::Probe;
        }
    }

    /// Whether all is done.
    pub fn is_over(&self) -> bool {
        self.lock().phase == Phase::Ended
    }

    /// Whether the last attempt has begun.
    pub fn is_probing(&self) -> bool {
        matches!(self.lock().phase, Phase::Probing | Phase::Ended)
    }

    /// Whether an attempt has begun.
    pub fn has_begun(&self) -> bool {
        self.lock().attempt.is_some()
    }

    /// Whether an attempt was good after the last fault.
    pub fn has_recovered(&self) -> bool {
        self.lock().recovered
    }

    /// Whether enough rounds are done.
    pub fn has_done_its_rounds(&self) -> bool {
        !matches!(self.lock().phase, Phase::Rounds)
    }

    /// The state in words, for a report.
    pub fn standing(&self) -> String {
        let state = self.lock();
        format!(
            "job {}: {:?}, attempt {:?}, waiting {:?}, taking part {:?}",
            self.job, state.phase, state.attempt, state.here, state.part
        )
    }

    fn lock(&self) -> MutexGuard<'_, RendezvousState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RendezvousState {
    /// The attempt under way, for a rank that has not begun it, in the same epoch.
    fn join(&mut self, rank: u32, epoch: Epoch) -> Option<NextAction> {
        let attempt = self.attempt.filter(|attempt| attempt.epoch == epoch && !self.void)?;
        if self.part.contains_key(&rank) {
            return None;
        }
        self.part.insert(rank, None);
        self.here.remove(&rank);
        Some(NextAction::Go(attempt))
    }
}
