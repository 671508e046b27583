//! Faults of a reduction.

use crate::descriptor::{Dtype, UndefinedReduction};

/// Why a reduction is refused; always an error of the caller. The output is unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReduceError {
    /// The operation is not defined on the dtype.
    #[error(transparent)]
    Undefined(#[from] UndefinedReduction),
    /// There is no operand.
    #[error("a reduction needs at least one operand")]
    NoOperand,
    /// The output does not hold a whole number of elements.
    #[error("{bytes} bytes are not a whole number of {dtype} elements")]
    Ragged {
        /// Length of the output in bytes.
        bytes: usize,
        /// The requested dtype.
        dtype: Dtype,
    },
    /// An operand and the output differ in length.
    #[error("operand {index} has {got} bytes, the output {want}")]
    Length {
        /// Index of the operand.
        index: usize,
        /// Length of the operand in bytes.
        got: usize,
        /// Length of the output in bytes.
        want: usize,
    },
    /// A weight is negative or not finite.
    #[error("operand {index} has weight {weight}: it must be finite and not negative")]
    Weight {
        /// Index of the operand.
        index: usize,
        /// Weight of the operand.
        weight: f64,
    },
}
