//! The slots of one trainer's arena that posted collectives use.
//!
//! The trainer's task reserves slots when it reads a post, and frees them when it writes the event
//! that ends the gateway's use of them.

use super::protocol::POSTS_MAX;
use crate::memory::arena::{ALIGN_BYTES, Arena};
use crate::memory::mem_slice::MemSlice;
use crate::sync::lock;
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

/// Slots that the gateway may read and write now, by collective.
#[derive(Debug, Default)]
pub(super) struct SlotsInUse {
    posts: Mutex<BTreeMap<Sequence, PostSlots>>,
}

/// A rank in its job, from which the lengths of its slots follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankPlace {
    /// The rank.
    pub rank: RankId,
    /// The number of ranks.
    pub world_size: u32,
}

impl PostSlots {
    /// Finds the slots of a post in the arena of its rank. `offsets` are the offsets of
    /// contribution and result, in bytes. Counts that do not fit `place` have slots without bytes,
    /// since the session refuses them.
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
    /// Reserves the slots of a post until [`SlotsInUse::free_slots`].
    ///
    /// # Errors
    /// The text for the trainer: the collective was posted already, too many are under way, or a
    /// slot is still in use.
    pub fn reserve_slots(&self, sequence: Sequence, slots: &PostSlots) -> Result<(), String> {
        let mut posts = lock(&self.posts);
        if posts.contains_key(&sequence) {
            return Err(format!("collective {sequence} was posted twice"));
        }
        if posts.len() >= POSTS_MAX {
            return Err(format!("{POSTS_MAX} collectives are under way already"));
        }
        let in_use = posts.values().any(|other| {
            // Contributions are only read, so two collectives may share one.
            other.result.overlaps(&slots.contribution)
                || other.result.overlaps(&slots.result)
                || other.contribution.overlaps(&slots.result)
        });
        if in_use {
            return Err(format!("a slot of collective {sequence} is still in use by another"));
        }
        posts.insert(sequence, slots.clone());
        Ok(())
    }

    /// Frees the slots of a collective that the gateway no longer touches.
    pub fn free_slots(&self, sequence: Sequence) {
        lock(&self.posts).remove(&sequence);
    }
}
