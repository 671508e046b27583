//! Allocation of slots in an arena: first fit, in whole cache lines. [`ArenaBuffer`] owns a slot.

use crate::lock::lock_ignoring_poison;
use crate::memory::arena::{ALIGN_BYTES, Arena};
use crate::memory::mem_slice::MemSlice;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use units::ByteCount;

/// Memory of a client's arena. It is free again when the last clone and the last part are dropped.
#[derive(Debug, Clone)]
pub struct ArenaBuffer {
    memory: MemSlice,
    /// Bytes from the start of the arena to the buffer.
    offset: u64,
    /// The slot around the buffer; `None` for a buffer without bytes, which takes no room.
    _slot: Option<Arc<ArenaBufferSlot>>,
}

impl ArenaBuffer {
    /// Reserves `bytes` bytes; `None` when no gap of the arena is long enough.
    pub(super) fn reserve(
        arena: &Arc<Arena>,
        slots: &Arc<Mutex<ArenaBufferAllocator>>,
        bytes: u64,
    ) -> Option<Self> {
        let whole = MemSlice::whole(arena);
        if bytes == 0 {
            return Some(Self { memory: whole.slice(0..0), offset: 0, _slot: None });
        }
        let offset = lock_ignoring_poison(slots).allocate(bytes)?;
        let slot = ArenaBufferSlot { offset, slots: Arc::clone(slots) };
        let memory = whole.slice(offset..offset + bytes);
        Some(Self { memory, offset, _slot: Some(Arc::new(slot)) })
    }

    /// Returns the place of the buffer in the arena, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.memory.len()
    }

    /// Returns the part `range`, counted in bytes from the start of the buffer. A collective takes
    /// parts that begin at a multiple of [`ALIGN_BYTES`].
    ///
    /// # Panics
    /// The range reaches beyond the buffer.
    pub fn part(&self, range: Range<u64>) -> Self {
        let (offset, memory) = (self.offset + range.start, self.memory.slice(range));
        Self { memory, offset, _slot: self._slot.clone() }
    }

    /// Returns the address of the first byte in this process. The memory is mapped while the
    /// buffer lives; a gateway may read and write it as well.
    pub fn address(&self) -> *mut u8 {
        self.memory.start_pointer()
    }

    /// Returns the buffer's memory as a slice of the arena.
    pub(super) fn memory(&self) -> &MemSlice {
        &self.memory
    }
}

/// A slot that is freed when dropped.
#[derive(Debug)]
struct ArenaBufferSlot {
    offset: u64,
    slots: Arc<Mutex<ArenaBufferAllocator>>,
}

impl Drop for ArenaBufferSlot {
    /// Frees the slot in the arena.
    fn drop(&mut self) {
        lock_ignoring_poison(&self.slots).free(self.offset);
    }
}

/// The slots in use of one arena.
#[derive(Debug)]
pub(super) struct ArenaBufferAllocator {
    /// Bytes of the arena, in whole cache lines.
    end: u64,
    /// Length in bytes of each slot in use, by its offset in bytes.
    used: BTreeMap<u64, u64>,
}

impl ArenaBufferAllocator {
    /// Makes an allocator for an arena of `bytes` bytes without slots.
    pub fn new(bytes: u64) -> Self {
        Self { end: bytes / ALIGN_BYTES * ALIGN_BYTES, used: BTreeMap::new() }
    }

    /// Reserves a slot of `bytes` bytes, in whole cache lines, in the first gap that is long
    /// enough. Returns its offset in bytes; `None` when no gap is.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        // An empty slot still needs an offset of its own.
        let length = bytes.max(1).checked_next_multiple_of(ALIGN_BYTES)?;
        let mut start = 0;
        for (offset, used) in &self.used {
            if offset - start >= length {
                break;
            }
            start = offset + used;
        }
        if self.end.checked_sub(start)? < length {
            return None;
        }
        self.used.insert(start, length);
        Some(start)
    }

    /// Frees the slot at `offset` bytes from the start of the arena.
    pub fn free(&mut self, offset: u64) {
        self.used.remove(&offset);
    }
}

/// The arena has no room for a tensor. The caller's fault: attach with a larger arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the arena has no room for two slots of {}; attach with a larger one",
    ByteCount::new(*wanted).rounded()
)]
pub struct ArenaFull {
    /// Bytes of the longer slot.
    pub wanted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slot_stays_until_the_last_part_is_dropped() {
        let arena = Arena::anonymous(4096).expect("memory");
        let slots = Arc::new(Mutex::new(ArenaBufferAllocator::new(4096)));
        let reserve = |bytes| ArenaBuffer::reserve(&arena, &slots, bytes);
        let whole = reserve(4096).expect("room");
        let part = whole.part(64..100);
        assert_eq!((part.range(), part.memory().len()), (64..100, 36));
        assert_eq!(part.address(), whole.address().wrapping_add(64));
        drop(whole);
        assert!(reserve(1).is_none(), "the part holds the slot");
        assert_eq!(reserve(0).map(|empty| empty.range()), Some(0..0), "no bytes take no room");
        drop(part);
        assert!(reserve(4096).is_some());
    }

    proptest! {
        #[test]
        fn slots_never_overlap_and_all_can_be_freed(
            sizes in proptest::collection::vec((0u64..1000, any::<bool>()), 0..60),
        ) {
            let mut slots = ArenaBufferAllocator::new(8192);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, free_one) in sizes {
                if let Some(offset) = slots.allocate(bytes) {
                    prop_assert!(offset.is_multiple_of(ALIGN_BYTES) && offset + bytes <= 8192);
                    for (start, length) in &live {
                        prop_assert!(offset + bytes <= *start || start + length <= offset);
                    }
                    live.push((offset, bytes));
                }
                if free_one && !live.is_empty() {
                    slots.free(live.remove(0).0);
                }
            }
            for (offset, _) in live {
                slots.free(offset);
            }
            prop_assert_eq!(slots.allocate(8192), Some(0));
            prop_assert_eq!(slots.allocate(1), None);
        }
    }
}
