//! Chooses the loop of a reduction by dtype and operation.

use super::accumulator::{Accumulator, BitAccumulator, MeanAccumulator};
use super::element::{Bf16, Bool, Element, F16, WideF32};
use super::error::ReduceError;
#[cfg(target_arch = "x86_64")]
use super::f16x8::F16x8;
use super::fold::{self, Band, Bor, Bxor, Max, Min, Prod, Reduction, Sum};
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
    let reduction =
        Reduction { out, operands, start: 0, elements, wide: fold::folds_by_wide_vectors() };
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
    let elements = check_dispatched_operands(op, dtype, out.len(), operands)?;
    let raw = |&(bytes, weight): &(&[u8], f64)| Operand { bytes: bytes.as_ptr(), weight };
    let raw: Vec<Operand> = operands.iter().map(raw).collect();
    // SAFETY: every length was checked, and `&mut` overlaps no `&`.
    unsafe { reduce(op, dtype, out.as_mut_ptr(), &raw, elements) };
    Ok(())
}

/// Checks all preconditions of a reduction; returns the number of elements.
///
/// `want` is the length of the output in bytes.
fn check_dispatched_operands(
    op: ReduceOp,
    dtype: Dtype,
    want: usize,
    operands: &[(&[u8], f64)],
) -> Result<usize, ReduceError> {
    op.check(dtype)?;
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
        if op == ReduceOp::Avg && !fold::is_average_weight(weight) {
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
            Dtype::I8 => reduce_integer::<i8, u8>(op, reduction),
            Dtype::I16 => reduce_integer::<i16, u16>(op, reduction),
            Dtype::I32 => reduce_integer::<i32, u32>(op, reduction),
            Dtype::I64 => reduce_integer::<i64, u64>(op, reduction),
            Dtype::U8 => reduce_integer::<u8, u8>(op, reduction),
            Dtype::U16 => reduce_integer::<u16, u16>(op, reduction),
            Dtype::U32 => reduce_integer::<u32, u32>(op, reduction),
            Dtype::U64 => reduce_integer::<u64, u64>(op, reduction),
            Dtype::Bool => reduce_truth(op, reduction),
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
            ReduceOp::Min | ReduceOp::Max => reduce_by_order::<E>(op, reduction),
            _ => reduce_by_arithmetic::<E>(op, reduction),
        }
    }
}

/// Runs a reduction of integers in the order of `E`. Sums and products wrap, so that those of signed
/// integers have the bits of the unsigned ones of their size, `U`. Bits are combined byte by byte.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_integer<E, U>(op: ReduceOp, reduction: Reduction<'_>)
where
    E: Element<Acc: Accumulator>,
    U: Element<Acc: Accumulator>,
{
    // SAFETY: the caller's promise is passed on; both types have the dtype's size.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Prod => reduce_by_arithmetic::<U>(op, reduction),
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => {
                reduce_bits::<u8>(op, reduction.by_bytes(size_of::<E::Raw>()));
            }
            _ => reduce_by_order::<E>(op, reduction),
        }
    }
}

/// Runs a reduction of truth values, all of which combine bits.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_truth(op: ReduceOp, reduction: Reduction<'_>) {
    let same = match op {
        ReduceOp::Sum | ReduceOp::Max => ReduceOp::Bor,
        ReduceOp::Prod | ReduceOp::Min => ReduceOp::Band,
        other => other,
    };
    // SAFETY: the caller's promise is passed on.
    unsafe { reduce_bits::<Bool>(same, reduction) }
}

/// Runs a reduction that combines bits.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_bits<E: Element<Acc: BitAccumulator>>(op: ReduceOp, reduction: Reduction<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Band => reduction.run_fold::<E, _>(Band),
            ReduceOp::Bor => reduction.run_fold::<E, _>(Bor),
            ReduceOp::Bxor => reduction.run_fold::<E, _>(Bxor),
            _ => debug_assert!(false, "{op} combines no bits"),
        }
    }
}

/// Runs a sum or a product.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_by_arithmetic<E: Element<Acc: Accumulator>>(
    op: ReduceOp,
    reduction: Reduction<'_>,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Sum => reduction.run_fold::<E, _>(Sum),
            ReduceOp::Prod => reduction.run_fold::<E, _>(Prod),
            _ => debug_assert!(false, "{op} is not defined on these elements"),
        }
    }
}

/// Runs a minimum or a maximum.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn reduce_by_order<E: Element<Acc: Accumulator>>(op: ReduceOp, reduction: Reduction<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Min => reduction.run_fold::<E, _>(Min),
            ReduceOp::Max => reduction.run_fold::<E, _>(Max),
            _ => debug_assert!(false, "{op} is not defined on these elements"),
        }
    }
}
