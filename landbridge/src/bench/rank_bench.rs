//! One rank of a benchmark: it posts collectives, times them and checks the last result.
//!
//! Every rank computes the contributions of all ranks, so each one checks by itself.

use super::reference_element::{
    ReferenceElement, append_reference_element, reference_element_epsilon, reference_element_weight,
};
use gateway::client::{
    AttachError, AttachOptions, Client, CollectiveSpec, GatewayAddress, PostError,
};
use gateway::host::{Host, RealHost};
use gateway::local::protocol::Token;
use hier_collectives::bound;
use hier_collectives::descriptor::{
    ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp, SlotElements,
};
use hier_collectives::ids::RankId;
use hier_collectives::post::Failure;
use hier_collectives::topology::Fabric;
use ring::digest;
use serde::Serialize;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use units::{ByteCount, Span};

/// The work of one rank of a benchmark.
#[derive(Debug)]
pub(crate) struct RankBench {
    /// Address at which the gateway accepts its trainers.
    pub gateway: GatewayAddress,
    /// User as whom the gateway runs, where it is not the rank's own.
    pub gateway_user: Option<u32>,
    /// Name of the job.
    pub job: String,
    /// Token of the job.
    pub token: Token,
    /// Number of the rank.
    pub rank: RankId,
    /// Fabric of the deployment.
    pub fabric: Arc<Fabric>,
    /// Number of elements of the buffer: of all blocks where ranks have blocks.
    pub elements: u64,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Pattern of the collective, with its root if it has one.
    pub pattern: Pattern,
    /// Reduction of the elements.
    pub op: ReduceOp,
    /// Number of iterations.
    pub iterations: NonZeroU32,
}

