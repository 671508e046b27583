//! Checks of a post: by itself, and against the posts of its rank so far.

use super::collectives::Collectives;
use super::local_rank::LocalRank;
use crate::descriptor::{Descriptor, Pattern};
use crate::ids::{RankId, Sequence};
use crate::post::{Failure, FailureCode, Post};
use crate::session::action::PostTransport;
use crate::session::epoch::epoch_state::EpochState;
use crate::session::local_gateway::LocalGateway;
use units::ByteCount;

/// 1e290: the largest weight of a rank in an average; a post with a larger one is refused. The sum
/// of 2^32 such weights stays finite in `f64`.
/// Tested by `weights_whose_sum_is_not_finite_are_refused`.
const RANK_WEIGHT_MAX: f64 = 1e290;

/// 2^45 elements, at most 2^48 bytes: a post of a longer buffer is refused. Sums of the lengths of
/// many such buffers still fit 64 bits.
const BUFFER_ELEMENTS_MAX: u64 = 1 << 45;

/// 1,048,576 segments, 128 GiB at least in plans of this version: a longer send is not passed on by a
/// gateway without ranks, which keeps a state for each segment. The limit is chosen.
/// Tested by `a_gateway_without_ranks_passes_on_sends_alone`.
const RELAYED_SEGMENTS_MAX: u64 = 1 << 20;

/// Checks a rank's post by itself: its root, number, operation, counts, weight and length, and the
/// number of bytes that follow it.
///
/// # Errors
/// The failure of which the rank must be notified.
pub(in crate::session) fn check_post(
    rank: RankId,
    post: &Post,
    transport: PostTransport,
    local: &LocalGateway,
) -> Result<(), Failure> {
    let checked = check_post_fields(post, local.fabric().world_size());
    checked.and_then(|()| check_post_bytes(transport)).map_err(|text| {
        Failure::new(FailureCode::BadPost, format!("{}: {text}", local.rank_name(rank)))
    })
}

/// Checks that as many bytes follow a post as its contribution has. Others would never make it whole.
///
/// # Errors
/// The reason why the post is refused, in words.
fn check_post_bytes(transport: PostTransport) -> Result<(), String> {
    let Some(misfit) = transport.misfit else { return Ok(()) };
    Err(format!(
        "{} bytes announced behind a post whose contribution has {}: send all of it",
        misfit.announced, misfit.contribution
    ))
}

/// Checks a post's root, number, operation, counts, weight and length for a fabric of `world_size`
/// ranks. Sends, and no others, have numbers of sends, and are of two ranks.
///
/// # Errors
/// The reason why the post is refused, in words.
fn check_post_fields(post: &Post, world_size: u32) -> Result<(), String> {
    let Descriptor { op, dtype, elements, pattern, .. } = post.descriptor;
    if let Some(root) = pattern.root().filter(|root| root.0 >= world_size) {
        return Err(format!("{}: rank {root} is not one of {world_size}", pattern.name()));
    }
    if pattern == Pattern::Barrier && elements > 0 {
        return Err(format!("a barrier of {elements} elements; it carries none"));
    }
    let series = post.sequence.series();
    match pattern {
        Pattern::Send { .. } if world_size != 2 => {
            return Err(format!("a send in a group of {world_size} ranks; it is of two"));
        }
        Pattern::Send { from } if series.is_none_or(|series| series.from != from) => {
            return Err(format!("a send from rank {from} under the number of another collective"));
        }
        Pattern::Send { .. } => {}
        _ if series.is_some() => {
            return Err(format!("{}: it has the number of a send", pattern.name()));
        }
        _ => {}
    }
    post.descriptor.check_slot_elements(&post.counts, world_size)?;
    op.check(dtype).map_err(|undefined| undefined.to_string())?;
    if !(0.0..=RANK_WEIGHT_MAX).contains(&post.weight) {
        return Err(format!(
            "weight {} is not a number from 0 to {RANK_WEIGHT_MAX:e}",
            post.weight
        ));
    }
    if elements > BUFFER_ELEMENTS_MAX {
        return Err(format!("{elements} elements are more than 2^45"));
    }
    Ok(())
}

/// Checks a post elsewhere of a collective that this gateway, which has no ranks, is to pass on.
///
/// # Errors
/// The failure of which both ranks must be notified: it is no send, or too long.
pub(in crate::session) fn check_relayed_post(
    sequence: Sequence,
    descriptor: &Descriptor,
    epoch: &EpochState,
) -> Result<(), Failure> {
    let refuse = |text: String| {
        let name = epoch.local().own_name();
        let text = format!("collective {sequence}: gateway {name}, which passes it on, {text}");
        Err(Failure::new(FailureCode::BadPost, text))
    };
    let from = sequence.series().map(|series| series.from);
    if from.is_none_or(|from| descriptor.pattern != Pattern::Send { from }) {
        return refuse(format!("takes sends alone, and this is {}", descriptor.pattern.name()));
    }
    let segment = epoch.plan().map_or(0, |plan| plan.segment.get());
    let most = ByteCount::new(segment.saturating_mul(RELAYED_SEGMENTS_MAX));
    if descriptor.bytes() > most.get() {
        let bytes = ByteCount::new(descriptor.bytes());
        return refuse(format!("takes sends of at most {most}, and this has {bytes}: send parts"));
    }
    Ok(())
}

impl Collectives {
    /// Checks that a post is of the current epoch and of the sequence that the rank posts next.
    ///
    /// # Errors
    /// The failure of which the rank must be notified.
    pub fn check_post_order(
        &self,
        rank: &LocalRank,
        post: &Post,
        epoch: &EpochState,
    ) -> Result<(), Failure> {
        if !epoch.is_current(post.epoch) {
            return Err(epoch.late_post_failure(post.epoch));
        }
        let next = rank.next_like(post.sequence);
        if post.sequence != next {
            let text = format!("collective {} posted, {next} is next", post.sequence);
            return Err(Failure::new(FailureCode::BadPost, text));
        }
        Ok(())
    }
}
