//! What must hold whatever goes wrong, and what came of each collective.

use super::scenario::{Load, Scenario};
use super::timeline::Timeline;
use super::{Fault, Place, What};
use crate::data::Dice;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::Epoch;
use hier_collectives::post::{Failure, FailureCode};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::{Span, TimeNs};

/// Names a collective of a run: its job, the attempt at a round, its place in the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// The job, by number.
    pub job: usize,
    /// The attempt.
    pub attempt: u64,
    /// The collective.
    pub index: u32,
}

/// What a collective is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// Elements.
    pub elements: u64,
}

/// How long a rank may wait for an outcome once nobody is awaited and nothing goes wrong any
/// more: a silent peer is lost after QUIC's idle timeout of 15 s, an exchange in which nothing
/// moves fails after the stall deadline of 10 s, and until then it may move for 10 s over the
/// slowest link. While a rank is awaited, the poster's timeout comes first.
pub const VERDICT_WITHIN: Span = Span::from_secs(15 + 10 + 10);

/// See the module.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    load: Load,
    ranks: u32,
    faults: Vec<Fault>,
    unharmed: bool,
    timeline: Timeline,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    collectives: BTreeMap<Tag, Collective>,
    /// Attempts of which some rank was told that every region has all results.
    committed: BTreeSet<(usize, u64)>,
    /// By job: the last step that some rank was told is complete everywhere.
    confirmed: BTreeMap<usize, u64>,
    /// By job: the epoch last heard of, and which step each of its members was told to be the
    /// last one.
    known: BTreeMap<usize, (Epoch, Option<u64>)>,
    /// The last begin or end of a fault.
    disturbed: TimeNs,
    told: Told,
}

#[derive(Debug, Default)]
struct Collective {
    expected: Option<Arc<Vec<u8>>>,
    posts: BTreeMap<u32, TimeNs>,
    /// A failure that some rank heard from its gateway.
    failed: Option<Failure>,
}

/// What came of all collectives, and what must not be.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Outcomes of single ranks: `completed`, or the failure's code; those of commits begin with
    /// `commit `.
    pub outcomes: BTreeMap<String, u64>,
    /// The longest wait of a rank, and what it might have waited at the most.
    pub longest_wait: (Span, Span),
    /// The least time that was left until a deadline, of waits beyond the second.
    pub least_margin: Option<Span>,
    /// Of the memory that a job had of a gateway at any time, the most against what it may
    /// have: both in bytes.
    pub fullest: Option<(u64, u64)>,
    /// Faults that struck, by kind.
    pub faults: BTreeMap<String, u64>,
    /// What must not be, in words. Empty is good.
    pub wrong: Vec<String>,
}

impl Oracle {
    /// For a run.
    pub fn new(scenario: &Scenario, timeline: Timeline) -> Self {
        Self {
            seed: scenario.seed,
            load: scenario.load,
            ranks: scenario.shape.ranks.0 + scenario.shape.ranks.1,
            faults: scenario.faults.clone(),
            unharmed: scenario.unharmed || scenario.faults.is_empty(),
            timeline,
            state: Mutex::default(),
        }
    }

    /// What a collective is.
    pub fn shape(&self, tag: Tag) -> Shape {
        let mut dice = Dice(self.seed ^ number(tag));
        let dtype = [Dtype::F32, Dtype::I64][(dice.roll() % 2) as usize];
        let op = [ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Max][(dice.roll() % 3) as usize];
        let longest = self.load.segment.get() * self.load.segments_max / dtype.size();
        let elements = match dice.roll() % 8 {
            0 => 1 + dice.roll() % 16,
            1 | 2 => 1 + dice.roll() % (longest / 4),
            _ => 1 + dice.roll() % longest,
        };
        Shape { op, dtype, elements }
    }

