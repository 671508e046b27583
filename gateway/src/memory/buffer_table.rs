//! The buffers of one job: maps the names that a session uses to memory.
//!
//! Only the engine's task uses it. Posted buffers are slices of trainers' arenas; scratch is memory
//! of the gateway, which is allocated at the first use of its name.

use crate::memory::arena::{Arena, ArenaGauges};
use crate::memory::mem_slice::MemSlice;
use hier_collectives::ids::{RankId, Sequence};
use hier_collectives::session::{Buffer, BufferView, ScratchId};
use std::collections::{BTreeMap, VecDeque};

/// 64 pieces of freed scratch memory, which held partials: the most that are kept for reuse, so
/// that the next segment causes no page faults. A further piece goes back to the system. Used and
/// kept scratch together stay within the most that was ever in use.
/// Tested by `kept_scratch_never_exceeds_the_most_used_at_once`.
const KEPT_PIECES_MAX: usize = 64;

/// The posted buffers and the scratch of one job.
#[derive(Debug, Default)]
pub(crate) struct BufferTable {
    posted: BTreeMap<Buffer, MemSlice>,
    scratch: BTreeMap<ScratchId, MemSlice>,
    /// Freed pieces for reuse, oldest first.
    kept: VecDeque<MemSlice>,
    /// Bytes of scratch in use.
    used_bytes: u64,
    /// Most bytes of scratch ever in use at once.
    used_bytes_max: u64,
    /// Counts the mappings, also those that QUIC still reads.
    mapped: ArenaGauges,
}

impl BufferTable {
    /// Makes a table without buffers, whose mappings are counted in `mapped`.
    pub fn new(mapped: ArenaGauges) -> Self {
        Self { mapped, ..Self::default() }
    }

    /// Returns the bytes of scratch in use: partials, and segments that wait to be reduced.
    pub fn scratch_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the bytes of scratch in use or kept for reuse.
    fn allocated_bytes(&self) -> u64 {
        self.used_bytes + self.kept.iter().map(MemSlice::len).sum::<u64>()
    }

    /// Adds the contribution slot and the result slot of a rank for one collective.
    pub fn add_slots(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        contribution: MemSlice,
        result: MemSlice,
    ) {
        self.posted.insert(Buffer::Contribution(sequence, rank), contribution);
        self.posted.insert(Buffer::Result(sequence, rank), result);
    }

    /// Removes the slots of a rank for one collective, which no longer uses them.
    pub fn remove_slots(&mut self, sequence: Sequence, rank: RankId) {
        self.posted.remove(&Buffer::Contribution(sequence, rank));
        self.posted.remove(&Buffer::Result(sequence, rank));
    }

    /// Returns the memory that a view of the session names: a part of a slot or of scratch. Scratch
    /// is allocated at the first use of its name.
    pub fn view_memory(&mut self, view: &BufferView) -> MemSlice {
        let buffer = match view.buffer {
            Buffer::Scratch(scratch) => {
                if !self.scratch.contains_key(&scratch) {
                    let slice = self.allocate_scratch(view.range.end);
                    self.scratch.insert(scratch, slice);
                }
                self.scratch.get_mut(&scratch).expect("inserted above")
            }
            posted => self.posted.get_mut(&posted).expect("the session names only posted buffers"),
        };
        buffer.slice(view.range.clone())
    }

    /// Frees a piece of scratch, which is kept unless [`KEPT_PIECES_MAX`] pieces are kept already.
    /// A kept piece is reused once the last stream that reads from it is done.
    pub fn release_scratch(&mut self, scratch: ScratchId) {
        let Some(slice) = self.scratch.remove(&scratch) else { return };
        self.used_bytes -= slice.len();
        if self.kept.len() < KEPT_PIECES_MAX && !slice.is_empty() {
            self.kept.push_back(slice);
        }
    }

    /// Returns `bytes` bytes of scratch: a kept piece of that length that nobody reads any more, or
    /// newly mapped memory. Before mapping, the oldest kept pieces go as long as used and kept
    /// scratch exceed the most ever used.
    fn allocate_scratch(&mut self, bytes: u64) -> MemSlice {
        self.used_bytes += bytes;
        self.used_bytes_max = self.used_bytes_max.max(self.used_bytes);
        let fits = |slice: &MemSlice| slice.len() == bytes && slice.is_sole_owner();
        let at = self.kept.iter().position(fits);
        if let Some(slice) = at.and_then(|at| self.kept.remove(at)) {
            return slice;
        }
        while self.allocated_bytes() > self.used_bytes_max && self.kept.pop_front().is_some() {}
        // The session's budgets bound the sum; a machine without that much memory cannot serve its
        // configuration.
        let arena = Arena::anonymous_counted(bytes.max(1), &self.mapped);
        let arena = arena.expect("memory within the configured budget");
        MemSlice::whole(&arena).slice(0..bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(id: u64, bytes: u64) -> BufferView {
        BufferView { buffer: Buffer::Scratch(ScratchId(id)), range: 0..bytes }
    }

    #[test]
    fn kept_scratch_never_exceeds_the_most_used_at_once() {
        let mut memory = BufferTable::default();
        let mut id = 0;
        // Segments of several sizes one after the other, as if a job posted other buffers.
        for bytes in [1 << 20, 3 << 18, 1 << 19, 5 << 16, 1 << 20, 4096] {
            let count = (4 << 20) / bytes;
            let ids: Vec<u64> = (id..id + count).collect();
            for id in &ids {
                assert_eq!(memory.view_memory(&view(*id, bytes)).len(), bytes);
                assert!(memory.allocated_bytes() <= 4 << 20, "{}", memory.allocated_bytes());
            }
            ids.iter().for_each(|id| memory.release_scratch(ScratchId(*id)));
            id += count;
        }
    }

    #[test]
    fn a_segment_reuses_the_pages_of_its_predecessor() {
        let mut memory = BufferTable::default();
        let first = memory.view_memory(&view(1, 4096));
        first.copy_from_bytes(0, &[7; 8]);
        drop(first);
        memory.release_scratch(ScratchId(1));
        let mut bytes = [0; 8];
        memory.view_memory(&view(2, 4096)).slice(0..8).copy_to(&mut bytes);
        assert_eq!(bytes, [7; 8]);
        assert_eq!(memory.allocated_bytes(), 4096);
    }
}
