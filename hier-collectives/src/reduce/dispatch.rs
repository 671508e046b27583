//! Chooses the loop of a reduction by dtype and operation.

use super::accumulator::{Accumulator, BitAccumulator, MeanAccumulator};
use super::element::{Bf16Element, BoolElement, Element, F16Element, WideF32Element};
use super::error::ReduceError;
#[cfg(target_arch = "x86_64")]
use super::f32x8::F16x8;
use super::fold::{self, Band, Bor, Bxor, FoldPass, Max, Min, Prod, Sum};
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
        FoldPass { out, operands, start: 0, elements, wide: fold::folds_by_wide_vectors() };
    // SAFETY: the caller's promise is the reduction's.
    unsafe { dispatch_dtype(op, dtype, reduction) }
}

/// Combines slices of bytes with their weights into `out`, as [`reduce`] does, with every
/// precondition checked.
///
/// # Errors
/// [`ReduceError`] that names the violated precondition; `out` is then unchanged.
pub fn dispatch_slices(
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
        if op == ReduceOp::Avg && !fold::can_fold_with_weight(weight) {
            return Err(ReduceError::Weight { index, weight });
        }
    }
    Ok(want / size)
}

/// Runs a reduction with the element type of `dtype`.
///
/// # Safety
/// The conditions of [`reduce`] hold.
pub(super) unsafe fn dispatch_dtype(op: ReduceOp, dtype: Dtype, reduction: FoldPass<'_>) {
    // SAFETY: the caller's promise is passed on; each element type has the dtype's size.
    unsafe {
        match dtype {
            Dtype::F32 => dispatch_float::<f32, WideF32Element>(op, reduction),
            Dtype::F64 => dispatch_float::<f64, f64>(op, reduction),
            Dtype::F16 => dispatch_f16(op, reduction),
            Dtype::Bf16 => dispatch_float::<Bf16Element, Bf16Element>(op, reduction),
            Dtype::I8 => dispatch_integer::<i8, u8>(op, reduction),
            Dtype::I16 => dispatch_integer::<i16, u16>(op, reduction),
            Dtype::I32 => dispatch_integer::<i32, u32>(op, reduction),
            Dtype::I64 => dispatch_integer::<i64, u64>(op, reduction),
            Dtype::U8 => dispatch_integer::<u8, u8>(op, reduction),
            Dtype::U16 => dispatch_integer::<u16, u16>(op, reduction),
            Dtype::U32 => dispatch_integer::<u32, u32>(op, reduction),
            Dtype::U64 => dispatch_integer::<u64, u64>(op, reduction),
            Dtype::Bool => dispatch_truth(op, reduction),
        }
    }
}

/// Runs a reduction of binary16, through the vector converters where the machine has them.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn dispatch_f16(op: ReduceOp, reduction: FoldPass<'_>) {
    #[cfg(target_arch = "x86_64")]
    if reduction.wide {
        let whole = reduction.grouped(F16x8::LANES);
        let rest = reduction.starting_at(whole.elements * F16x8::LANES);
        // SAFETY: the two parts make up the reduction, and the converters are there.
        return unsafe {
            dispatch_float::<F16x8, F16x8>(op, whole);
            dispatch_float::<F16Element, F16Element>(op, rest);
        };
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { dispatch_float::<F16Element, F16Element>(op, reduction) }
}

/// Runs a reduction of floats: averages through `M`, whose accumulator may be wider, and all else
/// through `E`.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn dispatch_float<E: Element<Acc: Accumulator>, M: Element<Acc: MeanAccumulator>>(
    op: ReduceOp,
    reduction: FoldPass<'_>,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Avg => reduction.run_mean::<M>(),
            ReduceOp::Min | ReduceOp::Max => dispatch_order::<E>(op, reduction),
            _ => dispatch_arithmetic::<E>(op, reduction),
        }
    }
}

/// Runs a reduction of integers in the order of `E`. Sums and products wrap, so that those of signed
/// integers have the bits of the unsigned ones of their size, `U`. Bits are combined byte by byte.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn dispatch_integer<E, U>(op: ReduceOp, reduction: FoldPass<'_>)
where
    E: Element<Acc: Accumulator>,
    U: Element<Acc: Accumulator>,
{
    // SAFETY: the caller's promise is passed on; both types have the dtype's size.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Prod => dispatch_arithmetic::<U>(op, reduction),
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => {
                dispatch_bits::<u8>(op, reduction.by_bytes(size_of::<E::Raw>()));
            }
            _ => dispatch_order::<E>(op, reduction),
        }
    }
}

/// Runs a reduction of truth values by their bits: sum and maximum as or, product and minimum as
/// and.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn dispatch_truth(op: ReduceOp, reduction: FoldPass<'_>) {
    let same = match op {
        ReduceOp::Sum | ReduceOp::Max => ReduceOp::Bor,
        ReduceOp::Prod | ReduceOp::Min => ReduceOp::Band,
        other => other,
    };
    // SAFETY: the caller's promise is passed on.
    unsafe { dispatch_bits::<BoolElement>(same, reduction) }
}

/// Runs a reduction that combines bits.
///
/// # Safety
/// The conditions of [`reduce`] hold.
unsafe fn dispatch_bits<E: Element<Acc: BitAccumulator>>(op: ReduceOp, reduction: FoldPass<'_>) {
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
unsafe fn dispatch_arithmetic<E: Element<Acc: Accumulator>>(op: ReduceOp, reduction: FoldPass<'_>) {
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
unsafe fn dispatch_order<E: Element<Acc: Accumulator>>(op: ReduceOp, reduction: FoldPass<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match op {
            ReduceOp::Min => reduction.run_fold::<E, _>(Min),
            ReduceOp::Max => reduction.run_fold::<E, _>(Max),
            _ => debug_assert!(false, "{op} is not defined on these elements"),
        }
    }
}
