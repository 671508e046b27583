//! The slots of one trainer's arena that posted collectives use.
//!
//! The trainer's task reserves slots when it reads a post, and frees them when it writes the event
//! that ends the gateway's use of them.

use super::protocol::POSTS_MAX;
use crate::events::GroupNumber;
use crate::lock::lock_ignoring_poison;
use crate::memory::arena::{ALIGN_BYTES, Arena};
use crate::memory::mem_slice::MemSlice;
use hier_collectives::descriptor::SlotElements;
use hier_collectives::ids::{RankId, Sequence};
use hier_collectives::post::Post;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The two slots of one post.
#[derive(Debug, Clone)]
pub(super) struct PostSlots {
    /// The slot that the gateway reads.
    pub contribution: MemSlice,
    /// The slot that the gateway writes.
    pub result: MemSlice,
}

/// A collective of a group.
pub(super) type GroupCollective = (GroupNumber, Sequence);

/// Slots that the gateway may read and write now, by collective.
#[derive(Debug, Default)]
pub(super) struct SlotsInUse {
    posts: Mutex<BTreeMap<GroupCollective, SlotsOfPost>>,
}

/// The slots of one post while they are in use.
#[derive(Debug)]
struct SlotsOfPost {
    slots: PostSlots,
    /// Whether the bytes of the result are sent to the trainer.
    streams_result: bool,
}

/// A rank in its job or group, from which the lengths of its slots follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankPlace {
    /// The rank, by its number in the group.
    pub rank: RankId,
    /// The number of ranks of the group.
    pub world_size: u32,
}

impl PostSlots {
    /// Finds the slots of a post in the arena of its rank. `offsets` are the offsets of
    /// contribution and result, in bytes. Counts that do not fit the number of ranks in `place`
    /// get slots without bytes; the session refuses the post later.
    ///
    /// # Errors
    /// The text for the trainer: a slot is outside the arena or misaligned, or the two overlap.
    pub fn locate(
        arena: &Arc<Arena>,
        post: &Post,
        place: RankPlace,
        offsets: [u64; 2],
    ) -> Result<Self, String> {
        let RankPlace { rank, world_size } = place;
        let lengths = post.descriptor.slot_elements(&post.counts, rank, world_size);
        let SlotElements { contribution, result } = lengths.unwrap_or_default();
        let whole = MemSlice::whole(arena);
        let slot = |which: &str, offset: u64, elements: u64| {
            let bytes = elements.checked_mul(post.descriptor.dtype.size());
            let end = bytes.and_then(|bytes| offset.checked_add(bytes));
            let end = end.filter(|end| *end <= whole.len());
            let end = end.ok_or_else(|| {
                let length = whole.len();
                format!("the {which} slot at {offset} reaches beyond the arena of {length} bytes")
            })?;
            if offset.is_multiple_of(ALIGN_BYTES) {
                Ok(whole.slice(offset..end))
            } else {
                Err(format!("the {which} slot at {offset} is not at a multiple of {ALIGN_BYTES}"))
            }
        };
        let contribution = slot("contribution", offsets[0], contribution)?;
        let result = slot("result", offsets[1], result)?;
        if contribution.overlaps(&result) {
            return Err("contribution and result slot overlap".to_owned());
        }
        Ok(Self { contribution, result })
    }
}

