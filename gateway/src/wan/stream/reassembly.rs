//! Reassembly of a segment: its bytes are written or reduced as they arrive, in any order.
//!
//! QUIC cuts a stream at any byte, so elements arrive in pieces. Whole elements are reduced straight
//! from the datagram; the pieces of a split element wait here for each other. The receiver task of a
//! stream owns it (`wan/stream/segment_receiver.rs`).

use crate::events::SegmentPlacement;
use crate::memory::mem_slice::{MemSlice, SliceOperand};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use std::collections::BTreeMap;

/// The destination of one segment's payload.
#[derive(Debug)]
pub enum Reassembly {
    /// Memory that the payload is copied to.
    Land(MemSlice),
    /// A reduction with an operand that is here.
    Combine(ReassemblyReducer),
}

/// A reduction of arriving elements with an operand that is here; see
/// [`SegmentPlacement::Combine`].
#[derive(Debug)]
pub struct ReassemblyReducer {
    op: ReduceOp,
    dtype: Dtype,
    local: (MemSlice, f64),
    net_weight: f64,
    net_first: bool,
    out: MemSlice,
    /// The incomplete element that got bytes last, with its index: the next packet mostly has the
    /// rest of it.
    last_split: Option<(u64, SplitElement)>,
    /// The other incomplete elements by their index. A peer may split every one.
    split: BTreeMap<u64, SplitElement>,
}

/// An element whose bytes come in several pieces.
#[derive(Debug, Default)]
struct SplitElement {
    bytes: [u8; 8],
    /// One bit for each byte that has arrived.
    arrived: u8,
}

impl Reassembly {
    /// Creates the reassembly of a segment at the destination that the engine chose; `None` if it
    /// discards the payload.
    pub fn new(placement: SegmentPlacement) -> Option<Self> {
        match placement {
            SegmentPlacement::Land { into, .. } => Some(Self::Land(into)),
            SegmentPlacement::Combine { op, dtype, local, net_weight, net_first, out, .. } => {
                Some(Self::Combine(ReassemblyReducer {
                    op,
                    dtype,
                    local,
                    net_weight,
                    net_first,
                    out,
                    last_split: None,
                    split: BTreeMap::new(),
                }))
            }
            SegmentPlacement::Discard(_) => None,
        }
    }

    /// Writes or reduces `bytes` at `offset` of the segment's payload. Returns false if they reach
    /// beyond its end.
    pub fn place_bytes(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let length = match self {
            Self::Land(into) => into.len(),
            Self::Combine(reducer) => reducer.out.len(),
        };
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > length) {
            return false;
        }
        match self {
            Self::Land(into) => into.copy_from_bytes(offset, bytes),
            Self::Combine(reducer) => reducer.reduce_bytes(offset, bytes),
        }
        true
    }
}

impl ReassemblyReducer {
    /// Reduces the whole elements of `bytes` at `offset`, and keeps the parts of split elements.
    fn reduce_bytes(&mut self, offset: u64, bytes: &[u8]) {
        let size = self.dtype.size();
        let first_whole = offset.next_multiple_of(size);
        let head = usize::try_from(first_whole - offset).unwrap_or(0).min(bytes.len());
        let (head, rest) = bytes.split_at(head);
        let tail = rest.len() - rest.len() % size as usize;
        let (whole, tail) = rest.split_at(tail);
        self.keep_element_part(offset, head);
        self.reduce_elements(first_whole, whole);
        self.keep_element_part(first_whole + whole.len() as u64, tail);
    }

    /// Keeps a part of one element, and reduces the element when it is complete.
    fn keep_element_part(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let size = self.dtype.size();
        let (index, within) = (offset / size, (offset % size) as usize);
        let mut split = self.take_split_element(index);
        for (position, byte) in (within..).zip(bytes) {
            split.bytes[position] = *byte;
            split.arrived |= 1 << position;
        }
        if u64::from(split.arrived.count_ones()) == size {
            self.reduce_elements(index * size, &split.bytes[..size as usize]);
        } else if let Some((before, other)) = self.last_split.replace((index, split)) {
            self.split.insert(before, other);
        }
    }

    /// Takes the bytes of an incomplete element that have arrived so far.
    fn take_split_element(&mut self, index: u64) -> SplitElement {
        match self.last_split.take_if(|(last, _)| *last == index) {
            Some((_, split)) => split,
            None if self.split.is_empty() => SplitElement::default(),
            None => self.split.remove(&index).unwrap_or_default(),
        }
    }