/// Measurements of one rank. The field names are the keys of the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Measurement {
    /// Number of the rank.
    pub rank: u32,
    /// Name of the collective.
    pub operation: &'static str,
    /// Name of the reduction.
    pub op: &'static str,
    /// Name of the element type.
    pub dtype: &'static str,
    /// Size of the buffer.
    pub bytes: u64,
    /// Time from the rank's post to its result, of each iteration. All ranks start an iteration
    /// within a one-way delay.
    pub seconds: Vec<f64>,
    /// Time of the rank's post, of each iteration, on the monotonic clock of its host.
    pub posted_ns: Vec<u64>,
    /// Time at which the rank had its result, of each iteration, on the same clock.
    pub ready_ns: Vec<u64>,
    /// Efficiency of each iteration: lower bound over time, 0 to 1.
    pub eta: Vec<f64>,
    /// SHA-256 of the bytes of the last result, in hexadecimal.
    pub digest: String,
    /// Largest difference of any element of the last result from the reference.
    pub max_abs_error: f64,
    /// Largest difference that passes.
    pub tolerance: f64,
}

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The rank could not attach.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The arena is full.
    #[error(transparent)]
    Full(#[from] gateway::client::ArenaFull),
    /// A collective could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A collective failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl RankBench {
    /// Attaches to the gateway, runs and times all iterations, and checks the last result. All
    /// ranks wait for each other before each iteration. Fails without a retry where no gateway
    /// answers.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(crate) async fn run(self) -> Result<Measurement, BenchError> {
        let bytes = self.elements * self.dtype.size();
        let arena = 2 * (bytes + 128) + 4096;
        let attach = AttachOptions {
            // Fail at once if no gateway runs.
            gateway_timeout: Span::ZERO,
            gateway_user: self.gateway_user,
            ..AttachOptions::new(&self.job, self.token, self.rank.0, arena)
        };
        let client = Client::attach(&self.gateway, attach).await?;
        let slots = self.slot_elements(self.rank);
        let mut tensor = client.allocate_slots(self.dtype, slots)?;
        tensor.write(&self.rank_contribution(self.rank));
        let clock = RealHost;
        let weight = reference_element_weight(self.rank.0);
        let (mut posted_at, mut ready_at, mut result) = (Vec::new(), Vec::new(), Vec::new());
        for left in (0..self.iterations.get()).rev() {
            synchronize_bench_ranks(&client).await?;
            posted_at.push(clock.now());
            let spec = CollectiveSpec { weight, ..CollectiveSpec::new(self.pattern, self.op) };
            let posted = client.post(tensor, spec).await;
            let mut operation = posted?;
            operation.ready().await?;
            ready_at.push(clock.now());
            // Copy the last result only: a copy of each would delay the next iteration.
            if left == 0 {
                result = operation.result();
            }
            tensor = operation.reclaim().await?;
        }
        if matches!(self.pattern, Pattern::Reduce { to } if to != self.rank) {
            result.clear();
        }
        let operation = self.pattern.over_gateways(&self.fabric);
        let operation = operation.expect("it was carried out");
        let seconds: Vec<f64> = posted_at
            .iter()
            .zip(&ready_at)
            .map(|(posted, ready)| ready.since(*posted).as_secs_f64())
            .collect();
        let bound = bound::operation_lower_bound(&self.fabric, operation, ByteCount::new(bytes));
        let bound = bound.as_secs_f64();
        let (max_abs_error, tolerance) = self.check_result(&result);
        Ok(Measurement {
            rank: self.rank.0,
            operation: self.pattern.name(),
            op: self.op.name(),
            dtype: self.dtype.name(),
            bytes,
            eta: seconds.iter().map(|seconds| bound / seconds).collect(),
            seconds,
            posted_ns: posted_at.iter().map(|at| at.ns()).collect(),
            ready_ns: ready_at.iter().map(|at| at.ns()).collect(),
            digest: bench_rank_sha256(&result),
            max_abs_error,
            tolerance,
        })
    }

    /// Returns the numbers of elements of a rank's slots. The elements of the buffer are a multiple of
    /// the number of ranks where the pattern has blocks; otherwise the slots are empty.
    fn slot_elements(&self, rank: RankId) -> SlotElements {
        let Self { op, dtype, elements, pattern, .. } = *self;
        let (shape, counts) = (ArrayShape::FLAT, Counts::Even.agreed());
        let descriptor = Descriptor { op, dtype, elements, layout_hash: 0, shape, pattern, counts };
        let ranks = self.fabric.world_size();
        descriptor.slot_elements(&Counts::Even, rank, ranks).unwrap_or_default()
    }

    /// Returns the bytes that `rank` contributes to the collective.
    fn rank_contribution(&self, rank: RankId) -> Vec<u8> {
        let elements = self.slot_elements(rank).contribution;
        let mut bytes = Vec::with_capacity((elements * self.dtype.size()) as usize);
        for index in 0..elements {
            append_reference_element(self.dtype, rank.0, index, &mut bytes);
        }
        bytes
    }

    /// Returns the ranks whose elements an element of this rank's result consists of, and the index
    /// of these in their contributions.
    fn sources_of_element(&self, index: u64) -> (Range<u32>, u64) {
        let ranks = self.fabric.world_size();
        let block = (self.elements / u64::from(ranks)).max(1);
        let own = u64::from(self.rank.0) * block;
        let of_one = |rank: u32, at: u64| (rank..rank + 1, at);
        let sender = u32::try_from(index / block).unwrap_or(u32::MAX - 1);
        match self.pattern {
            Pattern::Broadcast { from } => of_one(from.0, index),
            Pattern::Scatter { from } => of_one(from.0, own + index),
            Pattern::AllGather | Pattern::Gather { .. } => of_one(sender, index % block),
            Pattern::AllToAll => of_one(sender, own + index % block),
            Pattern::ReduceScatter => (0..ranks, own + index),
            _ => (0..ranks, index),
        }
    }

    /// Compares a result with the reference reduction. Returns the largest absolute error of an
    /// element, and the largest that passes: the largest exact value times the number of ranks
    /// times [`reference_element_epsilon`].
    fn check_result(&self, result: &[u8]) -> (f64, f64) {
        let size = self.dtype.size() as usize;
        let (mut worst, mut scale, mut operands) = (0.0f64, 0.0f64, 1);
        let mut element = Vec::with_capacity(8);
        for (index, bytes) in (0u64..).zip(result.chunks_exact(size)) {
            let (ranks, index) = self.sources_of_element(index);
            let total: f64 = ranks.clone().map(reference_element_weight).sum();
            operands = ranks.len();
            let mut exact: Option<ReferenceElement> = None;
            for rank in ranks {
                element.clear();
                append_reference_element(self.dtype, rank, index, &mut element);
                let next = ReferenceElement::decode(
                    self.dtype,
                    &element,
                    reference_element_weight(rank) / total,
                );
                exact = Some(
                    exact.map_or(next.start_reduction(self.op), |sum| sum.combine(self.op, next)),
                );
            }
            let Some(exact) = exact else { continue };
            let got = ReferenceElement::decode(self.dtype, bytes, 1.0);
            worst = worst.max(exact.abs_difference(&got));
            scale = scale.max(exact.magnitude());
        }
        (worst, scale * operands as f64 * reference_element_epsilon(self.dtype))
    }
}

