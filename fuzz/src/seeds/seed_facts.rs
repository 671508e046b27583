//! Facts about jobs, groups and collectives that many seeds share.

use hier_collectives::descriptor::{
    AgreedCounts, ArrayShape, Descriptor, Dtype, Pattern, ReduceOp,
};
use hier_collectives::ids::{GroupId, RankId, SegmentIndex, Sequence, TreeIndex};
use hier_collectives::wire::{GroupFacts, JobFacts, SegmentKey};

/// Descriptor of the collective in all seeds: an average of 25,000,000 bfloat16 elements.
pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    op: ReduceOp::Avg,
    dtype: Dtype::Bf16,
    elements: 25_000_000,
    layout_hash: 0x1234_5678_9abc_def0,
    shape: ArrayShape::FLAT,
    pattern: Pattern::AllReduce,
    counts: AgreedCounts::Even,
};

/// Key of the segment in all seeds: collective 41, tree 1, segment 7.
pub(super) const KEY: SegmentKey =
    SegmentKey { sequence: Sequence(41), tree: TreeIndex(1), segment: SegmentIndex(7) };

/// Returns the descriptor of seeds for a matrix of as many elements.
pub(super) fn matrix_descriptor() -> Descriptor {
    let shape = ArrayShape::new(&[5_000, 5_000]).expect("two dimensions");
    Descriptor { shape, ..DESCRIPTOR }
}

/// Returns the facts about the job of all seeds.
pub(super) fn job_facts() -> JobFacts {
    JobFacts { name: "train".to_owned(), weight: 3, token_digest: [0x5a; 16] }
}

/// Returns the facts about the group of all seeds.
pub(super) fn group_facts() -> GroupFacts {
    let job = GroupId::of_job("train");
    GroupFacts { job, parent: job, place: 1 << 63 | 7, ranks: vec![RankId(0), RankId(3)] }
}