impl SlotsInUse {
    /// Reserves the slots of a post until [`SlotsInUse::free_slots`]. `streams_result` says whether
    /// the bytes of the result are sent to the trainer. Contribution slots of several posts may
    /// overlap.
    ///
    /// # Errors
    /// The text for the trainer: the collective was posted already, too many are under way, or a
    /// slot is still in use.
    pub fn reserve_slots(
        &self,
        collective: GroupCollective,
        slots: &PostSlots,
        streams_result: bool,
    ) -> Result<(), String> {
        let (sequence, mut posts) = (collective.1, lock_ignoring_poison(&self.posts));
        if posts.contains_key(&collective) {
            return Err(format!("collective {sequence} was posted twice"));
        }
        if posts.len() >= POSTS_MAX {
            return Err(format!("{POSTS_MAX} collectives are under way already"));
        }
        let in_use = posts.values().map(|other| &other.slots).any(|other| {
            // Contributions are only read, so two collectives may share one.
            other.result.overlaps(&slots.contribution)
                || other.result.overlaps(&slots.result)
                || other.contribution.overlaps(&slots.result)
        });
        if in_use {
            return Err(format!("a slot of collective {sequence} is still in use by another"));
        }
        posts.insert(collective, SlotsOfPost { slots: slots.clone(), streams_result });
        Ok(())
    }

    /// Returns the result slot of a collective of which a part that ends at `end` is sent to the trainer.
    /// `None` where the trainer shares the memory or has no result, and for a part of a collective that has
    /// failed, also where a new one with a shorter result has its number.
    pub fn streamed_result(&self, collective: GroupCollective, end: u64) -> Option<MemSlice> {
        let posts = lock_ignoring_poison(&self.posts);
        let post = posts.get(&collective).filter(|post| post.streams_result)?;
        Some(post.slots.result.clone()).filter(|result| end <= result.len())
    }

    /// Returns whether the gateway still uses the slots of a collective.
    pub fn has_slots_of_collective(&self, collective: GroupCollective) -> bool {
        lock_ignoring_poison(&self.posts).contains_key(&collective)
    }

    /// Frees the slots of a collective that the gateway no longer touches.
    pub fn free_slots(&self, collective: GroupCollective) {
        lock_ignoring_poison(&self.posts).remove(&collective);
    }

    /// Returns whether slots of collectives of the trainer's group `number` are in use.
    pub fn has_slots_of(&self, number: GroupNumber) -> bool {
        let all = (number, Sequence(0))..=(number, Sequence(u64::MAX));
        lock_ignoring_poison(&self.posts).range(all).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_use_until_they_are_freed() {
        let arena = Arena::anonymous(4096).expect("a page");
        let (whole, in_use) = (MemSlice::whole(&arena), SlotsInUse::default());
        let slots = PostSlots { contribution: whole.slice(0..64), result: whole.slice(64..128) };
        in_use.reserve_slots((GroupNumber::JOB, Sequence(3)), &slots, true).expect("free");
        assert!(in_use.has_slots_of_collective((GroupNumber::JOB, Sequence(3))));
        // A contribution that still comes may lie in no result, and a result in none.
        for (contribution, result) in [(64..128, 128..192), (128..192, 0..64)] {
            let slots =
                PostSlots { contribution: whole.slice(contribution), result: whole.slice(result) };
            let why = in_use.reserve_slots((GroupNumber::JOB, Sequence(4)), &slots, true);
            assert!(why.expect_err("overlaps").contains("still in use"));
        }
        let collective = (GroupNumber::JOB, Sequence(3));
        assert_eq!(in_use.streamed_result(collective, 64).expect("streamed").len(), 64);
        in_use.free_slots(collective);
        assert!(!in_use.has_slots_of_collective(collective));
        assert!(in_use.streamed_result(collective, 64).is_none());
    }

    #[test]
    fn a_part_of_a_failed_result_fits_no_shorter_one() {
        let arena = Arena::anonymous(4096).expect("a page");
        let (whole, in_use) = (MemSlice::whole(&arena), SlotsInUse::default());
        let collective = (GroupNumber::JOB, Sequence(3));
        for end in [256, 128] {
            let slots =
                PostSlots { contribution: whole.slice(0..64), result: whole.slice(64..end) };
            in_use.reserve_slots(collective, &slots, true).expect("free");
            let is_part = in_use.streamed_result(collective, 192).is_some();
            assert_eq!(is_part, end == 256, "of the first one alone");
            in_use.free_slots(collective);
        }
    }
}
