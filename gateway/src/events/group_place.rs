//! The place of a group in its parent, by which its ranks find each other.

use hier_collectives::ids::Epoch;

/// 2^63: the bit that marks a caller's tag, in place of an epoch and a count.
const TAG: u64 = 1 << 63;
/// 32 bits: the count of makings in an epoch of the parent. The epoch is in the bits above it.
const COUNT_BITS: u32 = 32;

/// The place of a group in its parent: a caller's tag, or the epoch of the parent in which its ranks
/// made it, and how many groups they had made in that epoch by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPlace(pub u64);

impl GroupPlace {
    /// Makes the place of a group with a caller's tag.
    pub fn of_tag(tag: u32) -> Self {
        Self(TAG | u64::from(tag))
    }

    /// Makes the place of the group that is the `count`th of an epoch of its parent.
    pub fn of_count(epoch: Epoch, count: u32) -> Self {
        Self((epoch.0 << COUNT_BITS | u64::from(count)) & !TAG)
    }
}
