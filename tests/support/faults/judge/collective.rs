//! The contributions of ranks to each collective, and the expected results. All are computed here,
//! independently of the gateways' code.

use crate::collectives::data::{ExactValues, SplitMix64};
use crate::faults::judge::side_load::{GROUP_COLLECTIVES_MAX, SideLoad};
use crate::faults::spec::layout::Layout;
use crate::faults::spec::place::GatewaySet;
use crate::faults::spec::scenario::{Load, Scenario};
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp, SlotElements};
use hier_collectives::ids::RankId;
use hier_collectives::plan::{EXPRESS_MAX, Plan};
use hier_collectives::size_class::MEDIUM_BYTES;
use hier_collectives::topology::Fabric;
use std::fmt;
use std::sync::Arc;

/// The identity of a collective of a run: its job, its attempt at a round, its position in the
/// round. Positions from the number of the round's collectives on are those of the attempt's group,
/// and then of its sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveId {
    /// The job, by number.
    pub job: usize,
    /// The attempt.
    pub attempt: u64,
    /// The collective.
    pub index: u32,
}

/// The kind and size of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveShape {
    /// The pattern: the ranks that contribute and those that get results, by their numbers among
    /// those that take part.
    pub pattern: Pattern,
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// Number of elements of the longer slot: for operations on blocks, of all blocks.
    pub elements: u64,
}

/// All collectives of a run, drawn from its seed.
#[derive(Debug)]
pub struct Collectives {
    seed: u64,
    load: Load,
    layout: Layout,
    fabric: Arc<Fabric>,
    /// The bytes from which on blocks that all ranks get or give take trees of their own; `None` where
    /// the plan of the job has none.
    trees_from: Option<u64>,
    /// The bytes up to which the plan of the job has a tree for short operations.
    express_bytes: u64,
}

impl Collectives {
    /// The collectives of a run, for the plan with which its gateways begin.
    pub fn of(scenario: &Scenario, plan: &Plan) -> Self {
        let fabric = scenario.layout.fabric(&scenario.shape);
        let layout = scenario.layout.clone();
        let least = plan.block_bytes_min.get().max(MEDIUM_BYTES + 1);
        let express_bytes = plan.express_bytes.get();
        let trees_from = (!plan.block_trees.is_empty()).then_some(least);
        Self { seed: scenario.seed, load: scenario.load, layout, fabric, trees_from, express_bytes }
    }

    /// The bytes up to which a collective may take a tree for short operations. Groups have plans of
    /// their own.
    pub fn express_bytes(&self, tag: CollectiveId) -> u64 {
        if self.is_of_job(tag) { self.express_bytes } else { EXPRESS_MAX.get() }
    }

