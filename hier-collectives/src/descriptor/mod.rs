//! Descriptor of a collective: its operation, and the type, length and shape of its buffer.

mod array_shape;
mod counts;
mod dtype;
mod pattern;
mod reduce_op;
mod slot_elements;
mod unknown_name;

pub use array_shape::{ArrayShape, DIMENSIONS_MAX};
pub use counts::{AgreedCounts, Counts, KnownCounts, read_counts, write_counts};
pub use dtype::Dtype;
pub use pattern::Pattern;
pub use reduce_op::{ReduceOp, UndefinedReduction};
pub use slot_elements::SlotElements;
pub use unknown_name::UnknownName;

use crate::codec::{DecodeError, FieldReader, fnv1a_hash, write_u32, write_u64};
use crate::ids::RankId;
use crate::size_class::SizeClass;

/// The properties of a collective on which all ranks must agree before any data move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// Number of elements of the buffer; of all blocks together where there are blocks, and 0 where
    /// each pair of ranks has its own count.
    pub elements: u64,
    /// The trainer's hash of the buffer's layout; 0 for none.
    pub layout_hash: u64,
    /// The shape of the array that the buffer holds.
    pub shape: ArrayShape,
    /// The communication pattern.
    pub pattern: Pattern,
    /// The kind of its counts, with a digest of those that all ranks share.
    pub counts: AgreedCounts,
}

/// The first field in which two descriptors differ, with both values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The field: `operation`, `op`, `dtype`, `shape`, `length`, `counts` or
    /// `layout`.
    pub field: &'static str,
    /// The value of the one descriptor.
    pub left: String,
    /// The value of the other descriptor.
    pub right: String,
}

impl Descriptor {
    /// Returns the descriptor of a sum of `bytes` elements of type `u8`, with even blocks if the
    /// pattern has blocks.
    pub const fn of_bytes(pattern: Pattern, bytes: u64) -> Self {
        let (op, dtype, shape) = (ReduceOp::Sum, Dtype::U8, ArrayShape::FLAT);
        let counts = AgreedCounts::Even;
        Self { op, dtype, elements: bytes, layout_hash: 0, shape, pattern, counts }
    }

    /// Returns the size class of the buffer.
    pub const fn size_class(&self) -> SizeClass {
        SizeClass::for_buffer(self.bytes())
    }

    /// Returns the length of the buffer in bytes; it saturates for a length that no rank could
    /// post.
    pub const fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.size())
    }

    /// Returns the collective's name in logs and metrics: the reduce operation of an all-reduce, or
    /// else the pattern.
    pub const fn name(&self) -> &'static str {
        match self.pattern {
            Pattern::AllReduce => self.op.name(),
            other => other.name(),
        }
    }

    /// Returns the first field in which this descriptor differs from `other`, if any.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        // Two flat arrays differ in their length, which says more than their shape.
        let [left_shape, right_shape] = match (self.shape, other.shape) {
            (ArrayShape::FLAT, ArrayShape::FLAT) => [String::new(), String::new()],
            _ => [self, other].map(|each| each.shape.to_text(each.elements)),
        };
        let pairs = [
            ("operation", self.pattern.to_string(), other.pattern.to_string()),
            ("op", self.op.to_string(), other.op.to_string()),
            ("dtype", self.dtype.to_string(), other.dtype.to_string()),
            ("shape", left_shape, right_shape),
            ("length", self.elements.to_string(), other.elements.to_string()),
            ("counts", self.counts.to_string(), other.counts.to_string()),
            ("layout", format!("{:016x}", self.layout_hash), format!("{:016x}", other.layout_hash)),
        ];
        pairs
            .into_iter()
            .find(|(_, left, right)| left != right)
            .map(|(field, left, right)| Difference { field, left, right })
    }

    /// Returns the FNV-1a hash of the descriptor's wire form, which every segment header carries.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::with_capacity(32);
        self.write_to(&mut bytes);
        fnv1a_hash(&bytes)
    }
}