/// Waits until all ranks of the job have called this function, by an all-reduce of one byte.
pub(crate) async fn synchronize_bench_ranks(client: &Client) -> Result<(), BenchError> {
    let tensor = client.allocate(Dtype::U8, 1)?;
    let mut operation = client.all_reduce(tensor, ReduceOp::Max).await?;
    operation.ready().await?;
    operation.reclaim().await?;
    Ok(())
}

/// Returns the SHA-256 of `bytes` as 64 hexadecimal digits.
pub(crate) fn bench_rank_sha256(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::reduce::dispatch_slices;
    use hier_collectives::topology::{FabricGatewaySpec, FabricRegionSpec};

    fn bench(dtype: Dtype, op: ReduceOp, pattern: Pattern) -> RankBench {
        let region = FabricRegionSpec {
            name: "one".to_owned(),
            speeds: vec![1.0; 4],
            gateways: vec![FabricGatewaySpec::new("one-0", 4, None)],
        };
        let fabric = Fabric::new("b", 1500, vec![region], vec![]).expect("valid");
        RankBench {
            pattern,
            gateway: GatewayAddress::Socket("/nowhere".into()),
            gateway_user: None,
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
    fn kernels_pass_and_a_changed_element_fails() {
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(dtype)) {
                let bench = bench(dtype, op, Pattern::AllReduce);
                let inputs: Vec<Vec<u8>> =
                    (0..4).map(|rank| bench.rank_contribution(RankId(rank))).collect();
                let operands: Vec<(&[u8], f64)> = (0..)
                    .zip(&inputs)
                    .map(|(rank, x)| (x.as_slice(), reference_element_weight(rank)))
                    .collect();
                let mut result = vec![0; inputs[0].len()];
                dispatch_slices(op, dtype, &mut result, &operands).expect("fits");
                let (error, tolerance) = bench.check_result(&result);
                assert!(error <= tolerance, "{dtype} {op}: {error:e} > {tolerance:e}");
                let last = result.len() - 1;
                result[last] ^= 0x10;
                let (error, tolerance) = bench.check_result(&result);
                assert!(error > tolerance, "{dtype} {op}: {error:e} <= {tolerance:e}");
            }
        }
    }

    /// Returns blocks of the contributions of ranks, one after the other.
    fn blocks(bench: &RankBench, blocks: &[(u32, usize)]) -> Vec<u8> {
        let bytes = (bench.elements / 4 * bench.dtype.size()) as usize;
        let block = |(rank, at): &(u32, usize)| {
            bench.rank_contribution(RankId(*rank))[at * bytes..(at + 1) * bytes].to_vec()
        };
        blocks.iter().flat_map(block).collect()
    }

    #[test]
    fn moved_blocks_pass_and_swapped_blocks_fail() {
        let from = RankId(2);
        let all = |block: usize| (0..4).map(|rank| (rank, block)).collect::<Vec<_>>();
        for (pattern, expected) in [
            (Pattern::AllGather, all(0)),
            (Pattern::Gather { to: RankId(1) }, all(0)),
            (Pattern::AllToAll, all(1)),
            (Pattern::Scatter { from }, vec![(2, 1)]),
            (Pattern::Broadcast { from }, (0..4).map(|block| (2, block)).collect()),
        ] {
            let bench = RankBench { rank: RankId(1), ..bench(Dtype::F32, ReduceOp::Sum, pattern) };
            let good = blocks(&bench, &expected);
            let elements = bench.slot_elements(RankId(1)).result;
            assert_eq!(good.len() as u64, elements * Dtype::F32.size(), "{pattern}");
            assert_eq!(bench.check_result(&good).0, 0.0, "{pattern}");
            let mut bad = good.clone();
            bad.rotate_left(4);
            let (error, tolerance) = bench.check_result(&bad);
            assert!(error > tolerance, "{pattern}: {error:e} <= {tolerance:e}");
        }
    }

    #[test]
    fn a_block_of_a_reduction_passes_at_its_own_rank() {
        let of = |rank| RankBench {
            rank: RankId(rank),
            ..bench(Dtype::I64, ReduceOp::Sum, Pattern::ReduceScatter)
        };
        let bench = of(3);
        let bytes = (bench.elements / 4 * 8) as usize;
        let inputs: Vec<Vec<u8>> =
            (0..4).map(|rank| bench.rank_contribution(RankId(rank))).collect();
        let operands: Vec<(&[u8], f64)> =
            inputs.iter().map(|input| (&input[3 * bytes..], 1.0)).collect();
        let mut result = vec![0; bytes];
        dispatch_slices(ReduceOp::Sum, Dtype::I64, &mut result, &operands).expect("fits");
        assert_eq!(bench.check_result(&result).0, 0.0);
        assert!(of(2).check_result(&result).0 > 0.0);
    }
}
