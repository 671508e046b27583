//! The inputs of a reduction.

/// One input of a reduction.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Its first byte, at any alignment.
    pub bytes: *const u8,
    /// Its weight in an average: finite, not negative. Other operations ignore it.
    pub weight: f64,
}
