//! Descriptor of a collective: its operation, and the type and length of its buffer.

use crate::codec::{DecodeError, FieldReader, fnv1a, write_u32, write_u64};
use crate::ids::RankId;
use crate::operation::Operation;
use crate::size_class::SizeClass;
use crate::topology::Fabric;
use std::fmt;
use std::str::FromStr;

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary64.
    F64 = 2,
    /// IEEE 754 binary16, accumulated in binary32.
    F16 = 3,
    /// The type bfloat16, accumulated in binary32.
    Bf16 = 4,
    /// A 32-bit integer in two's complement.
    I32 = 5,
    /// A 64-bit integer in two's complement.
    I64 = 6,
    /// An unsigned byte.
    U8 = 7,
}

impl Dtype {
    /// All element types.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I32, Self::I64, Self::U8];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
    /// Whether the element type is a floating-point one.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::Bf16)
    }
    /// Returns the element type's name in flags, output and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }
    /// Returns the element type with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }
}

/// The operation that combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum = 1,
    /// Mean, weighted by each rank's weight; floats only.
    Avg = 2,
    /// Least; NaN wins, -0 is less than +0.
    Min = 3,
    /// Greatest; NaN wins, +0 is greater than -0.
    Max = 4,
    /// Product; integers wrap.
    Prod = 5,
}

impl ReduceOp {
    /// All reduce operations.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Avg, Self::Min, Self::Max, Self::Prod];

    /// Returns the reduce operation's name in flags, output and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
        }
    }
    /// Whether the reduce operation is defined on `dtype`: an average of integers is not.
    pub const fn accepts(self, dtype: Dtype) -> bool {
        dtype.is_float() || !matches!(self, Self::Avg)
    }
    /// Returns the reduce operation with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == code)
    }
}

/// Why a name is unknown; always an error of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not one of {known}")]
pub struct UnknownName {
    given: String,
    known: &'static str,
}

impl FromStr for Dtype {
    type Err = UnknownName;
    /// Parses an element type by its name, such as `bf16`.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "f32, f64, f16, bf16, i32, i64, u8";
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| UnknownName { given: text.to_owned(), known })
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;
    /// Parses a reduce operation by its name, such as `sum`.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "sum, avg, min, max, prod";
        let found = Self::ALL.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| UnknownName { given: text.to_owned(), known })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Communication pattern of a collective: the ranks that contribute and those that get the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Pattern {
    /// All ranks contribute and all get the result.
    #[default]
    AllReduce,
    /// All ranks contribute and one gets the result.
    Reduce {
        /// The rank that gets the result.
        to: RankId,
    },
    /// One rank contributes and all get its data.
    Broadcast {
        /// The rank that has the data.
        from: RankId,
    },
    /// No rank contributes data; no rank is done before all have begun.
    Barrier,
}

impl Pattern {
    /// Returns the pattern's name in flags, output and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::Reduce { .. } => "reduce",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
        }
    }
    /// Returns the pattern's wire code and its root rank; rank 0 for a pattern without a root.
    pub const fn wire_code(self) -> (u8, RankId) {
        match self {
            Self::AllReduce => (1, RankId(0)),
            Self::Reduce { to } => (2, to),
            Self::Broadcast { from } => (3, from),
            Self::Barrier => (4, RankId(0)),
        }
    }
    /// Returns the pattern with wire code `code` and root `rank`; `None` also for a root that the
    /// pattern does not need.
    pub fn from_code(code: u8, rank: RankId) -> Option<Self> {
        let found = match code {
            1 => Self::AllReduce,
            2 => Self::Reduce { to: rank },
            3 => Self::Broadcast { from: rank },
            4 => Self::Barrier,
            _ => return None,
        };
        (found.wire_code() == (code, rank)).then_some(found)
    }
    /// Returns the pattern as an operation over gateways; `None` when the fabric has no such root
    /// rank.
    pub fn over_gateways(self, fabric: &Fabric) -> Option<Operation> {
        Some(match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Reduce { to } => Operation::Reduce { to: fabric.gateway_of(to)? },
            Self::Broadcast { from } => Operation::Broadcast { from: fabric.gateway_of(from)? },
            Self::Barrier => Operation::Barrier,
        })
    }
    /// Returns the root rank, for a pattern that has one.
    pub const fn root(self) -> Option<RankId> {
        match self {
            Self::Reduce { to: rank } | Self::Broadcast { from: rank } => Some(rank),
            Self::AllReduce | Self::Barrier => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce | Self::Barrier => f.write_str(self.name()),
            Self::Reduce { to } => write!(f, "reduce to rank {to}"),
            Self::Broadcast { from } => write!(f, "broadcast from rank {from}"),
        }
    }
}

/// The properties of a collective on which all ranks must agree before any data move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// Number of elements of the buffer.
    pub elements: u64,
    /// The trainer's hash of the buffer's layout; 0 for none.
    pub layout_hash: u64,
    /// The communication pattern.
    pub pattern: Pattern,
}

/// The first field in which two descriptors differ, with both values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The field: `operation`, `op`, `dtype`, `length` or `layout`.
    pub field: &'static str,
    /// The value of the one descriptor.
    pub left: String,
    /// The value of the other descriptor.
    pub right: String,
}

impl Descriptor {
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
        let pairs = [
            ("operation", self.pattern.to_string(), other.pattern.to_string()),
            ("op", self.op.to_string(), other.op.to_string()),
            ("dtype", self.dtype.to_string(), other.dtype.to_string()),
            ("length", self.elements.to_string(), other.elements.to_string()),
            ("layout", format!("{:016x}", self.layout_hash), format!("{:016x}", other.layout_hash)),
        ];
        pairs
            .into_iter()
            .find(|(_, left, right)| left != right)
            .map(|(field, left, right)| Difference { field, left, right })
    }

    /// Returns the FNV-1a hash of the descriptor's wire form, which every segment header carries.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::with_capacity(23);
        self.write_to(&mut bytes);
        fnv1a(&bytes)
    }
}

impl Descriptor {
    /// Appends the descriptor to the message `out`: op, dtype, elements, layout hash, pattern,
    /// root.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend([self.op as u8, self.dtype as u8]);
        write_u64(out, self.elements);
        write_u64(out, self.layout_hash);
        let (code, RankId(root)) = self.pattern.wire_code();
        out.push(code);
        write_u32(out, root);
    }

    /// Reads a descriptor: op, dtype, elements, layout hash, pattern, root.
    ///
    /// # Errors
    /// [`DecodeError`] when a code is unknown or bytes are missing.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let op = ReduceOp::from_code(reader.read_u8()?).ok_or(DecodeError::Unknown("op"))?;
        let dtype = Dtype::from_code(reader.read_u8()?).ok_or(DecodeError::Unknown("dtype"))?;
        let (elements, layout_hash) = (reader.read_u64()?, reader.read_u64()?);
        let pattern = Pattern::from_code(reader.read_u8()?, RankId(reader.read_u32()?));
        let pattern = pattern.ok_or(DecodeError::Unknown("operation"))?;
        Ok(Self { op, dtype, elements, layout_hash, pattern })
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
            pattern: Pattern::AllReduce,
        };
        assert_eq!((of(3).bytes(), of(u64::MAX).bytes()), (24, u64::MAX));
    }
}
