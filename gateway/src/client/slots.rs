//! Allocation of slots in an arena: first fit, in whole cache lines.

use crate::memory::arena::ALIGN_BYTES;
use std::collections::BTreeMap;

/// The slots in use of one arena.
#[derive(Debug)]
pub(super) struct SlotAllocator {
    /// Bytes of the arena, in whole cache lines.
    end: u64,
    /// Length in bytes of each slot in use, by its offset in bytes.
    used: BTreeMap<u64, u64>,
}

impl SlotAllocator {
    /// Makes an allocator for an arena of `bytes` bytes without slots.
    pub fn new(bytes: u64) -> Self {
        Self { end: bytes / ALIGN_BYTES * ALIGN_BYTES, used: BTreeMap::new() }
    }

    /// Reserves a slot of `bytes` bytes and returns its offset in bytes; `None` when no gap is long
    /// enough.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_never_overlap_and_all_can_be_freed(
            sizes in proptest::collection::vec((0u64..1000, any::<bool>()), 0..60),
        ) {
            let mut slots = SlotAllocator::new(8192);
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
