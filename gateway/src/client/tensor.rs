//! A tensor: two slots of the arena, freed when it is dropped.

use super::slots::SlotAllocator;
use crate::memory::mem_slice::MemSlice;
use crate::sync::lock;
use hier_collectives::descriptor::{Dtype, SlotElements};
use std::sync::{Arc, Mutex};

/// The arena has no room for a tensor. The caller's fault: attach with a larger arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the arena has no room for two slots of {wanted} bytes; attach with a larger one")]
pub struct ArenaFull {
    /// Bytes of the longer slot.
    pub wanted: u64,
}

/// A contribution slot and a result slot in the arena, freed when dropped.
#[derive(Debug)]
pub struct Tensor {
    pub(super) dtype: Dtype,
    /// Elements of each slot.
    pub(super) elements: SlotElements,
    pub(super) contribution: MemSlice,
    pub(super) result: MemSlice,
    /// Bytes from the start of the arena to each slot.
    pub(super) offsets: SlotOffsets,
    pub(super) slots: Arc<Mutex<SlotAllocator>>,
}

/// Offsets of a tensor's slots, in bytes from the start of the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotOffsets {
    /// The slot that the gateway reads.
    pub contribution: u64,
    /// The slot that the gateway writes.
    pub result: u64,
}

impl Tensor {
    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the number of elements of the contribution slot.
    pub fn elements(&self) -> u64 {
        self.elements.contribution
    }

    /// Returns the number of elements of the result slot.
    pub fn result_elements(&self) -> u64 {
        self.elements.result
    }

    /// Copies `bytes` into the contribution slot.
    ///
    /// # Panics
    /// `bytes` is not as long as the slot.
    pub fn write(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.contribution.len(), "bytes of one contribution");
        self.contribution.copy_from_bytes(0, bytes);
    }

    /// Copies the bytes of the contribution slot.
    pub fn read(&self) -> Vec<u8> {
        self.contribution.to_vec()
    }

    /// Copies `values` into the contribution slot.
    ///
    /// # Panics
    /// The tensor's dtype is not F32, or `values` is not as long as the tensor.
    pub fn write_f32(&mut self, values: &[f32]) {
        assert_eq!(self.dtype, Dtype::F32);
        self.write(bytemuck::cast_slice(values));
    }
}

impl Drop for Tensor {
    /// Frees the contribution slot and the result slot in the arena.
    fn drop(&mut self) {
        let mut slots = lock(&self.slots);
        slots.free(self.offsets.contribution);
        slots.free(self.offsets.result);
    }
}
