//! Names of buffers, and the memory they stand for.

use crate::memory::arena::{Arena, Mapped, MemSlice};
use hier_collectives::ids::{RankId, Sequence};
use hier_collectives::session::{Buffer, ScratchId, View};
use std::collections::{BTreeMap, VecDeque};

/// Freed scratch kept for the next segment, so that its pages are not faulted in again. Together
/// with what is in use it is never more than was in use at once: the session's budgets hold for all.
const SPARE_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct BufferTable {
    posted: BTreeMap<Buffer, MemSlice>,
    scratch: BTreeMap<ScratchId, MemSlice>,
    /// The longest kept first.
    spare: VecDeque<MemSlice>,
    /// Bytes of scratch in use.
    bytes: u64,
    /// The most that they ever were.
    bytes_max: u64,
    /// Where its mappings are counted, also those that QUIC still reads.
    mapped: Mapped,
}

impl BufferTable {
    /// None yet; its mappings are to be counted there.
    pub fn new(mapped: Mapped) -> Self {
        Self { mapped, ..Self::default() }
    }

    /// Bytes of scratch in use: partials, and segments that landed before they were added.
    pub fn scratch_bytes(&self) -> u64 {
        self.bytes
    }

    /// Those, and what is kept for the next ones.
    fn held_bytes(&self) -> u64 {
        self.bytes + self.spare.iter().map(MemSlice::len).sum::<u64>()
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
                if !self.scratch.contains_key(&scratch) {
                    let slice = self.allocate(view.range.end);
                    self.scratch.insert(scratch, slice);
                }
                self.scratch.get_mut(&scratch).expect("there by now")
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
            self.spare.push_back(slice);
        }
    }

    fn allocate(&mut self, bytes: u64) -> MemSlice {
        self.bytes += bytes;
        self.bytes_max = self.bytes_max.max(self.bytes);
        let fits = |slice: &MemSlice| slice.len() == bytes && slice.is_sole_owner();
        let at = self.spare.iter().position(fits);
        if let Some(slice) = at.and_then(|at| self.spare.remove(at)) {
            return slice;
        }
        while self.held_bytes() > self.bytes_max && self.spare.pop_front().is_some() {}
        // The session's budgets bound what is asked for; a machine without that much memory
        // cannot serve its config.
        let arena = Arena::counted(bytes.max(1), &self.mapped);
        let arena = arena.expect("memory within the configured budget");
        arena.whole().slice(0..bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(id: u64, bytes: u64) -> View {
        View { buffer: Buffer::Scratch(ScratchId(id)), range: 0..bytes }
    }

    #[test]
    fn what_is_kept_takes_no_room_beyond_what_was_in_use() {
        let mut memory = BufferTable::default();
        let mut id = 0;
        // Segments of one size, then of another: as when a job posts other buffers.
        for bytes in [1 << 20, 3 << 18, 1 << 19, 5 << 16, 1 << 20, 4096] {
            let count = (4 << 20) / bytes;
            let ids: Vec<u64> = (id..id + count).collect();
            for id in &ids {
                assert_eq!(memory.view(&view(*id, bytes)).len(), bytes);
                assert!(memory.held_bytes() <= 4 << 20, "{}", memory.held_bytes());
            }
            ids.iter().for_each(|id| memory.release(ScratchId(*id)));
            id += count;
        }
    }

    #[test]
    fn the_next_segment_of_a_size_gets_the_pages_of_the_last() {
        let mut memory = BufferTable::default();
        let first = memory.view(&view(1, 4096));
        first.copy_from_bytes(0, &[7; 8]);
        drop(first);
        memory.release(ScratchId(1));
        let mut bytes = [0; 8];
        memory.view(&view(2, 4096)).slice(0..8).copy_to(&mut bytes);
        assert_eq!(bytes, [7; 8]);
        assert_eq!(memory.held_bytes(), 4096);
    }
}
