//! The result that a rank must get, computed from what all ranks posted.

use crate::descriptor::*;
use crate::ids::*;
use std::collections::BTreeMap;

/// Each rank's post of a collective.
pub(in crate::session::tests) type Posts = BTreeMap<(RankId, u64), (Descriptor, Counts)>;

/// Returns the elements that a rank contributes to a collective.
pub(in crate::session::tests) fn contribution(
    rank: RankId,
    sequence: u64,
    elements: u64,
) -> Vec<i64> {
    // Numbers of sends are large, and differ by the tag.
    let factor = sequence % 1009 + 3;
    let value = |i| i64::try_from((i + 1) * (u64::from(rank.0) + 2) * factor);
    (0..elements).map(|i| value(i).expect("small")).collect()
}

/// Returns the result of a collective on one of `ranks` ranks, which has posted it.
pub(in crate::session::tests) fn expected_result(
    posts: &Posts,
    ranks: u32,
    rank: RankId,
    sequence: u64,
) -> Vec<i64> {
    let (descriptor, counts) = &posts[&(rank, sequence)];
    let slots = descriptor.slot_elements(counts, rank, ranks).expect("good counts");
    let at = |count: u64| usize::try_from(count).expect("small");
    // Contributions follow from the rank and their length, whether or not they were posted yet.
    let given = |of: RankId| {
        let length = descriptor.slot_elements(counts, of, ranks).expect("good counts").contribution;
        contribution(of, sequence, length)
    };
    let block_start = |before: RankId| -> usize {
        let length = |of: u32| match counts {
            Counts::ByRank(list) => list[of as usize],
            _ => descriptor.elements / u64::from(ranks),
        };
        at((0..before.0).map(length).sum())
    };
    let all = || (0..ranks).map(RankId);
    let sum_of = |start: usize, length: u64| -> Vec<i64> {
        let all_given: Vec<_> = all().map(given).collect();
        let sum = |index: usize| all_given.iter().map(|given| given[start + index]).sum();
        (0..at(length)).map(sum).collect()
    };
    let untouched = vec![-1; at(slots.result)];
    match descriptor.pattern {
        Pattern::AllReduce | Pattern::Barrier => sum_of(0, slots.result),
        Pattern::Reduce { to } if to == rank => sum_of(0, slots.result),
        Pattern::Reduce { .. } => untouched,
        Pattern::Broadcast { from } => given(from),
        Pattern::AllGather => all().flat_map(given).collect(),
        Pattern::Gather { to } if to == rank => all().flat_map(given).collect(),
        Pattern::Gather { .. } => untouched,
        Pattern::Send { from } if from == rank => untouched,
        Pattern::Send { from } => given(from),
        Pattern::ReduceScatter => sum_of(block_start(rank), slots.result),
        Pattern::Scatter { from } => {
            let start = block_start(rank);
            given(from)[start..start + at(slots.result)].to_vec()
        }
        Pattern::AllToAll => {
            all().flat_map(|from| sent_block(posts, ranks, [from, rank], sequence)).collect()
        }
    }
}

/// Returns the block of an all-to-all between the ends, of which the receiver has posted it.
fn sent_block(posts: &Posts, ranks: u32, ends: [RankId; 2], sequence: u64) -> Vec<i64> {
    let [from, to] = ends;
    let (descriptor, counts) = &posts[&(to, sequence)];
    let even = descriptor.elements / u64::from(ranks);
    let length = match counts {
        Counts::ByPair { from: received, .. } => received[from.0 as usize],
        _ => even,
    };
    if length == 0 {
        return vec![];
    }
    // The sender has posted, since its bytes are here.
    let sent = match posts.get(&(from, sequence)) {
        Some((_, Counts::ByPair { to: sent, .. })) => sent.to_vec(),
        _ => vec![even; ranks as usize],
    };
    let start: u64 = sent[..to.0 as usize].iter().sum();
    let whole = contribution(from, sequence, sent.iter().sum());
    whole[start as usize..(start + length) as usize].to_vec()
}
