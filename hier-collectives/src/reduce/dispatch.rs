//! Chooses the loop for a dtype and an operation.

use super::element::{Bf16, Element, F16, WideF32};
use super::error::ReduceError;
#[cfg(target_arch = "x86_64")]
use super::f16x8::F16x8;
use super::fold::{self, Max, Min, Prod, Reduction, Sum};
use super::number::{Number, Real};
use super::operand::Operand;
use crate::descriptor::{Dtype, ReduceOp};

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
    let job = Reduction { out, operands, start: 0, elements, wide: fold::wide_vectors() };
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
pub(super) unsafe fn dispatch(op: ReduceOp, dtype: Dtype, job: Reduction<'_>) {
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
unsafe fn half(op: ReduceOp, job: Reduction<'_>) {
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
unsafe fn float<E: Element<Acc: Number>, M: Element<Acc: Real>>(op: ReduceOp, job: Reduction<'_>) {
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
unsafe fn number<E: Element<Acc: Number>>(op: ReduceOp, job: Reduction<'_>) {
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