    /// The way in which gateways without its ranks, or with others, relay a collective, for counts.
    pub fn relayed(&self, tag: CollectiveId) -> Option<&'static str> {
        let shape = self.shape(tag);
        let bytes = shape.elements * shape.dtype.size();
        match shape.pattern {
            Pattern::Send { .. } => (self.gateways(tag).count() > 2).then_some("relayed send"),
            Pattern::AllGather | Pattern::ReduceScatter if self.is_of_job(tag) => {
                self.trees_from.filter(|least| bytes >= *least).map(|_| "blocks over trees")
            }
            _ => None,
        }
    }

    /// The regions, gateways and links of the run.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether a collective is one of all ranks of the job, in the order of the job's collectives.
    pub fn is_of_job(&self, tag: CollectiveId) -> bool {
        tag.index < self.load.in_flight
    }

    /// The operations of an attempt beside the collectives of its job.
    pub fn side_load(&self, job: usize, attempt: u64) -> SideLoad {
        let whole = CollectiveId { job, attempt, index: SIDE_LOAD };
        let mut side =
            SideLoad::draw(SplitMix64(self.seed ^ number(whole)), attempt, self.layout.world());
        // Gateways that reach each other by way of others alone make no group.
        for group in side.group.iter_mut().filter(|group| !self.layout.is_joined(&group.ranks)) {
            group.ranks = (0..self.layout.world()).collect();
        }
        side
    }

    /// The identity of a collective of the attempt's group.
    pub fn group_collective(&self, job: usize, attempt: u64, place: u32) -> CollectiveId {
        CollectiveId { job, attempt, index: self.load.in_flight + place }
    }

    /// The identity of a send of the attempt.
    pub fn send(&self, job: usize, attempt: u64, place: u32) -> CollectiveId {
        self.group_collective(job, attempt, GROUP_COLLECTIVES_MAX + place)
    }

    /// Whether a collective is a send.
    pub fn is_send(&self, tag: CollectiveId) -> bool {
        tag.index >= self.load.in_flight + GROUP_COLLECTIVES_MAX
    }

    /// The ranks that take part in a collective, in the order of their numbers in it.
    pub fn participants(&self, tag: CollectiveId) -> Vec<u32> {
        if self.is_of_job(tag) {
            return (0..self.layout.world()).collect();
        }
        let SideLoad { group, sends } = self.side_load(tag.job, tag.attempt);
        match (group, sends) {
            (_, Some(sends)) if self.is_send(tag) => vec![sends.from, sends.to],
            (Some(group), _) => group.ranks,
            _ => vec![],
        }
    }

    /// The gateways that take part in a collective, with those that pass on a send.
    pub fn gateways(&self, tag: CollectiveId) -> GatewaySet {
        match self.participants(tag)[..] {
            [from, to] if self.is_send(tag) => {
                GatewaySet::of(self.layout.gateways_of_send(&self.fabric, from, to))
            }
            ref ranks => GatewaySet::of(ranks.iter().map(|rank| self.layout.gateway_of(*rank))),
        }
    }

    /// The kind and size of a collective.
    pub fn shape(&self, tag: CollectiveId) -> CollectiveShape {
        let mut dice = SplitMix64(self.seed ^ number(tag));
        let ranks = self.participants(tag).len().max(1) as u64;
        let root = RankId((dice.roll() % ranks) as u32);
        let pattern = match dice.roll() % 15 {
            _ if self.is_send(tag) => Pattern::Send { from: RankId(0) },
            0..=5 => Pattern::AllReduce,
            6 | 7 => Pattern::Reduce { to: root },
            8 => Pattern::Broadcast { from: root },
            9 => Pattern::Barrier,
            10 => Pattern::AllGather,
            11 => Pattern::Gather { to: root },
            12 => Pattern::ReduceScatter,
            13 => Pattern::Scatter { from: root },
            _ => Pattern::AllToAll,
        };
        if pattern == Pattern::Barrier {
            return CollectiveShape { pattern, op: ReduceOp::Sum, dtype: Dtype::U8, elements: 0 };
        }
        let dtype = Dtype::ALL[(dice.roll() % Dtype::ALL.len() as u64) as usize];
        let op = match (pattern, ReduceOp::ALL[(dice.roll() % ReduceOp::ALL.len() as u64) as usize])
        {
            (pattern, _) if !reduces(pattern) => ReduceOp::Sum,
            (Pattern::ReduceScatter, ReduceOp::Avg) => ReduceOp::Sum,
            (_, op) if op.accepts(dtype) => op,
            _ => ReduceOp::Sum,
        };
        let segment = self.load.segment.get() / dtype.size();
        let longest = segment * self.load.segments_max;
        let elements = match dice.roll() % 8 {
            0 => 1 + dice.roll() % 16,
            1 | 2 => 1 + dice.roll() % (longest / 4),
            // Whole segments, and an element more or less.
            3 => {
                let segments = 1 + dice.roll() % self.load.segments_max;
                (segments * segment + dice.roll() % 3).saturating_sub(1).clamp(1, longest)
            }
            _ => 1 + dice.roll() % longest,
        };
        let elements =
            if has_blocks(pattern) { (elements / ranks).max(1) * ranks } else { elements };
        CollectiveShape { pattern, op, dtype, elements }
    }

    /// The lengths of a rank's slots.
    pub fn slots(&self, tag: CollectiveId, rank: u32) -> SlotElements {
        let (shape, ranks) = (self.shape(tag), self.participants(tag));
        let (whole, block) = (shape.elements, shape.elements / ranks.len().max(1) as u64);
        let at = |root: RankId, elements| if ranks[root.0 as usize] == rank { elements } else { 0 };
        let (contribution, result) = match shape.pattern {
            Pattern::AllGather => (block, whole),
            Pattern::Gather { to } => (block, at(to, whole)),
            Pattern::ReduceScatter => (whole, block),
            Pattern::Scatter { from } => (at(from, whole), block),
            Pattern::Send { .. } => (at(RankId(0), whole), at(RankId(1), whole)),
            _ => (whole, whole),
        };
        SlotElements { contribution, result }
    }

    /// The weight of a rank in an average; never 0 for the first rank.
    pub fn weight(&self, tag: CollectiveId, rank: u32) -> f64 {
        let mut dice = SplitMix64(self.seed ^ number(tag) ^ !u64::from(rank));
        let is_first = self.participants(tag).first() == Some(&rank);
        match (is_first, dice.roll() % 5) {
            (false, 0) => 0.0,
            (_, pick) => [1.0, 0.5, 1.0, 2.0, 3.0][pick as usize],
        }
    }

    /// The contribution of a rank, or its buffer where it contributes nothing.
    pub fn contribution(&self, tag: CollectiveId, rank: u32) -> Vec<u8> {
        self.shape(tag).exact().encode(&self.values(tag, rank))
    }

    /// Whether a rank gets a result.
    pub fn gets(&self, tag: CollectiveId, rank: u32) -> bool {
        let ranks = self.participants(tag);
        match self.shape(tag).pattern {
            Pattern::Reduce { to } | Pattern::Gather { to } => ranks[to.0 as usize] == rank,
            Pattern::Send { .. } => ranks[1] == rank,
            _ => true,
        }
    }

    /// The ranks without whose posts another rank cannot have what it waits for.
    pub fn needs(&self, tag: CollectiveId, rank: u32) -> Vec<u32> {
        let ranks = self.participants(tag);
        match self.shape(tag).pattern {
            Pattern::Broadcast { from } | Pattern::Scatter { from } => {
                vec![ranks[from.0 as usize]]
            }
            Pattern::Reduce { to } | Pattern::Gather { to } if ranks[to.0 as usize] != rank => {
                vec![rank]
            }
            _ => ranks,
        }
    }

    /// Checks the result of a rank; the error describes the difference. `known` is the result of
    /// other ranks, if there is one.
    pub fn judge(
        &self,
        tag: CollectiveId,
        rank: u32,
        known: &mut Option<Arc<Vec<u8>>>,
        result: &[u8],
    ) -> Result<(), String> {
        let shape = self.shape(tag);
        if matches!(
            shape.pattern,
            Pattern::ReduceScatter | Pattern::Scatter { .. } | Pattern::AllToAll
        ) {
            // Each rank has blocks of its own.
            let expected = self.expected(tag, rank);
            return if expected == result { Ok(()) } else { Err(difference(&expected, result)) };
        }
        if known.is_none() && shape.op == ReduceOp::Avg {
            self.judge_average(tag, result)?;
        }
        let expected = known.get_or_insert_with(|| {
            let average = shape.op == ReduceOp::Avg;
            Arc::new(if average { result.to_vec() } else { self.expected(tag, rank) })
        });
        if **expected == result { Ok(()) } else { Err(difference(expected, result)) }
    }

    /// The values of a rank.
    fn values(&self, tag: CollectiveId, rank: u32) -> Vec<i64> {
        let seed = self.seed ^ number(tag) ^ (u64::from(rank) + 1).wrapping_mul(ODD);
        self.shape(tag).exact().draw(seed, self.slots(tag, rank).contribution)
    }

    /// The result of a rank that gets one.
    fn expected(&self, tag: CollectiveId, rank: u32) -> Vec<u8> {
        let (shape, ranks) = (self.shape(tag), self.participants(tag));
        let all = |of: &u32| self.values(tag, *of);
        let own = ranks.iter().position(|of| *of == rank).unwrap_or_default();
        let block = shape.elements as usize / ranks.len();
        let own_block = |values: Vec<i64>| values[own * block..][..block].to_vec();
        let values: Vec<i64> = match shape.pattern {
            Pattern::Broadcast { from } | Pattern::Send { from } => all(&ranks[from.0 as usize]),
            Pattern::AllGather | Pattern::Gather { .. } => {
                ranks.iter().map(all).collect::<Vec<_>>().concat()
            }
            Pattern::AllToAll => {
                ranks.iter().map(|of| own_block(all(of))).collect::<Vec<_>>().concat()
            }
            Pattern::Scatter { from } => own_block(all(&ranks[from.0 as usize])),
            Pattern::ReduceScatter => own_block(self.reduced(tag, &ranks)),
            _ => self.reduced(tag, &ranks),
        };
        shape.exact().encode(&values)
    }

    /// The reduction of the contributions of some ranks.
    fn reduced(&self, tag: CollectiveId, ranks: &[u32]) -> Vec<i64> {
        let mut total = self.values(tag, ranks[0]);
        for rank in &ranks[1..] {
            self.shape(tag).exact().reduce(&mut total, &self.values(tag, *rank));
        }
        total
    }

    /// A weighted mean may be rounded at each gateway on its way.
    fn judge_average(&self, tag: CollectiveId, result: &[u8]) -> Result<(), String> {
        let shape = self.shape(tag);
        let ranks = self.participants(tag).into_iter();
        let values = ranks.map(|rank| (self.values(tag, rank), self.weight(tag, rank)));
        let mean = ExactValues::mean(&values.collect::<Vec<_>>());
        let (largest, precision) = match shape.dtype {
            Dtype::Bf16 => (16.0, 2f64.powi(-8)),
            Dtype::F16 => (128.0, 2f64.powi(-11)),
            Dtype::F32 => (32_768.0, 2f64.powi(-24)),
            _ => (32_768.0, 2f64.powi(-52)),
        };
        let values = crate::collectives::data::as_f64(shape.dtype, result);
        let error = 2.0 * self.layout.gateways().count() as f64 * largest * precision;
        let off = |(value, mean): (&f64, &f64)| (value - mean).abs() > error;
        if values.len() != mean.len() {
            return Err(format!("has {} elements instead of {}", values.len(), mean.len()));
        }
        // A mean that is no number is none of these.
        let wrong = values.iter().zip(&mean).position(|pair| off(pair) || pair.0.is_nan());
        match wrong {
            Some(at) => Err(format!("has {} at {at} where the mean is {}", values[at], mean[at])),
            None => Ok(()),
        }
    }
}

