//! Element types: the form in memory, and the accumulator.

use super::number::F64Sum;
use std::hint::select_unpredictable as select;

/// An element type: its form in memory and its accumulator.
pub trait Element {
    /// The form in memory: plain bits, any pattern valid.
    type Raw: Copy;
    /// The type in which operands are combined.
    type Acc: Copy;
    /// Widens an element, exactly.
    fn decode(raw: Self::Raw) -> Self::Acc;
    /// Rounds to nearest even; every NaN becomes the canonical one.
    fn encode(acc: Self::Acc) -> Self::Raw;
}

macro_rules! integer {
    ($($name:ty),*) => {$(
        impl Element for $name {
            type Raw = Self;
            type Acc = Self;
            #[inline(always)]
            fn decode(raw: Self) -> Self {
                raw
            }
            #[inline(always)]
            fn encode(acc: Self) -> Self {
                acc
            }
        }
    )*};
}
integer!(i32, i64, u8);

impl Element for f32 {
    type Raw = Self;
    type Acc = Self;
    #[inline(always)]
    fn decode(raw: Self) -> Self {
        raw
    }
    #[inline(always)]
    fn encode(acc: Self) -> Self {
        let canonical = Self::from_bits(0x7fc0_0000);
        select(acc.is_nan(), canonical, acc)
    }
}

impl Element for f64 {
    type Raw = Self;
    type Acc = Self;
    #[inline(always)]
    fn decode(raw: Self) -> Self {
        raw
    }
    #[inline(always)]
    fn encode(acc: Self) -> Self {
        let canonical = Self::from_bits(0x7ff8_0000_0000_0000);
        select(acc.is_nan(), canonical, acc)
    }
}

/// An `f32` in memory that is averaged in `f64`.
pub struct WideF32;

impl Element for WideF32 {
    type Raw = f32;
    type Acc = F64Sum;
    #[inline(always)]
    fn decode(raw: f32) -> F64Sum {
        F64Sum(f64::from(raw))
    }
    #[inline(always)]
    fn encode(acc: F64Sum) -> f32 {
        <f32 as Element>::encode(acc.0 as f32)
    }
}

/// The type bfloat16: the upper half of a binary32.
pub struct Bf16;

impl Element for Bf16 {
    type Raw = u16;
    type Acc = f32;
    #[inline(always)]
    fn decode(raw: u16) -> f32 {
        f32::from_bits(u32::from(raw) << 16)
    }
    #[inline(always)]
    fn encode(acc: f32) -> u16 {
        let bits = acc.to_bits();
        let half_even = 0x7fff + ((bits >> 16) & 1);
        // A carry out of the mantissa is the next exponent, at the top infinity.
        let rounded = (bits.wrapping_add(half_even) >> 16) as u16;
        select(acc.is_nan(), 0x7fc0, rounded)
    }
}

/// IEEE 754 binary16, converted in integer steps that every vector unit has.
pub struct F16;

/// The exponents of binary16 and binary32 differ by this bias.
const REBIAS: u32 = (127 - 15) << 23;
/// 2^-14, the least normal binary16.
const LEAST_NORMAL: u32 = (127 - 14) << 23;
/// 2^16, above every finite binary16.
const ABOVE_ALL: u32 = (127 + 16) << 23;
/// 0.5, whose last mantissa bit is worth 2^-24, the least binary16.
const SUBNORMAL_UNIT: u32 = (127 - 1) << 23;

impl Element for F16 {
    type Raw = u16;
    type Acc = f32;
    #[inline(always)]
    fn decode(raw: u16) -> f32 {
        let sign = u32::from(raw & 0x8000) << 16;
        let shifted = u32::from(raw & 0x7fff) << 13;
        let normal = shifted + REBIAS;
        // Infinity and NaN: the exponent is all ones in both formats.
        let special = normal + REBIAS;
        // One exponent too high on purpose: subtracting its hidden bit normalises.
        let above = f32::from_bits(shifted + LEAST_NORMAL);
        let subnormal = (above - f32::from_bits(LEAST_NORMAL)).to_bits();
        let magnitude = select(shifted < 0x0080_0000, subnormal, normal);
        let magnitude = select(shifted >= 0x0f80_0000, special, magnitude);
        f32::from_bits(sign | magnitude)
    }
    #[inline(always)]
    fn encode(acc: f32) -> u16 {
        let bits = acc.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        let half_even = 0x0fff + ((magnitude >> 13) & 1);
        let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(half_even) >> 13;
        // The addition itself rounds at the unit of the subnormals.
        let aligned = f32::from_bits(magnitude) + f32::from_bits(SUBNORMAL_UNIT);
        let subnormal = aligned.to_bits().wrapping_sub(SUBNORMAL_UNIT);
        let finite = select(magnitude < LEAST_NORMAL, subnormal, normal);
        let rounded = select(magnitude >= ABOVE_ALL, 0x7c00, finite);
        let encoded = (sign | rounded) as u16;
        select(acc.is_nan(), 0x7e00, encoded)
    }
}
