//! Reduction of operands element by element: every dtype and every operation, in one loop.
//!
//! The gateway's compute threads call it on slots of the shared arenas. Other processes may write
//! the operands at the same time, and they have any alignment. So they are accessed through raw
//! pointers only, with one unaligned load or store for each element. A torn value can spoil the sum
//! of the process that tore it, and nothing else: no branch and no address depends on the data.
//!
//! Operands are combined strictly left to right, and no product is fused into a sum. Each output
//! element is therefore a pure function of its inputs: neither the division of a range nor the
//! instruction set changes a bit of it.
//!
//! * `f32` and `f64` sum, min, max and prod are computed in their own type. `f16` and `bf16` are
//!   widened to `f32`, combined over all operands and rounded once, to nearest even.
//! * Integers wrap. Band, bor and bxor combine their bits.
//! * A truth value is a byte, in which 0 is false and all else is true. Sum, max and bor give their
//!   logical or, prod, min and band their logical and, bxor their exclusive or, as in NumPy and
//!   PyTorch. Results are 0 or 1.
//! * Min and max follow IEEE 754-2019 `minimum` and `maximum`: NaN wins, -0 < +0.
//! * A float result that is NaN has one bit pattern: quiet, positive, no payload.
//! * Avg is `sum(c_i * x_i)` with `c_i = w_i / sum(w)` in `f64`. It is summed in `f64` for `f32`
//!   and `f64`, and in `f32` for 16-bit floats. An operand of weight 0 is not read. A mean of
//!   finite numbers is finite. Without any weight the mean is NaN.
//! * A single operand is copied; its NaNs become canonical, and truth values 0 or 1.
#![expect(
    unsafe_code,
    reason = "operands lie in memory shared with other processes: raw pointers, no references"
)]

mod accumulator;
mod dispatch;
mod element;
mod error;
#[cfg(target_arch = "x86_64")]
mod f32x8;
mod fold;
mod operand;

#[cfg(test)]
mod tests;

pub use dispatch::{dispatch_slices, reduce};
pub use error::ReduceError;
pub use operand::Operand;
