//! Operations that combine the elements of several buffers.

use super::dtype::Dtype;
use super::unknown_name::UnknownName;
use std::fmt;
use std::str::FromStr;

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

impl FromStr for ReduceOp {
    type Err = UnknownName;
    /// Parses a reduce operation by its name, such as `sum`.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "sum, avg, min, max, prod";
        let found = Self::ALL.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| UnknownName { given: text.to_owned(), known })
    }
}

impl fmt::Display for ReduceOp {
    /// Prints the name, such as `sum`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
