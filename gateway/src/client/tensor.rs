//! A tensor: two slots of the arena, freed when it is dropped.

use super::arena_buffer::ArenaBuffer;
use hier_collectives::descriptor::{Dtype, SlotElements};
/// A contribution slot and a result slot in the arena, freed when dropped.
#[derive(Debug)]
pub struct Tensor {
    pub(super) dtype: Dtype,
    /// Elements of each slot.
    pub(super) elements: SlotElements,
    /// The slot that the gateway reads.
    pub(super) contribution: ArenaBuffer,
    /// The slot that the gateway writes.
    pub(super) result: ArenaBuffer,
}

impl Tensor {
    /// Makes a tensor of two buffers of one arena. The collective that takes it sends from the one
    /// and writes the other, where they lie. Only operations on blocks take buffers of different
    /// lengths.
    ///
    /// # Panics
    /// A buffer holds no whole number of elements.
    pub fn from_buffers(dtype: Dtype, contribution: ArenaBuffer, result: ArenaBuffer) -> Self {
        let count = |buffer: &ArenaBuffer| {
            let bytes = buffer.memory().len();
            assert!(bytes.is_multiple_of(dtype.size()), "{bytes} bytes of {dtype}");
            bytes / dtype.size()
        };
        let elements = SlotElements { contribution: count(&contribution), result: count(&result) };
        Self { dtype, elements, contribution, result }
    }

    /// Returns the type of the tensor's elements.
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
        let memory = self.contribution.memory();
        assert_eq!(bytes.len() as u64, memory.len(), "bytes of one contribution");
        memory.copy_from_bytes(0, bytes);
    }

    /// Returns a copy of the bytes of the contribution slot.
    pub fn read(&self) -> Vec<u8> {
        self.contribution.memory().to_vec()
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
