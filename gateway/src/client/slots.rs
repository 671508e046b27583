//! Which parts of an arena are free: first fit, in whole cache lines.

use crate::memory::arena::ALIGN_BYTES;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(super) struct Slots {
    end: u64,
    /// Length of each slot in use, by offset.
    used: BTreeMap<u64, u64>,
}

impl Slots {
    /// An arena of `bytes`, all free.
    pub fn new(bytes: u64) -> Self {
        Self { end: bytes / ALIGN_BYTES * ALIGN_BYTES, used: BTreeMap::new() }
    }

    /// The offset of a new slot, or `None` when no gap is long enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        // A slot of nothing still needs an offset of its own.
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

    /// The slot at `offset` is free again.
    pub fn give(&mut self, offset: u64) {
        self.used.remove(&offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_never_overlap_and_all_room_comes_back(
            sizes in proptest::collection::vec((0u64..1000, any::<bool>()), 0..60),
        ) {
            let mut slots = Slots::new(8192);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, free_one) in sizes {
                if let Some(offset) = slots.take(bytes) {
                    prop_assert!(offset.is_multiple_of(ALIGN_BYTES) && offset + bytes <= 8192);
                    for (start, length) in &live {
                        prop_assert!(offset + bytes <= *start || start + length <= offset);
                    }
                    live.push((offset, bytes));
                }
                if free_one && !live.is_empty() {
                    slots.give(live.remove(0).0);
                }
            }
            for (offset, _) in live {
                slots.give(offset);
            }
            prop_assert_eq!(slots.take(8192), Some(0));
            prop_assert_eq!(slots.take(1), None);
        }
    }
}