    /// What a rank gives: whole numbers so small that any order of additions is exact.
    pub fn contribution(&self, tag: Tag, rank: u32) -> Vec<u8> {
        let shape = self.shape(tag);
        let mut bytes = Vec::with_capacity((shape.elements * shape.dtype.size()) as usize);
        for value in self.values(tag, rank) {
            match shape.dtype {
                Dtype::F32 => bytes.extend((value as f32).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
        bytes
    }

    fn values(&self, tag: Tag, rank: u32) -> impl Iterator<Item = i64> {
        let mut dice = Dice(self.seed ^ number(tag) ^ (u64::from(rank) + 1).wrapping_mul(ODD));
        let elements = self.shape(tag).elements as usize;
        let four = std::iter::repeat_with(move || dice.roll().to_le_bytes());
        let pair = |bytes: [u8; 2]| i64::from(i16::from_le_bytes(bytes));
        four.flat_map(move |b| [[b[0], b[1]], [b[2], b[3]], [b[4], b[5]], [b[6], b[7]]].map(pair))
            .take(elements)
    }

    /// What every rank must get: added up here, by nothing that the gateways use.
    fn expected(&self, tag: Tag) -> Vec<u8> {
        let shape = self.shape(tag);
        let mut sum: Vec<i64> = self.values(tag, 0).collect();
        for rank in 1..self.ranks {
            for (sum, value) in sum.iter_mut().zip(self.values(tag, rank)) {
                *sum = if shape.op == ReduceOp::Max { value.max(*sum) } else { *sum + value };
            }
        }
        match shape.dtype {
            Dtype::F32 => sum.into_iter().flat_map(|value| (value as f32).to_le_bytes()).collect(),
            _ => sum.into_iter().flat_map(i64::to_le_bytes).collect(),
        }
    }

    /// A fault begins or ends.
    pub fn disturbed(&self, now: TimeNs) {
        self.lock().disturbed = now;
    }

    /// When a fault began or ended last.
    pub fn last_disturbance(&self) -> TimeNs {
        self.lock().disturbed
    }

    /// A fault strikes.
    pub fn struck(&self, fault: &Fault) {
        *self.lock().told.faults.entry(fault.kind()).or_default() += 1;
    }

    /// A rank posts.
    pub fn posted(&self, tag: Tag, rank: u32, now: TimeNs) {
        self.lock().collectives.entry(tag).or_default().posts.insert(rank, now);
    }

    /// A rank hears what came of it.
    pub fn heard(&self, (tag, rank): (Tag, u32), outcome: Result<Vec<u8>, &Failure>, now: TimeNs) {
        let mut state = self.lock();
        self.keeps_deadline(&mut state, (tag, rank), "an outcome", now);
        match outcome {
            Ok(result) => {
                let collective = state.collectives.entry(tag).or_default();
                let expected = match &collective.expected {
                    Some(expected) => Arc::clone(expected),
                    None => {
                        let expected = Arc::new(self.expected(tag));
                        Arc::clone(collective.expected.insert(expected))
                    }
                };
                if *expected != result {
                    let text = format!("{tag}: rank {rank} {}", difference(&expected, &result));
                    self.blame(&mut state, text);
                }
                state.told.count("completed");
            }
            Err(failure) => {
                state.told.count(&format!("{:?}", failure.code));
                self.must_be_possible(&mut state, &format!("{tag}: rank {rank}"), failure);
                // A rank whose gateway died cannot know what stood in its slots by then.
                if failure.code != FailureCode::GatewayLost {
                    if state.committed.contains(&(tag.job, tag.attempt)) {
                        let text = format!("{tag}: rank {rank} heard {failure} after a commit");
                        self.blame(&mut state, text);
                    }
                    state.collectives.entry(tag).or_default().failed = Some(failure.clone());
                }
            }
        }
    }

    /// A rank that committed an attempt as a step at `begun` hears what came of it.
    pub fn committed(
        &self,
        (job, attempt, rank): (usize, u64, u32),
        outcome: Result<(), &Failure>,
        begun: TimeNs,
        now: TimeNs,
    ) {
        let mut state = self.lock();
        let who = format!("job {job}, attempt {attempt}: rank {rank}");
        let all = (0..self.load.in_flight).map(|index| Tag { job, attempt, index });
        let of = all.map(|tag| state.collectives.get(&tag)).collect::<Vec<_>>();
        let everybody = of.iter().all(|collective| {
            collective.is_some_and(|collective| collective.posts.len() == self.ranks as usize)
        });
        let last = of.iter().flatten().flat_map(|collective| collective.posts.values()).max();
        let last = last.copied().unwrap_or(begun);
        let failed = of.iter().flatten().find_map(|collective| collective.failed.clone());
        let awaited = if everybody { last } else { begun + self.load.timeout };
        self.keeps(&mut state, &format!("{who} got an answer to its commit"), begun, awaited, now);
        match outcome {
            Ok(()) => {
                state.told.count("commit confirmed");
                if !everybody {
                    self.blame(&mut state, format!("{who} committed what not all have posted"));
                }
                if let Some(failure) = failed {
                    let text = format!("{who} committed, but some rank heard {failure}");
                    self.blame(&mut state, text);
                }
                state.committed.insert((job, attempt));
                let confirmed = state.confirmed.entry(job).or_default();
                *confirmed = (*confirmed).max(attempt);
            }
            Err(failure) => {
                state.told.count(&format!("commit {:?}", failure.code));
                self.must_be_possible(&mut state, &who, failure);
            }
        }
    }

    /// What a rank was told as an epoch began: the last step that is complete in every region.
    pub fn knows(&self, (job, rank): (usize, u32), epoch: Epoch, step: Option<u64>) {
        let mut state = self.lock();
        let (of, known) = *state.known.entry(job).or_insert((epoch, step));
        if of != epoch {
            state.known.insert(job, (epoch, step));
        } else if known != step {
            let text = format!(
                "job {job}: rank {rank} begins epoch {epoch} after step {step:?}, another rank \
                 after {known:?}"
            );
            self.blame(&mut state, text);
        }
        let confirmed = state.confirmed.get(&job).copied();
        // A gateway that is started again has forgotten, and it may be the only one that knew.
        if !self.strikes(|fault| {
            matches!(fault.what, What::Kill | What::Drain)
                && matches!(fault.place, Place::Gateway(_))
        }) && step < confirmed
        {
            let text = format!(
                "job {job}: rank {rank} begins epoch {epoch} after step {step:?}, but \
                 {confirmed:?} was confirmed"
            );
            self.blame(&mut state, text);
        }
    }

    /// A gateway is gone, and the epoch with it.
    pub fn epoch_over(&self) {
        self.lock().known.clear();
    }

    /// A rank has its slots back.
    pub fn freed(&self, tag: Tag, rank: u32, intact: bool, now: TimeNs) {
        let mut state = self.lock();
        self.keeps_deadline(&mut state, (tag, rank), "its slots", now);
        if !intact {
            self.blame(&mut state, format!("{tag}: the contribution of rank {rank} changed"));
        }
    }

    /// How much of a gateway's memory a job had at the most, and how much it may have.
    pub fn used(&self, gateway: &str, job: &str, (most, limit): (u64, u64)) {
        let mut state = self.lock();
        state.told.fullest = fuller(state.told.fullest, Some((most, limit)));
        if most > limit {
            let text = format!("{gateway}: {most} bytes for job {job}, {limit} allowed");
            self.blame(&mut state, text);
        }
    }

    /// Something else that must not be.
    pub fn wrong(&self, what: String) {
        self.blame(&mut self.lock(), what);
    }

    /// Everything so far.
    pub fn told(&self) -> Told {
        self.lock().told.clone()
    }

    /// No attempt is under way: nobody asks for old collectives again.
    pub fn forget(&self, job: usize, before: u64) {
        let mut state = self.lock();
        state.collectives.retain(|tag, _| tag.job != job || tag.attempt >= before);
        state.committed.retain(|(of, attempt)| *of != job || *attempt >= before);
    }

    fn keeps_deadline(&self, state: &mut State, (tag, rank): (Tag, u32), what: &str, now: TimeNs) {
        let Some(collective) = state.collectives.get(&tag) else { return };
        let Some(posted) = collective.posts.get(&rank).copied() else { return };
        let everybody = collective.posts.len() == self.ranks as usize;
        let last = collective.posts.values().max().copied().unwrap_or(posted);
        let awaited = if everybody { last } else { posted + self.load.timeout };
        self.keeps(state, &format!("{tag}: rank {rank} got {what}"), posted, awaited, now);
    }

    /// What somebody waits for from `begun` on comes in time after `awaited`, when all was there
    /// that it takes.
    fn keeps(&self, state: &mut State, what: &str, begun: TimeNs, awaited: TimeNs, now: TimeNs) {
        let deadline = awaited.max(state.disturbed).max(begun) + VERDICT_WITHIN;
        let waited = now.since(begun);
        if waited > state.told.longest_wait.0 {
            state.told.longest_wait = (waited, deadline.since(begun));
        }
        if now > deadline {
            let late = now.since(deadline);
            self.blame(state, format!("{what} {late} after the deadline"));
        } else if waited > Span::from_secs(2) {
            let margin = deadline.since(now);
            let least = &mut state.told.least_margin;
            *least = Some(least.map_or(margin, |least| least.min(margin)));
        }
    }

    /// Nobody is blamed for what did not happen.
    fn must_be_possible(&self, state: &mut State, who: &str, failure: &Failure) {
        use Place::{Gateway, Rank};
        use What::{Drain, Kill};
        let possible = match failure.code {
            FailureCode::Disagreement | FailureCode::BadPost => false,
            FailureCode::ShuttingDown => self.strikes(|fault| fault.what == Drain),
            FailureCode::RankLost => {
                self.strikes(|fault| matches!((fault.what, fault.place), (Kill, Rank(..))))
            }
            FailureCode::GatewayLost => self
                .strikes(|fault| matches!((fault.what, fault.place), (Kill | Drain, Gateway(_)))),
            FailureCode::TimedOut
            | FailureCode::RegionLost
            | FailureCode::EpochEnded
            | FailureCode::Stalled => !self.unharmed,
        };
        if !possible {
            self.blame(state, format!("{who} heard {failure}"));
        }
    }

    fn strikes(&self, wanted: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(wanted)
    }

    fn blame(&self, state: &mut State, what: String) {
        self.timeline.say("WRONG", || &what);
        state.told.wrong.push(what);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn count(&mut self, outcome: &str) {
        *self.outcomes.entry(outcome.to_owned()).or_default() += 1;
    }

    /// Adds what came of another run.
    pub fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome.clone()).or_default() += count;
        }
        for (kind, count) in &other.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.fullest = fuller(self.fullest, other.fullest);
        self.least_margin = self.least_margin.into_iter().chain(other.least_margin).min();
        self.wrong.extend(other.wrong.iter().cloned());
    }
}

/// The one of which a larger part is in use.
fn fuller(one: Option<(u64, u64)>, other: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let part = |(most, limit): &(u64, u64)| *most as f64 / *limit as f64;
    one.into_iter().chain(other).max_by(|one, other| part(one).total_cmp(&part(other)))
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}, attempt {}, number {} of it", self.job, self.attempt, self.index)
    }
}

fn number(tag: Tag) -> u64 {
    let mut dice = Dice(tag.attempt ^ (u64::from(tag.index) << 40) ^ ((tag.job as u64) << 56));
    dice.roll()
}

fn difference(expected: &[u8], result: &[u8]) -> String {
    let wrong: Vec<usize> = expected
        .iter()
        .zip(result)
        .enumerate()
        .filter_map(|(at, (one, other))| (one != other).then_some(at))
        .collect();
    match (wrong.first(), wrong.last()) {
        (Some(first), Some(last)) => {
            format!("has {} wrong bytes of {}, from {first} to {last}", wrong.len(), result.len())
        }
        _ => format!("has {} bytes instead of {}", result.len(), expected.len()),
    }
}

/// Spreads rank numbers over all bits.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