impl Descriptor {
    /// Appends the descriptor to the message `out`: op, dtype, elements, layout hash, pattern,
    /// root, shape, counts.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        self.write_without_counts(out);
        self.counts.write_to(out);
    }

    /// Appends the descriptor without its counts to the message `out`, which has them elsewhere.
    pub fn write_without_counts(&self, out: &mut Vec<u8>) {
        out.extend([self.op as u8, self.dtype as u8]);
        write_u64(out, self.elements);
        write_u64(out, self.layout_hash);
        let (code, RankId(root)) = self.pattern.wire_code();
        out.push(code);
        write_u32(out, root);
        self.shape.write_to(out, self.elements);
    }

    /// Reads a descriptor: op, dtype, elements, layout hash, pattern, root, shape, counts.
    ///
    /// # Errors
    /// [`DecodeError`] when a code is unknown, the shape has another number of elements, or bytes
    /// are missing.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let descriptor = Self::read_without_counts(reader)?;
        Ok(Self { counts: AgreedCounts::read_from(reader)?, ..descriptor })
    }

    /// Reads a descriptor that was written without its counts; they are even then.
    ///
    /// # Errors
    /// The errors of [`Self::read_from`].
    pub fn read_without_counts(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let op = ReduceOp::from_code(reader.read_u8()?).ok_or(DecodeError::Unknown("op"))?;
        let dtype = Dtype::from_code(reader.read_u8()?).ok_or(DecodeError::Unknown("dtype"))?;
        let (elements, layout_hash) = (reader.read_u64()?, reader.read_u64()?);
        let pattern = Pattern::from_code(reader.read_u8()?, RankId(reader.read_u32()?));
        let pattern = pattern.ok_or(DecodeError::Unknown("operation"))?;
        let shape = ArrayShape::read_from(reader, elements)?;
        let counts = AgreedCounts::Even;
        Ok(Self { op, dtype, elements, layout_hash, shape, pattern, counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_any_memory_saturates() {
        let of = |elements| Descriptor {
            op: ReduceOp::Sum,
            dtype: Dtype::F64,
            elements,
            layout_hash: 0,
            shape: ArrayShape::FLAT,
            pattern: Pattern::AllReduce,
            counts: AgreedCounts::Even,
        };
        assert_eq!((of(3).bytes(), of(u64::MAX).bytes()), (24, u64::MAX));
    }

    #[test]
    fn unknown_types_and_reductions_are_refused() {
        let mut bytes = Vec::new();
        Descriptor::of_bytes(Pattern::AllReduce, 3).write_to(&mut bytes);
        for code in 0..=u8::MAX {
            let decoded = |at: usize| {
                let mut changed = bytes.clone();
                changed[at] = code;
                Descriptor::read_from(&mut FieldReader(&changed)).map(|found| found.bytes())
            };
            let (op, dtype) = (ReduceOp::from_code(code), Dtype::from_code(code));
            assert_eq!(decoded(0), op.map(|_| 3).ok_or(DecodeError::Unknown("op")));
            let bytes = dtype.map(|dtype| 3 * dtype.size());
            assert_eq!(decoded(1), bytes.ok_or(DecodeError::Unknown("dtype")));
        }
    }

    #[test]
    fn disagreements_name_both_shapes_or_lengths() {
        let of = |sizes: &[u64]| Descriptor {
            op: ReduceOp::Sum,
            dtype: Dtype::F32,
            elements: sizes.iter().product(),
            layout_hash: 0,
            shape: ArrayShape::new(sizes).expect("few dimensions"),
            pattern: Pattern::AllReduce,
            counts: AgreedCounts::Even,
        };
        let found = |left: &[u64], right: &[u64]| {
            of(left).difference(&of(right)).map(|d| (d.field, d.left, d.right))
        };
        let words =
            |field, left: &str, right: &str| Some((field, left.to_owned(), right.to_owned()));
        assert_eq!(found(&[2, 3], &[3, 2]), words("shape", "(2, 3)", "(3, 2)"));
        assert_eq!(found(&[2, 2], &[4]), words("shape", "(2, 2)", "(4,)"));
        assert_eq!(found(&[], &[1]), words("shape", "()", "(1,)"));
        assert_eq!(found(&[2, 3], &[3, 3]), words("shape", "(2, 3)", "(3, 3)"));
        assert_eq!(found(&[4], &[5]), words("length", "4", "5"));
        assert_eq!(found(&[2, 3], &[2, 3]), None);
        assert_ne!(of(&[2, 3]).digest(), of(&[3, 2]).digest());
    }
}
