//! One rank's part in a collective whose every contribution is known to every rank.

use crate::client::{Attach, AttachError, Client, DEFAULT_TIMEOUT, PostError, Way};
use crate::host::{Host, RealHost};
use crate::local::protocol::Token;
use aws_lc_rs::digest;
use half::{bf16, f16};
use hier_collectives::bound;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::RankId;
use hier_collectives::post::Failure;
use hier_collectives::topology::Fabric;
use serde::Serialize;
use std::num::NonZeroU32;
use std::sync::Arc;
use units::{ByteCount, Span};

/// What to run.
#[derive(Debug)]
pub struct Bench {
    /// The way to the gateway.
    pub way: Way,
    /// The job.
    pub job: String,
    /// Its token.
    pub token: Token,
    /// The rank.
    pub rank: RankId,
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// Elements of the buffer.
    pub elements: u64,
    /// Their type.
    pub dtype: Dtype,
    /// Who gives and who gets.
    pub pattern: Pattern,
    /// How elements are combined.
    pub op: ReduceOp,
    /// How often.
    pub iterations: NonZeroU32,
}

/// What came of it, with the keys of the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The rank.
    pub rank: u32,
    /// The operation.
    pub operation: &'static str,
    /// How elements are combined.
    pub op: &'static str,
    /// The element type.
    pub dtype: &'static str,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// From the rank's post to its result, each iteration. All ranks start an iteration
    /// together, within a one-way delay.
    pub seconds: Vec<f64>,
    /// When the rank posted, each iteration, in nanoseconds of its host's monotonic clock, which
    /// is the same for all processes of a host.
    pub posted_ns: Vec<u64>,
    /// When it had its result.
    pub ready_ns: Vec<u64>,
    /// The bound over the time, each iteration.
    pub eta: Vec<f64>,
    /// SHA-256 of the last result's bytes, in hexadecimal.
    pub digest: String,
    /// Largest difference from the same reduction in f64, or in wrapping integers.
    pub max_abs_error: f64,
    /// The largest that passes.
    pub tolerance: f64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No room.
    #[error(transparent)]
    Full(#[from] crate::client::ArenaFull),
    /// Not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A collective failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Bench {
    /// Runs it.
    ///
    /// # Errors
    /// [`BenchError`].
    pub async fn run(self) -> Result<Outcome, BenchError> {
        let bytes = self.elements * self.dtype.size();
        let arena = 2 * (bytes + 128) + 4096;
        let attach = Attach {
            // A benchmark of a gateway that is not there says so at once.
            gateway_patience: Span::ZERO,
            ..Attach::new(&self.job, self.token, self.rank.0, arena)
        };
        let client = Client::attach(&self.way, attach).await?;
        let mut tensor = client.allocate(self.dtype, self.elements)?;
        tensor.write(&self.contribution(self.rank.0));
        let clock = RealHost;
        let weight = weight_of(self.rank.0);
        let (mut posted_at, mut ready_at, mut result) = (Vec::new(), Vec::new(), Vec::new());
        for left in (0..self.iterations.get()).rev() {
            meet(&client).await?;
            posted_at.push(clock.now());
            let what = (self.pattern, self.op);
            let posted = client.post(tensor, what, weight, DEFAULT_TIMEOUT).await;
            let mut operation = posted?;
            operation.ready().await?;
            ready_at.push(clock.now());
            // What takes memory of its own would keep the next from beginning.
            if left == 0 {
                result = operation.result();
            }
            tensor = operation.reclaim().await?;
        }
        if matches!(self.pattern, Pattern::Reduce { to } if to != self.rank) {
            result.clear();
        }
        let operation = self.pattern.over(&self.fabric);
        let operation = operation.expect("it has been carried out");
        let seconds: Vec<f64> = posted_at
            .iter()
            .zip(&ready_at)
            .map(|(posted, ready)| ready.since(*posted).as_secs_f64())
            .collect();
        let bound = bound::least_time(&self.fabric, operation, ByteCount::new(bytes));
        let bound = bound.as_secs_f64();
        let (max_abs_error, tolerance) = self.judge(&result);
        Ok(Outcome {
            rank: self.rank.0,
            operation: self.pattern.name(),
            op: self.op.name(),
            dtype: self.dtype.name(),
            bytes,
            eta: seconds.iter().map(|seconds| bound / seconds).collect(),
            seconds,
            posted_ns: posted_at.iter().map(|at| at.ns()).collect(),
            ready_ns: ready_at.iter().map(|at| at.ns()).collect(),
            digest: sha256(&result),
            max_abs_error,
            tolerance,
        })
    }

    fn contribution(&self, rank: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((self.elements * self.dtype.size()) as usize);
        for index in 0..self.elements {
            encode(self.dtype, rank, index, &mut bytes);
        }
        bytes
    }

    /// The largest error of a result, and the largest allowed.
    fn judge(&self, result: &[u8]) -> (f64, f64) {
        let ranks = match self.pattern {
            Pattern::Broadcast { from } => from.0..from.0 + 1,
            _ => 0..self.fabric.world_size(),
        };
        let size = self.dtype.size() as usize;
        let total: f64 = ranks.clone().map(weight_of).sum();
        let (mut worst, mut scale) = (0.0f64, 0.0f64);
        let mut element = Vec::with_capacity(8);
        for (index, bytes) in (0u64..).zip(result.chunks_exact(size)) {
            let mut exact: Option<Exact> = None;
            for rank in ranks.clone() {
                element.clear();
                encode(self.dtype, rank, index, &mut element);
                let next = Exact::read(self.dtype, &element, weight_of(rank) / total);
                exact = Some(exact.map_or(next.first(self.op), |sum| sum.and(self.op, next)));
            }
            let Some(exact) = exact else { continue };
            let got = Exact::read(self.dtype, bytes, 1.0);
            worst = worst.max(exact.distance(&got));
            scale = scale.max(exact.size());
        }
        (worst, scale * ranks.len() as f64 * epsilon(self.dtype))
    }
}

