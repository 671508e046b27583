//! Combining operands element by element: every dtype, every operation, one loop.
//!
//! The bytes may lie in memory that other processes write at the same time and at any
//! alignment, so they are touched through raw pointers only, an unaligned load or store per
//! element. A torn value can spoil the sum of the process that tore it, nothing else: no
//! branch and no address depends on what was read.
//!
//! Operands are taken strictly left to right and no product is fused into a sum, so each
//! output element is a pure function of its inputs: neither the cut of a range nor the
//! instructions in use change a bit of it.
//!
//! * `f32` and `f64` sum, min, max and prod are computed in their own type. `f16` and `bf16`
//!   are widened to `f32`, combined over all operands and rounded once, to nearest even.
//! * Integers wrap.
//! * Min and max follow IEEE 754-2019 `minimum` and `maximum`: NaN wins, -0 < +0.
//! * A float result that is NaN has one bit pattern: quiet, positive, no payload.
//! * Avg is `sum(c_i * x_i)` with `c_i = w_i / sum(w)` in `f64`, summed in `f64` for `f32` and
//!   `f64` and in `f32` for 16-bit floats. An operand of weight 0 is not looked at. A mean of
//!   finite numbers is finite. Without any weight the mean is NaN.
//! * One operand is copied, NaNs made canonical.
#![expect(
    unsafe_code,
    reason = "operands lie in memory shared with other processes: raw pointers, no references"
)]

mod dispatch;
mod element;
mod error;
#[cfg(target_arch = "x86_64")]
mod f16x8;
mod fold;
mod number;
mod operand;

#[cfg(test)]
mod tests;

pub use dispatch::{reduce, reduce_slices};
pub use error::ReduceError;
pub use operand::Operand;
