//! Accumulators of a reduction: the types in which operands are combined, and their operations.

use std::hint::select_unpredictable as select;

/// A type in which operands are combined.
pub trait Accumulator: Copy {
    /// Adds two accumulators of a reduction; integers wrap.
    fn add(self, other: Self) -> Self;
    /// Multiplies two accumulators of a reduction; integers wrap.
    fn mul(self, other: Self) -> Self;
    /// Returns the lesser of two accumulators; NaN wins, -0 is less than +0.
    fn least(self, other: Self) -> Self;
    /// Returns the greater of two accumulators; NaN wins, +0 is greater than -0.
    fn greatest(self, other: Self) -> Self;
}

/// An accumulator whose bits can be combined.
pub trait BitAccumulator: Copy {
    /// Returns the bits that both accumulators have.
    fn accumulate_and(self, other: Self) -> Self;
    /// Returns the bits that at least one of two accumulators has.
    fn accumulate_or(self, other: Self) -> Self;
    /// Returns the bits that exactly one of two accumulators has.
    fn accumulate_xor(self, other: Self) -> Self;
}

/// An accumulator that can hold a mean.
pub trait MeanAccumulator: Copy {
    /// Returns NaN, the mean of no operands.
    fn nan_accumulator() -> Self;
    /// Returns the fraction of `total`, the sum of all weights, that `weight` is.
    ///
    /// It is never zero, so that an infinity or NaN with the least positive weight still counts.
    fn accumulator_coefficient(weight: f64, total: f64) -> Self;
    /// Multiplies the value of an operand by its coefficient.
    fn accumulator_times(self, coefficient: Self) -> Self;
    /// Adds two terms of a mean, and limits the sum of finite terms to the largest finite number.
    ///
    /// The coefficients of all terms are rounded, so they may add up to more than one. A mean of the
    /// largest numbers would then overflow.
    fn accumulate_bounded(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($name:ty),*) => {$(
        impl Accumulator for $name {
            /// Adds two integer accumulators of a reduction; the sum wraps.
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            /// Multiplies two integer accumulators of a reduction; the product wraps.
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            /// Returns the lesser of two integer accumulators.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                select(self < other, self, other)
            }
            /// Returns the greater of two integer accumulators.
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                select(self > other, self, other)
            }
        }
    )*};
}
integer!(i8, i16, i32, i64, u8, u16, u32, u64);

impl BitAccumulator for u8 {
    /// Returns the bits that both bytes have.
    #[inline(always)]
    fn accumulate_and(self, other: Self) -> Self {
        self & other
    }
    /// Returns the bits that at least one of two bytes has.
    #[inline(always)]
    fn accumulate_or(self, other: Self) -> Self {
        self | other
    }
    /// Returns the bits that exactly one of two bytes has.
    #[inline(always)]
    fn accumulate_xor(self, other: Self) -> Self {
        self ^ other
    }
}

/// A truth value, 0 or 1: in one bit, so that the operations on bits are the logical ones.
#[derive(Clone, Copy)]
pub struct TruthAccumulator(pub u8);

impl BitAccumulator for TruthAccumulator {
    /// Returns whether both truth values are true.
    #[inline(always)]
    fn accumulate_and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Returns whether at least one of two truth values is true.
    #[inline(always)]
    fn accumulate_or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Returns whether exactly one of two truth values is true.
    #[inline(always)]
    fn accumulate_xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

macro_rules! float {
    ($($name:ty),*) => {$(
        impl Accumulator for $name {
            /// Adds two float accumulators of a reduction.
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            /// Multiplies two float accumulators of a reduction.
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            // Selects, not branches, so that the loop stays a vector one. Equal numbers differ
            // at most in the sign of zero, and a NaN `other` falls through the first select.
            /// Returns the lesser of two float accumulators; NaN wins, -0 is less than +0.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let least = select(self < other, self, other);
                let either_sign = Self::from_bits(self.to_bits() | other.to_bits());
                let least = select(self == other, either_sign, least);
                select(self.is_nan(), self, least)
            }
            /// Returns the greater of two float accumulators; NaN wins, +0 is greater than -0.
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let greatest = select(self > other, self, other);
                let both_signs = Self::from_bits(self.to_bits() & other.to_bits());
                let greatest = select(self == other, both_signs, greatest);
                select(self.is_nan(), self, greatest)
            }
        }
    )*};
}
float!(f32, f64);

impl MeanAccumulator for f32 {
    /// Returns an `f32` NaN, the mean of no operands.
    #[inline(always)]
    fn nan_accumulator() -> Self {
        Self::NAN
    }
    /// Returns the fraction of `total` that `weight` is, as `f32`; never zero.
    #[inline(always)]
    fn accumulator_coefficient(weight: f64, total: f64) -> Self {
        ((weight / total) as Self).max(Self::from_bits(1))
    }
    /// Multiplies the value of an operand by its coefficient.
    #[inline(always)]
    fn accumulator_times(self, coefficient: Self) -> Self {
        self * coefficient
    }
    /// Adds two terms of a mean of 16-bit floats, which cannot overflow `f32`.
    #[inline(always)]
    fn accumulate_bounded(self, other: Self) -> Self {
        self + other
    }
}

impl MeanAccumulator for f64 {
    /// Returns an `f64` NaN, the mean of no operands.
    #[inline(always)]
    fn nan_accumulator() -> Self {
        Self::NAN
    }
    /// Returns the fraction of `total` that `weight` is, as `f64`; never zero.
    #[inline(always)]
    fn accumulator_coefficient(weight: f64, total: f64) -> Self {
        (weight / total).max(Self::from_bits(1))
    }
    /// Multiplies the value of an operand by its coefficient.
    #[inline(always)]
    fn accumulator_times(self, coefficient: Self) -> Self {
        self * coefficient
    }
    /// Adds two terms of a mean of `f64`; a sum of finite terms that overflows becomes the largest
    /// finite number.
    #[inline(always)]
    fn accumulate_bounded(self, other: Self) -> Self {
        let sum = self + other;
        let overflowed = sum.is_infinite() & self.is_finite() & other.is_finite();
        select(overflowed, Self::MAX.copysign(sum), sum)
    }
}

/// A binary64 accumulator for means of binary32. They cannot overflow it, so it needs no bound,
/// which would cost more than all other work.
#[derive(Clone, Copy)]
pub struct F64Accumulator(pub f64);

impl MeanAccumulator for F64Accumulator {
    /// Returns a binary64 NaN, the mean of no operands.
    #[inline(always)]
    fn nan_accumulator() -> Self {
        Self(f64::NAN)
    }
    /// Returns the fraction of `total` that `weight` is, as binary64; never zero.
    #[inline(always)]
    fn accumulator_coefficient(weight: f64, total: f64) -> Self {
        Self(f64::accumulator_coefficient(weight, total))
    }
    /// Multiplies the value of an operand by its coefficient.
    #[inline(always)]
    fn accumulator_times(self, coefficient: Self) -> Self {
        Self(self.0 * coefficient.0)
    }
    /// Adds two terms of a mean of `f32`, which cannot overflow binary64.
    #[inline(always)]
    fn accumulate_bounded(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
