//! The operations of accumulators.

use std::hint::select_unpredictable as select;

/// A type in which operands are combined.
pub trait Number: Copy {
    /// Sum; integers wrap.
    fn add(self, other: Self) -> Self;
    /// Product; integers wrap.
    fn mul(self, other: Self) -> Self;
    /// Minimum; NaN wins, -0 < +0.
    fn least(self, other: Self) -> Self;
    /// Maximum; NaN wins, +0 > -0.
    fn greatest(self, other: Self) -> Self;
}

/// An accumulator that can hold a mean.
pub trait Real: Copy {
    /// The mean of no operands.
    fn nan() -> Self;
    /// The fraction of `total` that `weight` is. It is never zero, so that an infinity or NaN with
    /// the least positive weight still counts.
    fn coefficient(weight: f64, total: f64) -> Self;
    /// The value times a coefficient.
    fn scaled(self, coefficient: Self) -> Self;
    /// Sum that is finite for finite terms. Rounded coefficients may add up to more than one, which
    /// would overflow the mean of the largest numbers.
    fn add_bounded(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($name:ty),*) => {$(
        impl Number for $name {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                select(self < other, self, other)
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                select(self > other, self, other)
            }
        }
    )*};
}
integer!(i32, i64, u8);

macro_rules! float {
    ($($name:ty),*) => {$(
        impl Number for $name {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            // Selects, not branches, so that the loop stays a vector one. Equal numbers differ
            // at most in the sign of zero, and a NaN `other` falls through the first select.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let least = select(self < other, self, other);
                let either_sign = Self::from_bits(self.to_bits() | other.to_bits());
                let least = select(self == other, either_sign, least);
                select(self.is_nan(), self, least)
            }
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

impl Real for f32 {
    #[inline(always)]
    fn nan() -> Self {
        Self::NAN
    }
    #[inline(always)]
    fn coefficient(weight: f64, total: f64) -> Self {
        ((weight / total) as Self).max(Self::from_bits(1))
    }
    #[inline(always)]
    fn scaled(self, coefficient: Self) -> Self {
        self * coefficient
    }
    /// The `f32` sum of a mean of 16-bit floats cannot overflow.
    #[inline(always)]
    fn add_bounded(self, other: Self) -> Self {
        self + other
    }
}

impl Real for f64 {
    #[inline(always)]
    fn nan() -> Self {
        Self::NAN
    }
    #[inline(always)]
    fn coefficient(weight: f64, total: f64) -> Self {
        (weight / total).max(Self::from_bits(1))
    }
    #[inline(always)]
    fn scaled(self, coefficient: Self) -> Self {
        self * coefficient
    }
    #[inline(always)]
    fn add_bounded(self, other: Self) -> Self {
        let sum = self + other;
        let overflowed = sum.is_infinite() & self.is_finite() & other.is_finite();
        select(overflowed, Self::MAX.copysign(sum), sum)
    }
}

/// A binary64 accumulator for means of binary32. They cannot overflow it, so it needs no bound, which
/// would cost more than all other work.
#[derive(Clone, Copy)]
pub struct F64Sum(pub f64);

impl Real for F64Sum {
    #[inline(always)]
    fn nan() -> Self {
        Self(f64::NAN)
    }
    #[inline(always)]
    fn coefficient(weight: f64, total: f64) -> Self {
        Self(f64::coefficient(weight, total))
    }
    #[inline(always)]
    fn scaled(self, coefficient: Self) -> Self {
        Self(self.0 * coefficient.0)
    }
    #[inline(always)]
    fn add_bounded(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
