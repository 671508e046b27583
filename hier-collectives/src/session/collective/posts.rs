//! The check of a post by itself.

use crate::descriptor::{Descriptor, Pattern};
use crate::post::Post;

/// 1e290. The largest weight of a rank: the sum over all ranks of a fabric stays finite.
/// Tested by `weights_whose_sum_is_not_finite_are_refused`.
const MAX_WEIGHT: f64 = 1e290;

/// 2^45. The most elements of a buffer.
const MAX_ELEMENTS: u64 = 1 << 45;

/// Whether a post makes sense in a fabric of so many ranks.
///
/// # Errors
/// The reason, in words, if it does not.
pub(in crate::session) fn check(post: &Post, world_size: u32) -> Result<(), String> {
    let Descriptor { op, dtype, elements, pattern, .. } = post.descriptor;
    if let Some(root) = pattern.root().filter(|root| root.0 >= world_size) {
        return Err(format!("{}: rank {root} is not one of {world_size}", pattern.name()));
    }
    if pattern == Pattern::Barrier && elements > 0 {
        return Err(format!("a barrier of {elements} elements; it carries none"));
    }
    if !op.accepts(dtype) {
        return Err(format!("{op} is not defined on {dtype}; use a floating-point dtype"));
    }
    if !(0.0..=MAX_WEIGHT).contains(&post.weight) {
        return Err(format!("weight {} is not a number from 0 to {MAX_WEIGHT:e}", post.weight));
    }
    if elements > MAX_ELEMENTS {
        return Err(format!("{elements} elements are more than 2^45"));
    }
    Ok(())
}