/// Lets all ranks start an iteration together: an all-reduce of one element.
pub(crate) async fn meet(client: &Client) -> Result<(), BenchError> {
    let tensor = client.allocate(Dtype::U8, 1)?;
    let mut operation = client.all_reduce(tensor, ReduceOp::Max).await?;
    operation.ready().await?;
    operation.reclaim().await?;
    Ok(())
}

/// Ranks count unequally in an average, so that an unweighted one would show.
fn weight_of(rank: u32) -> f64 {
    f64::from(rank % 4 + 1)
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends an element of a rank's contribution: a float from -1.5 to 1.5 and not near zero,
/// or any integer.
fn encode(dtype: Dtype, rank: u32, index: u64, out: &mut Vec<u8>) {
    let mut z = (index ^ (u64::from(rank) << 40)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let magnitude = 0.5 + (z >> 12) as f64 / (1u64 << 52) as f64;
    let float = if z & 1 == 0 { magnitude } else { -magnitude };
    match dtype {
        Dtype::F32 => out.extend((float as f32).to_le_bytes()),
        Dtype::F64 => out.extend(float.to_le_bytes()),
        Dtype::F16 => out.extend(f16::from_f64(float).to_le_bytes()),
        Dtype::Bf16 => out.extend(bf16::from_f64(float).to_le_bytes()),
        _ => out.extend(&z.to_le_bytes()[..dtype.size() as usize]),
    }
}

/// The unit roundoff, twice: once where a region sums, once where the regions do.
fn epsilon(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2f64.powi(-23),
        Dtype::F64 => 2f64.powi(-52),
        Dtype::F16 => 2f64.powi(-10),
        Dtype::Bf16 => 2f64.powi(-7),
        Dtype::I32 | Dtype::I64 | Dtype::U8 => 0.0,
    }
}

/// An element in the arithmetic of the reference.
#[derive(Debug, Clone, Copy)]
enum Exact {
    /// Value and share in an average.
    Float(f64, f64),
    /// Value, and how many of its bits count.
    Integer(i64, Dtype),
}

impl Exact {
    fn read(dtype: Dtype, bytes: &[u8], share: f64) -> Self {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        match dtype {
            Dtype::F32 => Self::Float(f64::from(f32::from_bits(bits as u32)), share),
            Dtype::F64 => Self::Float(f64::from_bits(bits), share),
            Dtype::F16 => Self::Float(f16::from_bits(bits as u16).to_f64(), share),
            Dtype::Bf16 => Self::Float(bf16::from_bits(bits as u16).to_f64(), share),
            Dtype::I32 => Self::Integer(i64::from(bits as i32), dtype),
            Dtype::I64 => Self::Integer(bits as i64, dtype),
            Dtype::U8 => Self::Integer(bits as i64, dtype),
        }
    }

    fn first(self, op: ReduceOp) -> Self {
        match self {
            Self::Float(value, share) if op == ReduceOp::Avg => Self::Float(value * share, share),
            other => other,
        }
    }

    fn and(self, op: ReduceOp, next: Self) -> Self {
        match (self, next) {
            (Self::Float(a, share), Self::Float(b, next_share)) => {
                let value = match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Avg => a + b * next_share,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Prod => a * b,
                };
                Self::Float(value, share)
            }
            (Self::Integer(a, dtype), Self::Integer(b, _)) => {
                let value = match op {
                    ReduceOp::Sum | ReduceOp::Avg => a.wrapping_add(b),
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                };
                let value = match dtype {
                    Dtype::I32 => i64::from(value as i32),
                    Dtype::U8 => i64::from(value as u8),
                    _ => value,
                };
                Self::Integer(value, dtype)
            }
            (same, _) => same,
        }
    }

    fn distance(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Float(a, _), Self::Float(b, _)) => {
                let distance = (a - b).abs();
                if distance.is_nan() { f64::INFINITY } else { distance }
            }
            (Self::Integer(a, _), Self::Integer(b, _)) => (a.abs_diff(*b)) as f64,
            _ => f64::INFINITY,
        }
    }

    fn size(&self) -> f64 {
        match self {
            Self::Float(value, _) => value.abs(),
            Self::Integer(..) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::reduce::reduce_slices;
    use hier_collectives::topology::RegionSpec;

    fn bench(dtype: Dtype, op: ReduceOp) -> Bench {
        let region = RegionSpec {
            name: "one".to_owned(),
            speeds: vec![1.0; 4],
            gateways: vec![("one-0".to_owned(), 4, None)],
        };
        let fabric = Fabric::new("b", 1500, vec![region], vec![]).expect("valid");
        Bench {
            pattern: Pattern::AllReduce,
            way: Way::Socket("/nowhere".into()),
            job: "b".to_owned(),
            token: Token([0; 32]),
            rank: RankId(0),
            fabric: Arc::new(fabric),
            elements: 5000,
            dtype,
            op,
            iterations: NonZeroU32::MIN,
        }
    }

    #[test]
    fn the_kernels_pass_and_a_changed_element_fails() {
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(dtype)) {
                let bench = bench(dtype, op);
                let inputs: Vec<Vec<u8>> = (0..4).map(|rank| bench.contribution(rank)).collect();
                let operands: Vec<(&[u8], f64)> =
                    (0..).zip(&inputs).map(|(rank, x)| (x.as_slice(), weight_of(rank))).collect();
                let mut result = vec![0; inputs[0].len()];
                reduce_slices(op, dtype, &mut result, &operands).expect("fits");
                let (error, tolerance) = bench.judge(&result);
                assert!(error <= tolerance, "{dtype} {op}: {error:e} > {tolerance:e}");
                let last = result.len() - 1;
                result[last] ^= 0x10;
                let (error, tolerance) = bench.judge(&result);
                assert!(error > tolerance, "{dtype} {op}: {error:e} <= {tolerance:e}");
            }
        }
    }
}
