//! What the kernels need of an element: how it is loaded, combined and stored.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Arithmetic on accumulators.
pub(super) trait Number: Copy + Default {
    fn sum(a: Self, b: Self) -> Self;
    fn product(a: Self, b: Self) -> Self;
    fn minimum(a: Self, b: Self) -> Self;
    fn maximum(a: Self, b: Self) -> Self;
}

/// An element as it stands in memory, and its accumulator.
pub(super) trait Element: Copy {
    type Acc: Number;

    /// # Safety
    /// `from` is valid for reads of `into.len()` elements, aligned or not.
    unsafe fn load(from: *const u8, into: &mut [Self::Acc]);

    /// # Safety
    /// `into` is valid for writes of `from.len()` elements, aligned or not.
    unsafe fn store(from: &[Self::Acc], into: *mut u8);
}

/// A floating-point element: it has averages, accumulated in something wider where it helps.
pub(super) trait Float: Element {
    type Wide: Copy + Default;
    const NAN: Self::Wide;

    /// `acc + share * x`; just `x` when it is the only operand, so that -0 stays.
    fn add_share(acc: Self::Wide, x: Self::Acc, share: f64, alone: bool) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self::Acc;
}

macro_rules! integer {
    ($($int:ty),*) => {$(
        impl Number for $int {
            fn sum(a: Self, b: Self) -> Self { a.wrapping_add(b) }
            fn product(a: Self, b: Self) -> Self { a.wrapping_mul(b) }
            fn minimum(a: Self, b: Self) -> Self { a.min(b) }
            fn maximum(a: Self, b: Self) -> Self { a.max(b) }
        }

        impl Element for $int {
            type Acc = $int;

            unsafe fn load(from: *const u8, into: &mut [$int]) {
                let from = from.cast::<$int>();
                for (index, acc) in into.iter_mut().enumerate() {
                    // SAFETY: `index` is below the length that the caller vouches for.
                    *acc = unsafe { from.add(index).read_unaligned() };
                }
            }

            unsafe fn store(from: &[$int], into: *mut u8) {
                let into = into.cast::<$int>();
                for (index, acc) in from.iter().enumerate() {
                    // SAFETY: `index` is below the length that the caller vouches for.
                    unsafe { into.add(index).write_unaligned(*acc) };
                }
            }
        }
    )*};
}

integer!(i32, i64, u8);

macro_rules! float {
    ($($float:ty),*) => {$(
        impl Number for $float {
            fn sum(a: Self, b: Self) -> Self { a + b }
            fn product(a: Self, b: Self) -> Self { a * b }
            fn minimum(a: Self, b: Self) -> Self {
                let least = if a < b || (a == b && a.is_sign_negative()) { a } else { b };
                if a.is_nan() { a } else { least }
            }
            fn maximum(a: Self, b: Self) -> Self {
                let most = if a > b || (a == b && a.is_sign_positive()) { a } else { b };
                if a.is_nan() { a } else { most }
            }
        }

        impl Element for $float {
            type Acc = $float;

            unsafe fn load(from: *const u8, into: &mut [$float]) {
                let from = from.cast::<$float>();
                for (index, acc) in into.iter_mut().enumerate() {
                    // SAFETY: `index` is below the length that the caller vouches for.
                    *acc = unsafe { from.add(index).read_unaligned() };
                }
            }

            unsafe fn store(from: &[$float], into: *mut u8) {
                let into = into.cast::<$float>();
                for (index, acc) in from.iter().enumerate() {
                    let value = if acc.is_nan() { <$float>::NAN } else { *acc };
                    // SAFETY: `index` is below the length that the caller vouches for.
                    unsafe { into.add(index).write_unaligned(value) };
                }
            }
        }

        impl Float for $float {
            type Wide = f64;
            const NAN: f64 = f64::NAN;

            fn add_share(acc: f64, x: $float, share: f64, alone: bool) -> f64 {
                if alone { f64::from(x) } else { acc + f64::from(x) * share }
            }
            fn narrow(wide: f64) -> $float {
                wide as $float
            }
        }
    )*};
}

float!(f32, f64);

/// 16-bit elements converted at a time.
const HALVES: usize = 256;

macro_rules! half_float {
    ($($half:ty),*) => {$(
        impl Element for $half {
            type Acc = f32;

            unsafe fn load(from: *const u8, into: &mut [f32]) {
                let mut raw = [<$half>::ZERO; HALVES];
                for (block, into) in into.chunks_mut(HALVES).enumerate() {
                    let from = from.wrapping_add(block * HALVES * 2).cast::<$half>();
                    for (index, half) in raw[..into.len()].iter_mut().enumerate() {
                        // SAFETY: below the length that the caller vouches for.
                        *half = unsafe { from.add(index).read_unaligned() };
                    }
                    raw[..into.len()].convert_to_f32_slice(into);
                }
            }

            unsafe fn store(from: &[f32], into: *mut u8) {
                let mut raw = [<$half>::ZERO; HALVES];
                for (block, from) in from.chunks(HALVES).enumerate() {
                    raw[..from.len()].convert_from_f32_slice(from);
                    let into = into.wrapping_add(block * HALVES * 2).cast::<$half>();
                    for (index, half) in raw[..from.len()].iter().enumerate() {
                        let value = if half.is_nan() { <$half>::NAN } else { *half };
                        // SAFETY: below the length that the caller vouches for.
                        unsafe { into.add(index).write_unaligned(value) };
                    }
                }
            }
        }

        impl Float for $half {
            type Wide = f32;
            const NAN: f32 = f32::NAN;

            fn add_share(acc: f32, x: f32, share: f64, alone: bool) -> f32 {
                if alone { x } else { acc + x * share as f32 }
            }
            fn narrow(wide: f32) -> f32 {
                wide
            }
        }
    )*};
}

half_float!(f16, bf16);
