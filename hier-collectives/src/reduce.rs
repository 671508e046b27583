//! Reduction kernels over raw memory.
//!
//! Other processes may write the operands at any time, and operands out of packets have no
//! alignment, so elements are read and written one by one through raw pointers; the loops
//! still vectorise. Operands are taken strictly in order. Every NaN that results is its
//! dtype's canonical quiet NaN, so that results are equal bit by bit on all hosts.

#![expect(unsafe_code, reason = "memory that others may write is touched by pointer only")]

mod element;

use crate::descriptor::{Dtype, ReduceOp};
use element::{Element, Float, Number};
use half::{bf16, f16};

/// An input of a reduction.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Its first byte; no alignment is needed.
    pub bytes: *const u8,
    /// Its weight in an average; zero leaves it out.
    pub weight: f64,
}

/// Slices that do not fit together. The caller's fault; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReduceError {
    /// Slices of different lengths, or not of whole elements.
    #[error("operands and result must have one length, a multiple of {0} bytes")]
    Length(u64),
    /// No operand.
    #[error("a reduction needs at least one operand")]
    NoOperand,
    /// The operation is not defined on the dtype.
    #[error("{0} is not defined on {1}")]
    NotDefined(ReduceOp, Dtype),
}

/// Elements reduced at a time: the accumulators stay in the first-level cache.
const BLOCK: usize = 1024;

/// [`reduce`] on slices.
///
/// # Errors
/// [`ReduceError`]; `out` is untouched then.
pub fn reduce_slices(
    op: ReduceOp,
    dtype: Dtype,
    out: &mut [u8],
    operands: &[(&[u8], f64)],
) -> Result<(), ReduceError> {
    let size = dtype.size();
    let whole = (out.len() as u64).is_multiple_of(size);
    if !whole || operands.iter().any(|(bytes, _)| bytes.len() != out.len()) {
        return Err(ReduceError::Length(size));
    }
    if operands.is_empty() {
        return Err(ReduceError::NoOperand);
    }
    if !op.accepts(dtype) {
        return Err(ReduceError::NotDefined(op, dtype));
    }
    let pointers: Vec<Operand> = operands
        .iter()
        .map(|(bytes, weight)| Operand { bytes: bytes.as_ptr(), weight: *weight })
        .collect();
    let elements = out.len() / size as usize;
    // SAFETY: every slice has `elements` elements, and `out` is borrowed exclusively.
    unsafe { reduce(op, dtype, out.as_mut_ptr(), &pointers, elements) };
    Ok(())
}

/// Combines `operands`, in order, into `out`. With no operand, or an average of integers,
/// nothing is written: callers refuse both before.
///
/// Sums and products of integers wrap. 16-bit floats accumulate in binary32 over all operands
/// and are rounded once. Minimum and maximum are IEEE 754-2019's: NaN wins, -0 < +0. An
/// average is the weighted mean, accumulated in binary64 (binary32 for 16-bit floats); an
/// average over no weight is NaN.
///
/// # Safety
/// Each operand must be valid for reads, and `out` for writes, of `elements` elements; `out`
/// overlaps no operand.
pub unsafe fn reduce(
    op: ReduceOp,
    dtype: Dtype,
    out: *mut u8,
    operands: &[Operand],
    elements: usize,
) {
    if operands.is_empty() {
        return;
    }
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match dtype {
            Dtype::F32 => float::<f32>(op, out, operands, elements),
            Dtype::F64 => float::<f64>(op, out, operands, elements),
            Dtype::F16 => float::<f16>(op, out, operands, elements),
            Dtype::Bf16 => float::<bf16>(op, out, operands, elements),
            Dtype::I32 => number::<i32>(op, out, operands, elements),
            Dtype::I64 => number::<i64>(op, out, operands, elements),
            Dtype::U8 => number::<u8>(op, out, operands, elements),
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn float<E: Float>(op: ReduceOp, out: *mut u8, operands: &[Operand], elements: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if op == ReduceOp::Avg {
            average::<E>(out, operands, elements);
        } else {
            number::<E>(op, out, operands, elements);
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn number<E: Element>(op: ReduceOp, out: *mut u8, operands: &[Operand], elements: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match op {
            ReduceOp::Sum => fold::<E>(out, operands, elements, E::Acc::sum),
            ReduceOp::Prod => fold::<E>(out, operands, elements, E::Acc::product),
            ReduceOp::Min => fold::<E>(out, operands, elements, E::Acc::minimum),
            ReduceOp::Max => fold::<E>(out, operands, elements, E::Acc::maximum),
            ReduceOp::Avg => debug_assert!(false, "refused before: average of integers"),
        }
    }
}

/// # Safety
/// As [`reduce`], with at least one operand.
unsafe fn fold<E: Element>(
    out: *mut u8,
    operands: &[Operand],
    elements: usize,
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc,
) {
    let mut acc = [E::Acc::default(); BLOCK];
    let mut next = [E::Acc::default(); BLOCK];
    let mut start = 0;
    while start < elements {
        let count = BLOCK.min(elements - start);
        let at = start * size_of::<E>();
        // SAFETY: `start + count <= elements`, so all of it lies in the ranges that the
        // caller vouches for.
        unsafe {
            E::load(operands[0].bytes.add(at), &mut acc[..count]);
            for operand in &operands[1..] {
                E::load(operand.bytes.add(at), &mut next[..count]);
                for (acc, next) in acc[..count].iter_mut().zip(&next[..count]) {
                    *acc = combine(*acc, *next);
                }
            }
            E::store(&acc[..count], out.add(at));
        }
        start += count;
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn average<E: Float>(out: *mut u8, operands: &[Operand], elements: usize) {
    let total: f64 = operands.iter().map(|operand| operand.weight).sum();
    let counted = || operands.iter().filter(|operand| operand.weight != 0.0);
    let alone = counted().count() == 1;
    let mut acc = [E::Wide::default(); BLOCK];
    let mut next = [E::Acc::default(); BLOCK];
    let mut start = 0;
    while start < elements {
        let count = BLOCK.min(elements - start);
        let at = start * size_of::<E>();
        let empty = if total == 0.0 { E::NAN } else { E::Wide::default() };
        acc[..count].fill(empty);
        for operand in counted() {
            // The share of one operand alone is exactly 1, whatever its weight.
            let share = if alone { 1.0 } else { operand.weight / total };
            // SAFETY: as in `fold`.
            unsafe { E::load(operand.bytes.add(at), &mut next[..count]) };
            for (acc, next) in acc[..count].iter_mut().zip(&next[..count]) {
                *acc = E::add_share(*acc, *next, share, alone);
            }
        }
        for (next, acc) in next[..count].iter_mut().zip(&acc[..count]) {
            *next = E::narrow(*acc);
        }
        // SAFETY: as in `fold`.
        unsafe { E::store(&next[..count], out.add(at)) };
        start += count;
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
