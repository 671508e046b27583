//! Faults of a reduction.

use crate::descriptor::{Dtype, ReduceOp};

/// A reduction that is not defined. The caller's fault; the output is untouched.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReduceError {
    /// The operation has no meaning for the dtype.
    #[error("{op} is not defined on {dtype}: use a float dtype or another operation")]
    Unsupported {
        /// The operation asked for.
        op: ReduceOp,
        /// The dtype asked for.
        dtype: Dtype,
    },
    /// There is nothing to reduce from.
    #[error("a reduction needs at least one operand")]
    NoOperand,
    /// The output does not hold a whole number of elements.
    #[error("{bytes} bytes are not a whole number of {dtype} elements")]
    Ragged {
        /// Bytes in the output.
        bytes: usize,
        /// The dtype asked for.
        dtype: Dtype,
    },
    /// An operand is not as long as the output.
    #[error("operand {index} has {got} bytes, the output {want}")]
    Length {
        /// The operand's index.
        index: usize,
        /// Its bytes.
        got: usize,
        /// The output's bytes.
        want: usize,
    },
    /// A weight that no average can use.
    #[error("operand {index} has weight {weight}: it must be finite and not negative")]
    Weight {
        /// The operand's index.
        index: usize,
        /// Its weight.
        weight: f64,
    },
}
