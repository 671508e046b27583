//! Eight binary16 elements at a time through the converters of x86-64 (F16C).
//!
//! They are about five times as fast as integer steps. For the loop this is one more element type,
//! whose accumulator is a vector.

use super::accumulator::{Accumulator, MeanAccumulator};
use super::element::{Element, F16Element};
use std::arch::x86_64::{
    __m128i, __m256, _CMP_EQ_OQ, _CMP_GT_OQ, _CMP_LT_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT,
    _mm256_add_ps, _mm256_and_ps, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps,
    _mm256_cvtps_ph, _mm256_mul_ps, _mm256_or_ps, _mm256_set1_ps,
};

/// Eight [`F16Element`] elements; only for machines where [`super::fold::folds_by_wide_vectors`] is true.
pub struct F16x8;

/// Eight accumulators.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);

impl F16x8 {
    /// 8 elements: the number of binary16 elements in one 128-bit vector, which are converted and
    /// combined together.
    pub const LANES: usize =
        size_of::<<Self as Element>::Raw>() / size_of::<<F16Element as Element>::Raw>();
}

impl Element for F16x8 {
    type Raw = __m128i;
    type Acc = F32x8;
    /// Widens eight binary16 elements to binary32, exactly.
    #[inline(always)]
    fn decode_element(raw: __m128i) -> F32x8 {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        F32x8(unsafe { _mm256_cvtph_ps(raw) })
    }
    /// Rounds eight binary32 accumulators to binary16, to nearest even; every NaN becomes the
    /// canonical one.
    #[inline(always)]
    fn encode_element(acc: F32x8) -> __m128i {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(acc.0, acc.0);
            let canonical = _mm256_blendv_ps(acc.0, _mm256_set1_ps(f32::NAN), nan);
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical)
        }
    }
}

impl Accumulator for F32x8 {
    /// Adds eight accumulators to eight others, lane by lane.
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    /// Multiplies eight accumulators by eight others, lane by lane.
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    /// Returns the lesser accumulator of each lane; NaN wins, -0 is less than +0.
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        unsafe {
            let zeros = _mm256_or_ps(self.0, other.0);
            self.select_ordered(other, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0), zeros)
        }
    }
    /// Returns the greater accumulator of each lane; NaN wins, +0 is greater than -0.
    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        unsafe {
            let zeros = _mm256_and_ps(self.0, other.0);
            self.select_ordered(other, _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0), zeros)
        }
    }
}

impl F32x8 {
    /// Selects for each lane: `self` where `better` is set or `self` is NaN, `equal` where both are
    /// equal, else `other`.
    #[inline(always)]
    fn select_ordered(self, other: Self, better: __m256, equal: __m256) -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        unsafe {
            let chosen = _mm256_blendv_ps(other.0, self.0, better);
            let same = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0);
            let chosen = _mm256_blendv_ps(chosen, equal, same);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            Self(_mm256_blendv_ps(chosen, self.0, nan))
        }
    }
}

impl MeanAccumulator for F32x8 {
    /// Returns eight NaNs, the mean of no operands.
    #[inline(always)]
    fn nan_accumulator() -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        Self(unsafe { _mm256_set1_ps(f32::NAN) })
    }
    /// Returns the fraction of `total` that `weight` is, in each of eight lanes.
    #[inline(always)]
    fn accumulator_coefficient(weight: f64, total: f64) -> Self {
        // SAFETY: the machine has AVX and F16C, which is the type's precondition.
        Self(unsafe { _mm256_set1_ps(f32::accumulator_coefficient(weight, total)) })
    }
    /// Multiplies eight values by eight coefficients, lane by lane.
    #[inline(always)]
    fn accumulator_times(self, coefficient: Self) -> Self {
        self.mul(coefficient)
    }
    /// Adds eight terms of means to eight others; a mean of binary16 values cannot overflow `f32`.
    #[inline(always)]
    fn accumulate_bounded(self, other: Self) -> Self {
        self.add(other)
    }
}