    /// Reduces the whole elements `net`, which came at `offset` bytes of the payload, with this
    /// gateway's own operand, and writes the result.
    fn reduce_elements(&self, offset: u64, net: &[u8]) {
        if net.is_empty() {
            return;
        }
        let range = offset..offset + net.len() as u64;
        let local = SliceOperand::Memory(&self.local.0, self.local.1);
        let net = SliceOperand::Bytes(net, self.net_weight);
        let operands = if self.net_first { [net, local] } else { [local, net] };
        self.out.reduce_part(range, self.op, self.dtype, operands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use proptest::prelude::*;
    use tokio_util::sync::CancellationToken;

    fn memory(bytes: &[u8]) -> MemSlice {
        let arena = Arena::anonymous(bytes.len().max(1) as u64).expect("memory");
        let memory = MemSlice::whole(&arena);
        let memory = memory.slice(0..bytes.len() as u64);
        memory.copy_from_bytes(0, bytes);
        memory
    }

    fn read(memory: &MemSlice) -> Vec<u8> {
        let mut bytes = vec![0; memory.len() as usize];
        memory.copy_to(&mut bytes);
        bytes
    }

    proptest! {
        /// The result is that of one reduction, wherever the stream is cut.
        #[test]
        fn any_pieces_in_any_order_give_the_same_bytes(
            elements in 0usize..60,
            dtype in 0..Dtype::ALL.len(),
            net_first: bool,
            seed: u64,
            cuts in proptest::collection::vec(0usize..500, 0..12),
        ) {
            let dtype = Dtype::ALL[dtype];
            let length = elements * dtype.size() as usize;
            let byte = |i: usize, salt: usize| (i * 31 + salt * 17 + seed as usize % 251) as u8;
            let local: Vec<u8> = (0..length).map(|i| byte(i, 1)).collect();
            let net: Vec<u8> = (0..length).map(|i| byte(i, 2)).collect();
            let (ours, out) = (memory(&local), memory(&vec![0; length]));
            let whole = memory(&vec![0; length]);
            let (a, b) = ((ours.clone(), 1.0), (memory(&net), 1.0));
            let pair = if net_first { [b, a] } else { [a, b] };
            whole.reduce(ReduceOp::Sum, dtype, &pair);
            let mut reassembly = Reassembly::new(SegmentPlacement::Combine {
                lease: hier_collectives::session::LeaseId(1),
                op: ReduceOp::Sum,
                dtype,
                local: (ours, 1.0),
                net_weight: 1.0,
                net_first,
                out: out.clone(),
                cancel: CancellationToken::new(),
            }).expect("wants bytes");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(length)).collect();
            cuts.extend([0, length]);
            cuts.sort_unstable();
            let mut pieces: Vec<(usize, usize)> =
                cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
            let rotation = seed as usize % pieces.len();
            pieces.rotate_left(rotation);
            for (start, end) in pieces {
                prop_assert!(reassembly.place_bytes(start as u64, &net[start..end]));
            }
            prop_assert_eq!(read(&out), read(&whole));
            prop_assert!(!reassembly.place_bytes(length as u64, &[0]));
        }
    }

    /// A peer may split every element, and deliver the last parts of all of them last.
    #[test]
    fn many_split_elements_are_joined() {
        let elements = 100_000;
        let net: Vec<u8> = (0..elements).flat_map(|i: u32| (i as f32).to_le_bytes()).collect();
        let (ours, out) = (memory(&vec![0; net.len()]), memory(&vec![0; net.len()]));
        let mut reassembly = Reassembly::new(SegmentPlacement::Combine {
            lease: hier_collectives::session::LeaseId(1),
            op: ReduceOp::Sum,
            dtype: Dtype::F32,
            local: (ours, 1.0),
            net_weight: 1.0,
            net_first: false,
            out: out.clone(),
            cancel: CancellationToken::new(),
        })
        .expect("wants bytes");
        for part in [0..1, 1..4] {
            for at in (0..net.len()).step_by(4) {
                let range = at + part.start..at + part.end;
                assert!(reassembly.place_bytes(range.start as u64, &net[range]));
            }
        }
        assert_eq!(read(&out), net);
    }
}