impl CollectiveShape {
    /// The kind of its values.
    fn exact(self) -> ExactValues {
        ExactValues { op: self.op, dtype: self.dtype }
    }

    /// The kind, for counts: `reduce max f16`.
    pub fn kind(&self) -> String {
        match self.pattern {
            Pattern::Barrier => self.pattern.name().to_owned(),
            pattern if !reduces(pattern) => format!("{} {}", pattern.name(), self.dtype),
            _ => format!("{} {} {}", self.pattern.name(), self.op, self.dtype),
        }
    }
}

impl fmt::Display for CollectiveShape {
    /// Prints pattern, operation, element type and size: `all-reduce sum f32 of 4096 bytes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pattern, bytes) = (self.pattern, self.elements * self.dtype.size());
        write!(f, "{pattern} {} {} of {bytes} bytes", self.op, self.dtype)
    }
}

impl fmt::Display for CollectiveId {
    /// Prints `job 0, attempt 2, number 1 of it`, where the number is the position in the round.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}, attempt {}, number {} of it", self.job, self.attempt, self.index)
    }
}

/// Position that stands for all operations of an attempt beside the collectives of its job.
const SIDE_LOAD: u32 = 0xffff;

/// Whether contributions are combined.
fn reduces(pattern: Pattern) -> bool {
    matches!(pattern, Pattern::AllReduce | Pattern::Reduce { .. } | Pattern::ReduceScatter)
}

/// Whether each rank has blocks of its own in a slot.
fn has_blocks(pattern: Pattern) -> bool {
    matches!(
        pattern,
        Pattern::AllGather
            | Pattern::Gather { .. }
            | Pattern::Scatter { .. }
            | Pattern::ReduceScatter
            | Pattern::AllToAll
    )
}

fn number(tag: CollectiveId) -> u64 {
    let mut dice =
        SplitMix64(tag.attempt ^ (u64::from(tag.index) << 40) ^ ((tag.job as u64) << 56));
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

/// 2^64 over the golden ratio, an odd factor that spreads rank numbers over all 64 bits of a seed.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
