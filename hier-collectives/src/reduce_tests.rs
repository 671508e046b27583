//! The kernels against a scalar reference, on awkward values at awkward addresses.

use super::*;
use proptest::prelude::*;

/// An element as its bits in a `u64`, combined one by one.
fn scalar(op: ReduceOp, dtype: Dtype, inputs: &[(u64, f64)]) -> u64 {
    match dtype {
        Dtype::F32 => {
            let load = |bits: u64| f32::from_bits(bits as u32);
            let value = match op {
                ReduceOp::Avg => mean(inputs, |bits| f64::from(load(bits))) as f32,
                _ => fold_float(inputs, load, |a, b| float_op(op, a, b)),
            };
            u64::from(if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() })
        }
        Dtype::F64 => {
            let value = match op {
                ReduceOp::Avg => mean(inputs, f64::from_bits),
                _ => fold_float(inputs, f64::from_bits, |a, b| float_op(op, a, b)),
            };
            if value.is_nan() { 0x7ff8_0000_0000_0000 } else { value.to_bits() }
        }
        Dtype::F16 => {
            let value = half_value(op, inputs, |bits| f16::from_bits(bits as u16).to_f32());
            let half = f16::from_f32(value);
            u64::from(if half.is_nan() { 0x7e00 } else { half.to_bits() })
        }
        Dtype::Bf16 => {
            let value = half_value(op, inputs, |bits| bf16::from_bits(bits as u16).to_f32());
            let half = bf16::from_f32(value);
            u64::from(if half.is_nan() { 0x7fc0 } else { half.to_bits() })
        }
        Dtype::I32 => {
            let fold = inputs
                .iter()
                .map(|(bits, _)| i64::from(*bits as i32))
                .reduce(|a, b| i64::from(int_op(op, i128::from(a), i128::from(b)) as i32));
            u64::from(fold.unwrap_or(0) as u32)
        }
        Dtype::I64 => {
            let fold = inputs.iter().map(|(bits, _)| *bits as i64);
            fold.reduce(|a, b| int_op(op, i128::from(a), i128::from(b)) as i64).unwrap_or(0) as u64
        }
        Dtype::U8 => {
            let fold = inputs.iter().map(|(bits, _)| *bits as u8);
            let fold = fold.reduce(|a, b| int_op(op, i128::from(a), i128::from(b)) as u8);
            u64::from(fold.unwrap_or(0))
        }
    }
}

fn int_op(op: ReduceOp, a: i128, b: i128) -> i128 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Avg => unreachable!("not on integers"),
    }
}

trait Scalar: Copy + PartialOrd + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {
    fn nan(self) -> bool;
    fn negative(self) -> bool;
}
impl Scalar for f32 {
    fn nan(self) -> bool {
        self.is_nan()
    }
    fn negative(self) -> bool {
        self.is_sign_negative()
    }
}
impl Scalar for f64 {
    fn nan(self) -> bool {
        self.is_nan()
    }
    fn negative(self) -> bool {
        self.is_sign_negative()
    }
}

fn float_op<F: Scalar>(op: ReduceOp, a: F, b: F) -> F {
    let (low, high) = match a.partial_cmp(&b) {
        _ if a.nan() => (a, a),
        _ if b.nan() => (b, b),
        Some(std::cmp::Ordering::Less) => (a, b),
        Some(std::cmp::Ordering::Greater) => (b, a),
        _ if a.negative() => (a, b),
        _ => (b, a),
    };
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Min => low,
        ReduceOp::Max => high,
        ReduceOp::Avg => unreachable!("has a path of its own"),
    }
}

fn fold_float<F: Scalar>(
    inputs: &[(u64, f64)],
    load: impl Fn(u64) -> F,
    combine: impl Fn(F, F) -> F,
) -> F {
    inputs.iter().map(|(bits, _)| load(*bits)).reduce(combine).expect("an input")
}

fn mean(inputs: &[(u64, f64)], load: impl Fn(u64) -> f64) -> f64 {
    let counted: Vec<_> = inputs.iter().filter(|(_, weight)| *weight != 0.0).collect();
    let total: f64 = inputs.iter().map(|(_, weight)| weight).sum();
    match counted[..] {
        [] => f64::NAN,
        [(bits, _)] => load(*bits),
        _ => counted.iter().fold(0.0, |sum, (bits, w)| sum + load(*bits) * (w / total)),
    }
}

fn half_value(op: ReduceOp, inputs: &[(u64, f64)], load: impl Fn(u64) -> f32 + Copy) -> f32 {
    if op != ReduceOp::Avg {
        return fold_float(inputs, load, |a, b| float_op(op, a, b));
    }
    let counted: Vec<_> = inputs.iter().filter(|(_, weight)| *weight != 0.0).collect();
    let total: f64 = inputs.iter().map(|(_, weight)| weight).sum();
    match counted[..] {
        [] => f32::NAN,
        [(bits, _)] => load(*bits),
        _ => counted.iter().fold(0.0, |sum, (bits, w)| sum + load(*bits) * (w / total) as f32),
    }
}

