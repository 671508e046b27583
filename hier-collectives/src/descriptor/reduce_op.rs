//! Operations that combine the elements of several buffers.

use super::dtype::Dtype;
use super::unknown_name::UnknownName;
use std::fmt;
use std::str::FromStr;

/// The operation that combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum; integers wrap. The sum of truth values is true if one of them is.
    Sum = 1,
    /// Mean, weighted by each rank's weight; floats only.
    Avg = 2,
    /// Least; NaN wins, -0 is less than +0.
    Min = 3,
    /// Greatest; NaN wins, +0 is greater than -0.
    Max = 4,
    /// Product; integers wrap. The product of truth values is true if all of them are.
    Prod = 5,
    /// Bitwise and of integers, logical and of truth values.
    Band = 6,
    /// Bitwise or of integers, logical or of truth values.
    Bor = 7,
    /// Bitwise exclusive or of integers, logical exclusive or of truth values.
    Bxor = 8,
}

/// A reduce operation that is not defined on an element type; always an error of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{op} is not defined on {dtype}; use another operation, or {}", .op.operands())]
pub struct UndefinedReduction {
    op: ReduceOp,
    dtype: Dtype,
}

impl ReduceOp {
    /// All reduce operations.
    pub const ALL: [Self; 8] =
        [Self::Sum, Self::Avg, Self::Min, Self::Max, Self::Prod, Self::Band, Self::Bor, Self::Bxor];

    /// Returns the reduce operation's name in flags, output and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
            Self::Band => "band",
            Self::Bor => "bor",
            Self::Bxor => "bxor",
        }
    }
    /// Whether the reduce operation combines bits, so that it needs integers or truth values.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::Band | Self::Bor | Self::Bxor)
    }
    /// Whether the reduce operation is defined on `dtype`: averages are on floats alone, bitwise
    /// operations on all but floats, and all others on every type.
    pub const fn accepts(self, dtype: Dtype) -> bool {
        match self {
            Self::Avg => dtype.is_float(),
            _ => !(self.is_bitwise() && dtype.is_float()),
        }
    }
    /// Checks that the reduce operation is defined on `dtype`.
    ///
    /// # Errors
    /// [`UndefinedReduction`] with both names and the types that the operation needs.
    pub fn check(self, dtype: Dtype) -> Result<(), UndefinedReduction> {
        if self.accepts(dtype) { Ok(()) } else { Err(UndefinedReduction { op: self, dtype }) }
    }
    /// Returns the element types that the reduce operation needs, in words.
    const fn operands(self) -> &'static str {
        match self {
            Self::Avg => "a floating-point type",
            _ if self.is_bitwise() => "integers or bool",
            _ => "any type",
        }
    }
    /// Returns the reduce operation with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == code)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;
    /// Parses a reduce operation by its name, such as `sum`.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| UnknownName::new(text, &Self::ALL.map(Self::name)))
    }
}

impl fmt::Display for ReduceOp {
    /// Prints the name, such as `sum`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
