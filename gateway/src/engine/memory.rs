//! Names of buffers, and the memory they stand for.

use crate::local::arena::{Arena, MemSlice};
use hier_collectives::ids::{RankId, Sequence};
use hier_collectives::session::{Buffer, ScratchId, View};
use std::collections::BTreeMap;

/// Freed scratch kept for the next segment, so that its pages are not faulted in again.
const SPARE_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Memory {
    posted: BTreeMap<Buffer, MemSlice>,
    scratch: BTreeMap<ScratchId, MemSlice>,
    spare: Vec<MemSlice>,
    /// Bytes of scratch in use.
    bytes: u64,
}

impl Memory {
    /// Bytes of scratch in use: partials, and segments that landed before they were added.
    pub fn scratch_bytes(&self) -> u64 {
        self.bytes
    }

    /// A rank's slots for one collective.
    pub fn post(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        contribution: MemSlice,
        result: MemSlice,
    ) {
        self.posted.insert(Buffer::Contribution(sequence, rank), contribution);
        self.posted.insert(Buffer::Result(sequence, rank), result);
    }

    /// The collective is over for a rank.
    pub fn finish(&mut self, sequence: Sequence, rank: RankId) {
        self.posted.remove(&Buffer::Contribution(sequence, rank));
        self.posted.remove(&Buffer::Result(sequence, rank));
    }

    /// The memory of a view. Scratch comes into being here.
    pub fn view(&mut self, view: &View) -> MemSlice {
        let buffer = match view.buffer {
            Buffer::Scratch(scratch) => {
                let bytes = view.range.end;
                let (spare, used) = (&mut self.spare, &mut self.bytes);
                self.scratch.entry(scratch).or_insert_with(|| {
                    *used += bytes;
                    allocate(spare, bytes)
                })
            }
            posted => self.posted.get_mut(&posted).expect("the session names only posted buffers"),
        };
        buffer.slice(view.range.clone())
    }

    /// The scratch is free, once the last stream that still reads it is done.
    pub fn release(&mut self, scratch: ScratchId) {
        let Some(slice) = self.scratch.remove(&scratch) else { return };
        self.bytes -= slice.len();
        if self.spare.len() < SPARE_MAX && !slice.is_empty() {
            self.spare.push(slice);
        }
    }
}

fn allocate(spare: &mut Vec<MemSlice>, bytes: u64) -> MemSlice {
    let fits = |slice: &MemSlice| slice.len() == bytes && slice.is_sole_owner();
    if let Some(index) = spare.iter().position(fits) {
        return spare.swap_remove(index);
    }
    // The session's budgets bound what is asked for; a machine without that much memory
    // cannot serve its config.
    let arena = Arena::anonymous(bytes.max(1)).expect("memory within the configured budget");
    arena.whole().slice(0..bytes)
}