/// Bits of every kind: ordinary, NaN with payloads, infinities, zeros, subnormals.
fn bits(dtype: Dtype) -> impl Strategy<Value = u64> {
    let (exponent, mantissa) = match dtype {
        Dtype::F64 => (11, 52),
        Dtype::F16 => (5, 10),
        Dtype::Bf16 => (8, 7),
        _ => (8, 23),
    };
    (any::<u64>(), 0..6u8).prop_map(move |(random, kind)| {
        let sign = (random >> 63) << (exponent + mantissa);
        let top = ((1u64 << exponent) - 1) << mantissa;
        let low = random & ((1 << mantissa) - 1);
        match kind {
            0 => sign,
            1 => sign | top,
            2 => sign | top | low,
            3 => sign | low,
            _ => random,
        }
    })
}

type Case = (ReduceOp, Dtype, Vec<(Vec<u64>, f64)>, usize);

fn cases() -> impl Strategy<Value = Case> {
    (0..5usize, 0..7usize, 1..6usize, 0..1500usize, 0..9usize).prop_flat_map(
        |(op, dtype, operands, elements, shift)| {
            let (op, dtype) = (ReduceOp::ALL[op], Dtype::ALL[dtype]);
            let op = if op.accepts(dtype) { op } else { ReduceOp::Sum };
            let column = proptest::collection::vec(bits(dtype), elements);
            let weight = prop_oneof![Just(0.0), Just(1.0), 0.001..1e6f64];
            let operands = proptest::collection::vec((column, weight), operands);
            (Just(op), Just(dtype), operands, Just(shift))
        },
    )
}

/// The elements' bytes at an address `shift` bytes past any alignment.
fn pack(column: &[u64], size: usize, shift: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; shift];
    for bits in column {
        bytes.extend(&bits.to_le_bytes()[..size]);
    }
    bytes
}

proptest! {
    #[test]
    fn kernels_equal_the_scalar_reference((op, dtype, operands, shift) in cases()) {
        let size = dtype.size() as usize;
        let packed: Vec<_> =
            operands.iter().map(|(column, weight)| (pack(column, size, shift), *weight)).collect();
        let slices: Vec<_> =
            packed.iter().map(|(bytes, weight)| (&bytes[shift..], *weight)).collect();
        let elements = operands[0].0.len();
        let mut out = vec![0u8; shift + elements * size];
        prop_assert_eq!(reduce_slices(op, dtype, &mut out[shift..], &slices), Ok(()));
        for index in 0..elements {
            let inputs: Vec<_> = operands.iter().map(|(c, w)| (c[index], *w)).collect();
            let mut bytes = [0u8; 8];
            bytes[..size].copy_from_slice(&out[shift + index * size..][..size]);
            let want = scalar(op, dtype, &inputs);
            prop_assert_eq!(
                u64::from_le_bytes(bytes), want, "{} {} element {}: {:x?}", op, dtype, index, inputs
            );
        }
    }

    /// The engine reduces each arriving range by itself.
    #[test]
    fn cutting_the_range_changes_no_bit((op, dtype, operands, _) in cases(), at in 0.0..1.0f64) {
        let size = dtype.size() as usize;
        let packed: Vec<_> =
            operands.iter().map(|(column, weight)| (pack(column, size, 0), *weight)).collect();
        let whole: Vec<_> = packed.iter().map(|(bytes, w)| (&bytes[..], *w)).collect();
        let elements = operands[0].0.len();
        let mut one = vec![0u8; elements * size];
        prop_assert_eq!(reduce_slices(op, dtype, &mut one, &whole), Ok(()));
        let cut = (elements as f64 * at) as usize * size;
        let mut two = vec![0u8; elements * size];
        let (head, tail) = two.split_at_mut(cut);
        let heads: Vec<_> = whole.iter().map(|(bytes, w)| (&bytes[..cut], *w)).collect();
        let tails: Vec<_> = whole.iter().map(|(bytes, w)| (&bytes[cut..], *w)).collect();
        prop_assert_eq!(reduce_slices(op, dtype, head, &heads), Ok(()));
        prop_assert_eq!(reduce_slices(op, dtype, tail, &tails), Ok(()));
        prop_assert_eq!(one, two);
    }
}

#[test]
fn an_average_of_the_largest_floats_does_not_overflow() {
    let max = f32::MAX.to_le_bytes();
    let mut out = [0; 4];
    let operands = [(&max[..], 5.0), (&max[..], 3.0), (&max[..], 1.0)];
    assert_eq!(reduce_slices(ReduceOp::Avg, Dtype::F32, &mut out, &operands), Ok(()));
    assert_eq!(f32::from_le_bytes(out), f32::MAX);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut out = [0; 8];
    let refused = |out: &mut [u8], op, dtype, operands: &[(&[u8], f64)]| {
        reduce_slices(op, dtype, out, operands).is_err()
    };
    assert!(refused(&mut out, ReduceOp::Sum, Dtype::F32, &[(&[0; 4], 1.0)]));
    assert!(refused(&mut out[..6], ReduceOp::Sum, Dtype::F32, &[(&[0; 6], 1.0)]));
    assert!(refused(&mut out, ReduceOp::Sum, Dtype::F32, &[]));
    assert!(refused(&mut out, ReduceOp::Avg, Dtype::I32, &[(&[0; 8], 1.0)]));
}
