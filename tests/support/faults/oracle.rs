//! What must hold whatever goes wrong, and what came of each collective.

use super::scenario::{Load, Scenario};
use super::{Fault, Place, What};
use crate::data::Dice;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::{Failure, FailureCode};
use std::collections::BTreeMap;
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
/// moves fails after the stall deadline of 5 s, and until then it may move for 10 s over the
/// slowest link. While a rank is awaited, the poster's timeout comes first.
pub const VERDICT_WITHIN: Span = Span::from_secs(15 + 5 + 10);

/// See the module.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    load: Load,
    ranks: u32,
    faults: Vec<Fault>,
    unharmed: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    collectives: BTreeMap<Tag, Collective>,
    /// The last begin or end of a fault.
    disturbed: TimeNs,
    told: Told,
}

#[derive(Debug, Default)]
struct Collective {
    expected: Option<Arc<Vec<u8>>>,
    posts: BTreeMap<u32, TimeNs>,
}

/// What came of all collectives, and what must not be.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Outcomes of single ranks: `completed`, or the failure's code.
    pub outcomes: BTreeMap<String, u64>,
    /// The longest wait of a rank.
    pub longest_wait: Span,
    /// The least time that was left until a deadline, of waits beyond the second.
    pub least_margin: Option<Span>,
    /// What must not be, in words. Empty is good.
    pub wrong: Vec<String>,
}

impl Oracle {
    /// For a run.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            seed: scenario.seed,
            load: scenario.load,
            ranks: scenario.shape.ranks.0 + scenario.shape.ranks.1,
            faults: scenario.faults.clone(),
            unharmed: scenario.unharmed || scenario.faults.is_empty(),
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
                    let text = format!("{tag:?}: rank {rank} {}", difference(&expected, &result));
                    state.told.wrong.push(text);
                }
                state.told.count("completed");
            }
            Err(failure) => {
                state.told.count(&format!("{:?}", failure.code));
                if !self.may_be(failure.code) {
                    state.told.wrong.push(format!("{tag:?}: rank {rank} heard {failure}"));
                }
            }
        }
    }

    /// A rank has its slots back.
    pub fn freed(&self, tag: Tag, rank: u32, intact: bool, now: TimeNs) {
        let mut state = self.lock();
        self.keeps_deadline(&mut state, (tag, rank), "its slots", now);
        if !intact {
            state.told.wrong.push(format!("{tag:?}: the contribution of rank {rank} changed"));
        }
    }

    /// Something else that must not be.
    pub fn wrong(&self, what: String) {
        self.lock().told.wrong.push(what);
    }

    /// Everything so far.
    pub fn told(&self) -> Told {
        self.lock().told.clone()
    }

    /// No attempt is under way: nobody asks for old collectives again.
    pub fn forget(&self, job: usize, before: u64) {
        self.lock().collectives.retain(|tag, _| tag.job != job || tag.attempt >= before);
    }

    fn keeps_deadline(&self, state: &mut State, (tag, rank): (Tag, u32), what: &str, now: TimeNs) {
        let Some(collective) = state.collectives.get(&tag) else { return };
        let Some(posted) = collective.posts.get(&rank).copied() else { return };
        let everybody = collective.posts.len() == self.ranks as usize;
        let last = collective.posts.values().max().copied().unwrap_or(posted);
        let awaited = if everybody { last } else { posted + self.load.timeout };
        let deadline = awaited.max(state.disturbed).max(posted) + VERDICT_WITHIN;
        let waited = now.since(posted);
        let told = &mut state.told;
        told.longest_wait = told.longest_wait.max(waited);
        if now > deadline {
            let late = now.since(deadline);
            told.wrong.push(format!("{tag:?}: rank {rank} got {what} {late} after the deadline"));
        } else if waited > Span::from_secs(2) {
            let margin = deadline.since(now);
            told.least_margin = Some(told.least_margin.map_or(margin, |least| least.min(margin)));
        }
    }

    /// Nobody is blamed for what did not happen.
    fn may_be(&self, code: FailureCode) -> bool {
        let killed = |wanted: fn(&Place) -> bool| {
            let hit = |fault: &Fault| fault.what == What::Kill && wanted(&fault.place);
            self.faults.iter().any(hit)
        };
        match code {
            FailureCode::Disagreement | FailureCode::BadPost | FailureCode::ShuttingDown => false,
            FailureCode::RankLost => killed(|place| matches!(place, Place::Rank(..))),
            FailureCode::GatewayLost => killed(|place| matches!(place, Place::Gateway(_))),
            FailureCode::TimedOut
            | FailureCode::RegionLost
            | FailureCode::EpochEnded
            | FailureCode::Stalled => !self.unharmed,
        }
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
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.least_margin = self.least_margin.into_iter().chain(other.least_margin).min();
        self.wrong.extend(other.wrong.iter().cloned());
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
