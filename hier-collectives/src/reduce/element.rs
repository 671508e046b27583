//! Element types: the form in memory, and the accumulator.

use super::accumulator::{F64Accumulator, TruthAccumulator};
use std::hint::select_unpredictable as select;

/// An element type: its form in memory and its accumulator.
pub trait Element {
    /// The form in memory: plain bits, any pattern valid.
    type Raw: Copy;
    /// The type in which operands are combined.
    type Acc: Copy;
    /// Widens an element from its form in memory to its accumulator, exactly.
    fn decode_element(raw: Self::Raw) -> Self::Acc;
    /// Rounds an accumulator to the form in memory, to nearest even; every NaN becomes the
    /// canonical one.
    fn encode_element(acc: Self::Acc) -> Self::Raw;
}

macro_rules! integer {
    ($($name:ty),*) => {$(
        impl Element for $name {
            type Raw = Self;
            type Acc = Self;
            /// Returns the integer unchanged: it is its own accumulator.
            #[inline(always)]
            fn decode_element(raw: Self) -> Self {
                raw
            }
            /// Returns the accumulator unchanged: it is its own form in memory.
            #[inline(always)]
            fn encode_element(acc: Self) -> Self {
                acc
            }
        }
    )*};
}
integer!(i8, i16, i32, i64, u8, u16, u32, u64);

/// A truth value in a byte: 0 is false, and all else is true.
pub struct BoolElement;

impl Element for BoolElement {
    type Raw = u8;
    type Acc = TruthAccumulator;
    /// Returns the truth value of a byte.
    #[inline(always)]
    fn decode_element(raw: u8) -> TruthAccumulator {
        TruthAccumulator(u8::from(raw != 0))
    }
    /// Returns 0 for false and 1 for true.
    #[inline(always)]
    fn encode_element(acc: TruthAccumulator) -> u8 {
        acc.0
    }
}

impl Element for f32 {
    type Raw = Self;
    type Acc = Self;
    /// Returns the `f32` unchanged: it is its own accumulator.
    #[inline(always)]
    fn decode_element(raw: Self) -> Self {
        raw
    }
    /// Returns the `f32`; every NaN becomes the canonical one.
    #[inline(always)]
    fn encode_element(acc: Self) -> Self {
        let canonical = Self::from_bits(0x7fc0_0000);
        select(acc.is_nan(), canonical, acc)
    }
}

impl Element for f64 {
    type Raw = Self;
    type Acc = Self;
    /// Returns the `f64` unchanged: it is its own accumulator.
    #[inline(always)]
    fn decode_element(raw: Self) -> Self {
        raw
    }
    /// Returns the `f64`; every NaN becomes the canonical one.
    #[inline(always)]
    fn encode_element(acc: Self) -> Self {
        let canonical = Self::from_bits(0x7ff8_0000_0000_0000);
        select(acc.is_nan(), canonical, acc)
    }
}

/// An `f32` in memory that is averaged in `f64`.
pub struct WideF32Element;

impl Element for WideF32Element {
    type Raw = f32;
    type Acc = F64Accumulator;
    /// Widens an `f32` to `f64`, exactly.
    #[inline(always)]
    fn decode_element(raw: f32) -> F64Accumulator {
        F64Accumulator(f64::from(raw))
    }
    /// Rounds an average to `f32`, to nearest even; every NaN becomes the canonical one.
    #[inline(always)]
    fn encode_element(acc: F64Accumulator) -> f32 {
        <f32 as Element>::encode_element(acc.0 as f32)
    }
}

/// The type bfloat16: the upper half of a binary32.
pub struct Bf16Element;

impl Element for Bf16Element {
    type Raw = u16;
    type Acc = f32;
    /// Widens a bfloat16 to `f32`, exactly.
    #[inline(always)]
    fn decode_element(raw: u16) -> f32 {
        f32::from_bits(u32::from(raw) << 16)
    }
    /// Rounds an `f32` to bfloat16, to nearest even; every NaN becomes the canonical one.
    #[inline(always)]
    fn encode_element(acc: f32) -> u16 {
        let bits = acc.to_bits();
        let half_even = 0x7fff + ((bits >> 16) & 1);
        // A carry out of the mantissa is the next exponent, at the top infinity.
        let rounded = (bits.wrapping_add(half_even) >> 16) as u16;
        select(acc.is_nan(), 0x7fc0, rounded)
    }
}

/// IEEE 754 binary16, converted in integer steps that every vector unit has.
pub struct F16Element;

/// 112 in the exponent bits of a binary32: the exponent bias of binary32 (127) less that of
/// binary16 (15). Conversions add 112 to widen a binary16 and subtract it to narrow a binary32.
const F16_EXPONENT_REBIAS_BITS: u32 = (127 - 15) << 23;
/// Bits of 2^-14 as a binary32: the least normal number of binary16. A smaller magnitude is rounded
/// as a subnormal number.
const F16_MIN_NORMAL_BITS: u32 = (127 - 14) << 23;
/// Bits of 2^16 as a binary32: the first power of two above every finite number of binary16.
/// Magnitudes from 2^16 on become infinity.
const F16_ABOVE_ALL_BITS: u32 = (127 + 16) << 23;
/// Bits of 0.5 as a binary32: the last mantissa bit of 0.5 is worth 2^-24, the least positive
/// number of binary16. Adding 0.5 to a magnitude below 2^-14 rounds it to this unit.
const F16_SUBNORMAL_UNIT_BITS: u32 = (127 - 1) << 23;

impl Element for F16Element {
    type Raw = u16;
    type Acc = f32;
    /// Widens a binary16 to `f32`, exactly.
    #[inline(always)]
    fn decode_element(raw: u16) -> f32 {
        let sign = u32::from(raw & 0x8000) << 16;
        let shifted = u32::from(raw & 0x7fff) << 13;
        let normal = shifted + F16_EXPONENT_REBIAS_BITS;
        // Infinity and NaN: the exponent is all ones in both formats.
        let special = normal + F16_EXPONENT_REBIAS_BITS;
        // One exponent too high on purpose: subtracting its hidden bit normalises.
        let above = f32::from_bits(shifted + F16_MIN_NORMAL_BITS);
        let subnormal = (above - f32::from_bits(F16_MIN_NORMAL_BITS)).to_bits();
        let magnitude = select(shifted < 0x0080_0000, subnormal, normal);
        let magnitude = select(shifted >= 0x0f80_0000, special, magnitude);
        f32::from_bits(sign | magnitude)
    }
    /// Rounds an `f32` to binary16, to nearest even; every NaN becomes the canonical one.
    #[inline(always)]
    fn encode_element(acc: f32) -> u16 {
        let bits = acc.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        let half_even = 0x0fff + ((magnitude >> 13) & 1);
        let normal = magnitude.wrapping_sub(F16_EXPONENT_REBIAS_BITS).wrapping_add(half_even) >> 13;
        // The addition itself rounds at the unit of the subnormals.
        let aligned = f32::from_bits(magnitude) + f32::from_bits(F16_SUBNORMAL_UNIT_BITS);
        let subnormal = aligned.to_bits().wrapping_sub(F16_SUBNORMAL_UNIT_BITS);
        let finite = select(magnitude < F16_MIN_NORMAL_BITS, subnormal, normal);
        let rounded = select(magnitude >= F16_ABOVE_ALL_BITS, 0x7c00, finite);
        let encoded = (sign | rounded) as u16;
        select(acc.is_nan(), 0x7e00, encoded)
    }
}
