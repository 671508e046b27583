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

mod element;
#[cfg(target_arch = "x86_64")]
mod f16x8;
mod fold;
mod number;

#[cfg(test)]
mod tests;

use crate::descriptor::{Dtype, ReduceOp};
use element::{Bf16, Element, F16, WideF32};
#[cfg(target_arch = "x86_64")]
use f16x8::F16x8;
use fold::{Job, Max, Min, Prod, Sum};
use number::{Number, Real};

/// One input of a reduction.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Its first byte, at any alignment.
    pub bytes: *const u8,
    /// Its weight in an average: finite, not negative. Other operations ignore it.
    pub weight: f64,
}

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

/// Combines `elements` elements of each operand into `out`, left to right.
///
/// `op` must accept `dtype` and there must be an operand: a caller who breaks this is stopped
/// in a debug build, and finds `out` unchanged in a release build. Weights come from peers, so
/// weights that have no mean (negative, not finite, all zero) give NaN, not a panic.
///
/// # Safety
/// Each operand must be readable and `out` writable for `elements * dtype.size()` bytes, and
/// `out` must overlap no operand. Other processes may write the operands meanwhile: the
/// result is then some number.
pub unsafe fn reduce(
    op: ReduceOp,
    dtype: Dtype,
    out: *mut u8,
    operands: &[Operand],
    elements: usize,
) {
    let job = Job { out, operands, start: 0, elements, wide: fold::wide_vectors() };
    // SAFETY: the caller's promise is the job's.
    unsafe { dispatch(op, dtype, job) }
}

/// [`reduce`] on slices, with every precondition checked. Each operand is its bytes and its
/// weight.
///
/// # Errors
/// [`ReduceError`] says which precondition does not hold; `out` is then untouched.
pub fn reduce_slices(
    op: ReduceOp,
    dtype: Dtype,
    out: &mut [u8],
    operands: &[(&[u8], f64)],
) -> Result<(), ReduceError> {
    let elements = check(op, dtype, out.len(), operands)?;
    let raw = |&(bytes, weight): &(&[u8], f64)| Operand { bytes: bytes.as_ptr(), weight };
    let raw: Vec<Operand> = operands.iter().map(raw).collect();
    // SAFETY: every length was checked, and `&mut` overlaps no `&`.
    unsafe { reduce(op, dtype, out.as_mut_ptr(), &raw, elements) };
    Ok(())
}

fn check(
    op: ReduceOp,
    dtype: Dtype,
    want: usize,
    operands: &[(&[u8], f64)],
) -> Result<usize, ReduceError> {
    if !op.accepts(dtype) {
        return Err(ReduceError::Unsupported { op, dtype });
    }
    if operands.is_empty() {
        return Err(ReduceError::NoOperand);
    }
    let size = dtype.size() as usize;
    if !want.is_multiple_of(size) {
        return Err(ReduceError::Ragged { bytes: want, dtype });
    }
    for (index, &(bytes, weight)) in operands.iter().enumerate() {
        let got = bytes.len();
        if got != want {
            return Err(ReduceError::Length { index, got, want });
        }
        if op == ReduceOp::Avg && !fold::is_weight(weight) {
            return Err(ReduceError::Weight { index, weight });
        }
    }
    Ok(want / size)
}

/// # Safety
/// As [`reduce`].
unsafe fn dispatch(op: ReduceOp, dtype: Dtype, job: Job<'_>) {
    // SAFETY: the caller's promise is passed on; each element type has the dtype's size.
    unsafe {
        match dtype {
            Dtype::F32 => float::<f32, WideF32>(op, job),
            Dtype::F64 => float::<f64, f64>(op, job),
            Dtype::F16 => half(op, job),
            Dtype::Bf16 => float::<Bf16, Bf16>(op, job),
            Dtype::I32 => number::<i32>(op, job),
            Dtype::I64 => number::<i64>(op, job),
            Dtype::U8 => number::<u8>(op, job),
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn half(op: ReduceOp, job: Job<'_>) {
    #[cfg(target_arch = "x86_64")]
    if job.wide {
        let whole = job.grouped(F16x8::LANES);
        let rest = job.starting_at(whole.elements * F16x8::LANES);
        // SAFETY: the two parts make up the job, and the converters are there.
        return unsafe {
            float::<F16x8, F16x8>(op, whole);
            float::<F16, F16>(op, rest);
        };
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { float::<F16, F16>(op, job) }
}

/// Averages through `M`, whose accumulator may be wider; all else through `E`.
///
/// # Safety
/// As [`reduce`].
unsafe fn float<E: Element<Acc: Number>, M: Element<Acc: Real>>(op: ReduceOp, job: Job<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Avg => job.run_mean::<M>(),
            _ => number::<E>(op, job),
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn number<E: Element<Acc: Number>>(op: ReduceOp, job: Job<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Sum => job.run::<E, _>(Sum),
            ReduceOp::Min => job.run::<E, _>(Min),
            ReduceOp::Max => job.run::<E, _>(Max),
            ReduceOp::Prod => job.run::<E, _>(Prod),
            ReduceOp::Avg => debug_assert!(false, "an average of integers is not defined"),
        }
    }
}
