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
/// `op` must accept `dtype`, and there must be an operand. Otherwise a debug build panics, and a
/// release build leaves `out` unchanged. Weights come from peers, so weights without a mean
/// (negative, not finite, all zero) give NaN and no panic.
///
/// # Safety
/// Each operand must be readable and `out` writable for `elements * dtype.size()` bytes, and
/// `out` must overlap no operand. Other processes may write the operands meanwhile; the result is
/// then some number.
pub unsafe fn reduce(
    op: ReduceOp,
    dtype: Dtype,
    out: *mut u8,
    operands: &[Operand],
    elements: usize,
) {
    let reduction = Reduction { out, operands, start: 0, elements, wide: fold::wide_vectors() };
    // SAFETY: the caller's promise is the reduction's.
    unsafe { dispatch(op, dtype, reduction) }
}

/// [`reduce`] on slices of bytes with their weights, with every precondition checked.
///
/// # Errors
/// [`ReduceError`] that names the violated precondition; `out` is then unchanged.
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

/// Checks all preconditions; returns the number of elements.
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

/// Chooses the element type of the dtype.
///
/// # Safety
/// The same as of [`reduce`].
pub(super) unsafe fn dispatch(op: ReduceOp, dtype: Dtype, reduction: Reduction<'_>) {
    // SAFETY: the caller's promise is passed on; each element type has the dtype's size.
    unsafe {
        match dtype {
            Dtype::F32 => float::<f32, WideF32>(op, reduction),
            Dtype::F64 => float::<f64, f64>(op, reduction),
            Dtype::F16 => half(op, reduction),
            Dtype::Bf16 => float::<Bf16, Bf16>(op, reduction),
            Dtype::I32 => number::<i32>(op, reduction),
            Dtype::I64 => number::<i64>(op, reduction),
            Dtype::U8 => number::<u8>(op, reduction),
        }
    }
}

/// Reduces binary16, through the vector converters where the machine has them.
///
/// # Safety
/// The same as of [`reduce`].
unsafe fn half(op: ReduceOp, reduction: Reduction<'_>) {
    #[cfg(target_arch = "x86_64")]
    if reduction.wide {
        let whole = reduction.grouped(F16x8::LANES);
        let rest = reduction.starting_at(whole.elements * F16x8::LANES);
        // SAFETY: the two parts make up the reduction, and the converters are there.
        return unsafe {
            float::<F16x8, F16x8>(op, whole);
            float::<F16, F16>(op, rest);
        };
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { float::<F16, F16>(op, reduction) }
}

/// Averages through `M`, whose accumulator may be wider, and all other operations through `E`.
///
/// # Safety
/// The same as of [`reduce`].
unsafe fn float<E: Element<Acc: Number>, M: Element<Acc: Real>>(
    op: ReduceOp,
    reduction: Reduction<'_>,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Avg => reduction.run_mean::<M>(),
            _ => number::<E>(op, reduction),
        }
    }
}

/// Chooses the combining operation.
///
/// # Safety
/// The same as of [`reduce`].
unsafe fn number<E: Element<Acc: Number>>(op: ReduceOp, reduction: Reduction<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Sum => reduction.run::<E, _>(Sum),
            ReduceOp::Min => reduction.run::<E, _>(Min),
            ReduceOp::Max => reduction.run::<E, _>(Max),
            ReduceOp::Prod => reduction.run::<E, _>(Prod),
            ReduceOp::Avg => debug_assert!(false, "an average of integers is not defined"),
        }
    }
}
