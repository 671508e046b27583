//! A range of an arena: copies, reductions, and bytes without a copy.
//!
//! The engine and the lanes read and write [`MemSlice`]s from their threads. All access goes
//! through raw pointers. References are made only for the bytes that QUIC, TLS and the FEC coder
//! take, which copy each byte before they use it.

#![expect(unsafe_code, reason = "shared memory is touched by pointer")]

use super::arena::Arena;
use bytes::Bytes;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::mutant::{self, Mutant};
use hier_collectives::reduce;
use std::ops::Range;
use std::sync::Arc;

/// A range that lies inside an arena.
#[derive(Debug, Clone)]
pub struct MemSlice {
    arena: Arc<Arena>,
    range: Range<u64>,
}

/// An operand of a reduction, with its weight in an average.
#[derive(Debug, Clone, Copy)]
pub enum SliceOperand<'a> {
    /// Shared memory, as long as the destination.
    Memory(&'a MemSlice, f64),
    /// Bytes of a packet, as long as their part of the destination.
    Bytes(&'a [u8], f64),
}

impl MemSlice {
    /// Returns the whole of `arena` as a slice.
    pub fn whole(arena: &Arc<Arena>) -> Self {
        Self { arena: Arc::clone(arena), range: 0..arena.mapped_bytes() }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part `range`, counted from the start of this slice.
    ///
    /// # Panics
    /// Panics if the range reaches beyond the slice, which is a bug: offsets of trainers and peers
    /// are checked where they arrive.
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let start = self.range.start;
        Self { arena: Arc::clone(&self.arena), range: start + range.start..start + range.end }
    }

    /// Returns whether two slices share a byte of memory.
    pub fn overlaps(&self, other: &Self) -> bool {
        let start = self.range.start.max(other.range.start);
        let end = self.range.end.min(other.range.end);
        Arc::ptr_eq(&self.arena, &other.arena) && start < end
    }

    /// Returns whether no other slice of the same arena is alive.
    pub fn is_sole_owner(&self) -> bool {
        Arc::strong_count(&self.arena) == 1
    }

    /// Writes `bytes` at `offset` bytes from the start of the slice.
    ///
    /// # Panics
    /// Panics if the bytes reach beyond the slice.
    pub fn copy_from_bytes(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len()), "{offset} and {} more", bytes.len());
        let to = self.start_pointer().wrapping_add(offset as usize);
        // SAFETY: `to` and what follows lie in the mapping; `bytes` is a slice of this process that
        // the mapping is not part of, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the whole slice into `bytes`.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len() as u64, self.len());
        // SAFETY: as in `copy_from_bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start_pointer(), bytes.as_mut_ptr(), bytes.len())
        };
    }

    /// Appends the whole slice to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let length = self.usize_len();
        bytes.reserve(length);
        let room = bytes.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `room` has at least `length` bytes, which are the vector's alone; the slice's lie
        // in its mapping. They are written before the vector has them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start_pointer(), room, length);
            bytes.set_len(bytes.len() + length);
        }
    }

    /// Copies the whole slice into a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Copies the whole slice to another one, which may overlap.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy_to_slice(&self, to: &Self) {
        assert_eq!(to.len(), self.len());
        // SAFETY: both lie in their mappings; `copy` allows overlap.
        unsafe { std::ptr::copy(self.start_pointer(), to.start_pointer(), self.usize_len()) };
    }

    /// Combines `inputs`, each with its weight in an average, in order into this slice; see
    /// [`reduce::reduce`].
    ///
    /// # Panics
    /// Panics if the lengths differ or an input overlaps, which is a bug.
    pub fn reduce(&self, op: ReduceOp, dtype: Dtype, inputs: &[(Self, f64)]) {
        let operand = |(slice, weight): &(Self, f64)| {
            self.checked_operand(&(0..self.len()), SliceOperand::Memory(slice, *weight))
        };
        let operands: Vec<reduce::Operand> = inputs.iter().map(operand).collect();
        let elements = self.usize_len() / dtype.size() as usize;
        // SAFETY: lengths and overlap were checked above, and the slices keep their mappings
        // alive.
        unsafe { reduce::reduce(op, dtype, self.start_pointer(), &operands, elements) };
    }

    /// Combines two operands into the part `range`, for the payload of one packet. Allocates
    /// nothing, since there are many packets.
    ///
    /// # Panics
    /// Panics if the lengths differ or an operand overlaps, which is a bug.
    pub fn reduce_part(
        &self,
        range: Range<u64>,
        op: ReduceOp,
        dtype: Dtype,
        operands: [SliceOperand<'_>; 2],
    ) {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let operands = operands.map(|operand| self.checked_operand(&range, operand));
        let elements = (range.end - range.start) as usize / dtype.size() as usize;
        let out = self.start_pointer().wrapping_add(range.start as usize);
        // SAFETY: lengths and overlap were checked above, and the slices keep their mappings
        // alive.
        unsafe { reduce::reduce(op, dtype, out, &operands, elements) };
    }

    /// Checks length and overlap of an operand of a reduction into `range`; returns its address.
    fn checked_operand(&self, range: &Range<u64>, operand: SliceOperand<'_>) -> reduce::Operand {
        let (bytes, weight) = match operand {
            SliceOperand::Memory(slice, weight) => {
                assert_eq!(slice.len(), self.len());
                assert!(!slice.overlaps(self) || mutant::is_mutant_active(Mutant::Accumulate));
                (slice.start_pointer().wrapping_add(range.start as usize).cast_const(), weight)
            }
            SliceOperand::Bytes(bytes, weight) => {
                assert_eq!(bytes.len() as u64, range.end - range.start);
                (bytes.as_ptr(), weight)
            }
        };
        reduce::Operand { bytes, weight }
    }

    /// Returns the bytes of the slice without a copy, for QUIC, TLS and the FEC coder. The mapping stays
    /// until the bytes are dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(MemSliceBytes(self))
    }

    /// Returns the length in bytes as a `usize`.
    fn usize_len(&self) -> usize {
        // The cast loses nothing: a mapping has a `usize` length.
        self.len() as usize
    }

    /// Returns the address of the first byte in this process.
    pub fn start_pointer(&self) -> *mut u8 {
        self.arena.start_pointer().wrapping_add(self.range.start as usize)
    }
}

/// A slice that the owner of [`Bytes`] keeps mapped.
struct MemSliceBytes(MemSlice);

impl AsRef<[u8]> for MemSliceBytes {
    /// Returns the bytes in place, without a copy.
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is mapped for as long as `self` lives. A trainer that writes it during
        // sending spoils its own collective only: each byte is copied into a packet or a shard, and
        // never interpreted in place.
        unsafe { std::slice::from_raw_parts(self.0.start_pointer(), self.0.usize_len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "of 10")]
    fn a_part_beyond_its_slice_panics() {
        let arena = Arena::anonymous(4096).expect("memory");
        let _ = MemSlice::whole(&arena).slice(0..10).slice(5..11);
    }
}
