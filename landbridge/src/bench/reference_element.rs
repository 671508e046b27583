//! Contributions of a benchmark that every rank can compute, and the reference reduction: f64 for
//! floats, wrapping integers of the same type otherwise.

use half::{bf16, f16};
use hier_collectives::descriptor::{Dtype, ReduceOp};

/// Returns the weight of a rank in an average, 1 to 4: unequal, so that an unweighted average fails
/// the check.
pub(super) fn reference_element_weight(rank: u32) -> f64 {
    f64::from(rank % 4 + 1)
}

/// Appends element `index` of the contribution of `rank` to `out`, little-endian. The element is a
/// seeded float of magnitude 0.5 to 1.5, any integer, or for a truth value 0 or 1.
pub(super) fn append_reference_element(dtype: Dtype, rank: u32, index: u64, out: &mut Vec<u8>) {
    let mut z = (index ^ (u64::from(rank) << 40)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let magnitude = 0.5 + (z >> 12) as f64 / (1u64 << 52) as f64;
    let float = if z & 1 == 0 { magnitude } else { -magnitude };
    match dtype {
        Dtype::F32 => out.extend((float as f32).to_le_bytes()),
        Dtype::F64 => out.extend(float.to_le_bytes()),
        Dtype::F16 => out.extend(f16::from_f64(float).to_le_bytes()),
        Dtype::Bf16 => out.extend(bf16::from_f64(float).to_le_bytes()),
        Dtype::Bool => out.push(u8::from(z & 1 == 1)),
        _ => out.extend(&z.to_le_bytes()[..dtype.size() as usize]),
    }
}

/// Returns the relative error that a result may have for each rank: twice the unit roundoff of
/// `dtype`, and 0 for integers. A region rounds its sum, and so does the sum over regions.
pub(super) fn reference_element_epsilon(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2f64.powi(-23),
        Dtype::F64 => 2f64.powi(-52),
        Dtype::F16 => 2f64.powi(-10),
        Dtype::Bf16 => 2f64.powi(-7),
        _ => 0.0,
    }
}

/// An element in the arithmetic of the reference.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReferenceElement {
    /// Value, and its fraction of the weights of an average.
    Float(f64, f64),
    /// Value of an integer or a truth value, and its type.
    Integer(i128, Dtype),
}

impl ReferenceElement {
    /// Decodes a little-endian element, whose rank has the fraction `share` of the weights of an
    /// average.
    pub(super) fn decode(dtype: Dtype, bytes: &[u8], share: f64) -> Self {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        match dtype {
            Dtype::F32 => Self::Float(f64::from(f32::from_bits(bits as u32)), share),
            Dtype::F64 => Self::Float(f64::from_bits(bits), share),
            Dtype::F16 => Self::Float(f16::from_bits(bits as u16).to_f64(), share),
            Dtype::Bf16 => Self::Float(bf16::from_bits(bits as u16).to_f64(), share),
            _ => Self::Integer(wrapped_reference_element(dtype, i128::from(bits)), dtype),
        }
    }

    /// Returns the partial of a reduction whose first operand is this element. In an average the
    /// value of a float is multiplied by its share.
    pub(super) fn start_reduction(self, op: ReduceOp) -> Self {
        match self {
            Self::Float(value, share) if op == ReduceOp::Avg => Self::Float(value * share, share),
            other => other,
        }
    }

    /// Returns the partial of a reduction after its next operand. In an average the value of
    /// `next`, if a float, is multiplied by its share first.
    pub(super) fn combine(self, op: ReduceOp, next: Self) -> Self {
        match (self, next) {
            (Self::Float(a, share), Self::Float(b, next_share)) => {
                let value = match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Avg => a + b * next_share,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Prod => a * b,
                    ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => f64::NAN,
                };
                Self::Float(value, share)
            }
            (Self::Integer(a, dtype), Self::Integer(b, _)) => {
                let value = match op {
                    // The sum of truth values is their logical or.
                    ReduceOp::Sum if dtype == Dtype::Bool => a | b,
                    ReduceOp::Sum | ReduceOp::Avg => a.wrapping_add(b),
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Band => a & b,
                    ReduceOp::Bor => a | b,
                    ReduceOp::Bxor => a ^ b,
                };
                Self::Integer(wrapped_reference_element(dtype, value), dtype)
            }
            (same, _) => same,
        }
    }

    /// Returns the absolute difference of two elements; infinite if it is NaN or the types differ.
    pub(super) fn abs_difference(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Float(a, _), Self::Float(b, _)) => {
                let distance = (a - b).abs();
                if distance.is_nan() { f64::INFINITY } else { distance }
            }
            (Self::Integer(a, _), Self::Integer(b, _)) => a.abs_diff(*b) as f64,
            _ => f64::INFINITY,
        }
    }

    /// Returns the absolute value of a float, and 0 for an integer, which must be exact.
    pub(super) fn magnitude(&self) -> f64 {
        match self {
            Self::Float(value, _) => value.abs(),
            Self::Integer(..) => 0.0,
        }
    }
}

/// Returns the value that an integer of this type has with the low bits of `value`.
fn wrapped_reference_element(dtype: Dtype, value: i128) -> i128 {
    match dtype {
        Dtype::I8 => i128::from(value as i8),
        Dtype::I16 => i128::from(value as i16),
        Dtype::I32 => i128::from(value as i32),
        Dtype::I64 => i128::from(value as i64),
        Dtype::U16 => i128::from(value as u16),
        Dtype::U32 => i128::from(value as u32),
        Dtype::U64 => i128::from(value as u64),
        _ => i128::from(value as u8),
    }
}
