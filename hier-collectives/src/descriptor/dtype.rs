//! Types of the elements of a buffer.

use super::unknown_name::UnknownName;
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
    /// An unsigned byte. Elements of all other types are moved as several of these.
    U8 = 7,
    /// An 8-bit integer in two's complement.
    I8 = 8,
    /// A 16-bit integer in two's complement.
    I16 = 9,
    /// An unsigned 16-bit integer.
    U16 = 10,
    /// An unsigned 32-bit integer.
    U32 = 11,
    /// An unsigned 64-bit integer.
    U64 = 12,
    /// A truth value in a byte: 0 is false, all else is true, and results are 0 or 1.
    Bool = 13,
}

impl Dtype {
    /// All element types.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::Bf16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::Bool,
    ];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
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
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Bool => "bool",
        }
    }
    /// Returns the element type with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }
}

impl FromStr for Dtype {
    type Err = UnknownName;
    /// Parses an element type by its name, such as `bf16`.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| UnknownName::new(text, &Self::ALL.map(Self::name)))
    }
}

impl fmt::Display for Dtype {
    /// Prints the name, such as `bf16`, which parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
