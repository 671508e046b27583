//! Chooses the loop of a reduction by dtype and operation.

use super::accumulator::{Accumulator, MeanAccumulator};
use super::element::{Bf16, Element, F16, WideF32};
use super::error::ReduceError;
#[cfg(target_arch = "x86_64")]
use super::f16x8::F16x8;
use super::fold::{self, Max, Min, Prod, Reduction, Sum};
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
    let reduction = Reduction { out, operands, start: 0, elements, wide: fold::has_wide_vectors() };
    // SAFETY: the caller's promise is the reduction's.
    unsafe { dispatch_dtype(op, dtype, reduction) }
}

/// Combines slices of bytes with their weights into `out`, as [`reduce`] does, with every
/// precondition checked.
///
/// # Errors
/// [`ReduceError`] that names the violated precondition; `out` is then unchanged.
pub fn reduce_slices(
    op: ReduceOp,
    dtype: Dtype,
    out: &mut [u8],
    operands: &[(&[u8], f64)],
) -> Result<(), ReduceError> {
    let elements = check_operands(op, dtype, out.len(), operands)?;
    let raw = |&(bytes, weight): &(&[u8], f64)| Operand { bytes: bytes.as_ptr(), weight };
    let raw: Vec<Operand> = operands.iter().map(raw).collect();
    // SAFETY: every length was checked, and `&mut` overlaps no `&`.
    unsafe { reduce(op, dtype, out.as_mut_ptr(), &raw, elements) };
    Ok(())
}

/// Checks all preconditions of a reduction; returns the number of elements.
///
/// `want` is the length of the output in bytes.
fn check_operands(
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
        if op == ReduceOp::Avg && !fold::is_valid_weight(weight) {
            return Err(ReduceError::Weight { index, weight });
        }
    }
    Ok(want / size)
}

/// Runs a reduction with the element type of `dtype`.
///
/// # Safety
/// The conditions of [`reduce`] hold.
pub(super) unsafe fn dispatch_dtype(op: ReduceOp, dtype: Dtype, reduction: Reduction<'_>) {
    // SAFETY: the caller's promise is passed on; each element type has the dtype's size.
    unsafe {
        match dtype {
            Dtype::F32 => reduce_float::<f32, WideF32>(op, reduction),
            Dtype::F64 => reduce_float::<f64, f64>(op, reduction),
            Dtype::F16 => reduce_f16(op, reduction),
            Dtype::Bf16 => reduce_float::<Bf16, Bf16>(op, reduction),
            Dtype::I32 => reduce_by_operation::<i32>(op, reduction),
            Dtype::I64 => reduce_by_operation::<i64>(op, reduction),
            Dtype::U8 => reduce_by_operation::<u8>(op, reduction),
        }
    }
}

/// Runs a reduction of binary16, through the vector converters where the machine has them.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_f16(op: ReduceOp, reduction: Reduction<'_>) {
    #[cfg(target_arch = "x86_64")]
    if reduction.wide {
        let whole = reduction.grouped(F16x8::LANES);
        let rest = reduction.starting_at(whole.elements * F16x8::LANES);
        // SAFETY: the two parts make up the reduction, and the converters are there.
        return unsafe {
            reduce_float::<F16x8, F16x8>(op, whole);
            reduce_float::<F16, F16>(op, rest);
        };
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { reduce_float::<F16, F16>(op, reduction) }
}

/// Runs a reduction of floats: averages through `M`, whose accumulator may be wider, and all else
/// through `E`.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_float<E: Element<Acc: Accumulator>, M: Element<Acc: MeanAccumulator>>(
    op: ReduceOp,
    reduction: Reduction<'_>,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Avg => reduction.run_mean::<M>(),
            _ => reduce_by_operation::<E>(op, reduction),
        }
    }
}

/// Runs a reduction with the combining operation of `op`: sum, minimum, maximum or product.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_by_operation<E: Element<Acc: Accumulator>>(
    op: ReduceOp,
    reduction: Reduction<'_>,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Sum => reduction.run_fold::<E, _>(Sum),
            ReduceOp::Min => reduction.run_fold::<E, _>(Min),
            ReduceOp::Max => reduction.run_fold::<E, _>(Max),
            ReduceOp::Prod => reduction.run_fold::<E, _>(Prod),
            ReduceOp::Avg => debug_assert!(false, "an average of integers is not defined"),
        }
    }
}
