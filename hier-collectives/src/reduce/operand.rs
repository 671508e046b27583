//! The inputs of a reduction.

/// One input of a reduction.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Address of the first byte, at any alignment.
    pub bytes: *const u8,
    /// Weight in an average, finite and not negative; other operations ignore it.
    pub weight: f64,
}
