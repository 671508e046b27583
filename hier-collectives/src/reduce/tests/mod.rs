use super::dispatch::dispatch_dtype;
use super::element::{Bf16Element, Element, F16Element};
use super::fold::{FoldPass, folds_by_wide_vectors};
use super::*;
use crate::descriptor::{Dtype, ReduceOp};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;

/// Elements of one operand, eight bytes of noise each, cut to the dtype's size when laid out.
type Noise = Vec<u64>;

/// The four floats whose bits of interest differ, then everything else.
fn interesting(dtype: Dtype) -> Vec<u64> {
    let (sign, infinity, least_normal) = match dtype {
        Dtype::F32 => (1 << 31, 0x7f80_0000, 0x0080_0000),
        Dtype::F64 => (1 << 63, 0x7ff0 << 48, 1 << 52),
        Dtype::F16 => (1 << 15, 0x7c00, 0x0400),
        Dtype::Bf16 => (1 << 15, 0x7f80, 0x0080),
        Dtype::I8 => (1 << 7, (1 << 7) - 1, 1),
        Dtype::I16 => (1 << 15, (1 << 15) - 1, 1),
        Dtype::I32 => (1 << 31, (1 << 31) - 1, 1),
        Dtype::I64 => (1 << 63, (1 << 63) - 1, 1),
        Dtype::U8 => (1 << 7, 255, 1),
        Dtype::U16 => (1 << 15, (1 << 16) - 1, 1),
        Dtype::U32 => (1 << 31, (1 << 32) - 1, 1),
        Dtype::U64 => (1 << 63, (1 << 63) - 1, 1),
        Dtype::Bool => (1, 2, 1),
    };
    // Zero, least and greatest subnormal, least normal, greatest finite, infinity, NaNs.
    let magnitudes = [0, 1, least_normal - 1, least_normal, infinity - 1, infinity, infinity + 1];
    let quiet = infinity | (infinity >> 1) | 5;
    magnitudes.into_iter().chain([quiet]).flat_map(|m: u64| [m, m | sign]).collect()
}

fn element(dtype: Dtype) -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), select(interesting(dtype))]
}

#[derive(Debug, Clone)]
struct Case {
    op: ReduceOp,
    dtype: Dtype,
    operands: Vec<(Noise, f64)>,
    /// Distance of each buffer from an aligned address, the output's last.
    offsets: Vec<usize>,
}

fn cases() -> impl Strategy<Value = Case> {
    let dtype_op = (select(Dtype::ALL.to_vec()), select(ReduceOp::ALL.to_vec()))
        .prop_filter("an undefined reduction", |(dtype, op)| op.accepts(*dtype));
    // More than a block and a half of every dtype; more operands than one pass takes.
    (dtype_op, 0..800_usize, 1..=8_usize).prop_flat_map(|((dtype, op), elements, count)| {
        let weight = prop_oneof![3 => 1.0..100.0, 1 => Just(0.0), 1 => Just(1.0)];
        let operand = (prop::collection::vec(element(dtype), elements), weight);
        let operands = prop::collection::vec(operand, count);
        let offsets = prop::collection::vec(0..8_usize, count + 1);
        (operands, offsets).prop_map(move |(operands, offsets)| Case {
            op,
            dtype,
            operands,
            offsets,
        })
    })
}

fn lay_out(dtype: Dtype, noise: &[u64]) -> Vec<u8> {
    let size = dtype.size() as usize;
    noise.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect()
}

impl Case {
    fn elements(&self) -> usize {
        self.operands[0].0.len()
    }

    /// Runs the kernel on elements `range` of the case's buffers at its odd addresses.
    fn run(&self, range: std::ops::Range<usize>, wide: bool) -> Vec<u8> {
        let size = self.dtype.size() as usize;
        let place = |(index, (noise, _)): (usize, &(Noise, f64))| {
            let mut bytes = vec![0xa5; self.offsets[index]];
            bytes.extend(lay_out(self.dtype, &noise[range.clone()]));
            bytes
        };
        let buffers: Vec<Vec<u8>> = self.operands.iter().enumerate().map(place).collect();
        let operand = |(index, bytes): (usize, &Vec<u8>)| Operand {
            bytes: bytes[self.offsets[index]..].as_ptr(),
            weight: self.operands[index].1,
        };
        let operands: Vec<Operand> = buffers.iter().enumerate().map(operand).collect();
        let offset = self.offsets[operands.len()];
        let bytes = range.len() * size;
        let mut out = vec![0x5a; offset + bytes + 16];
        let reduction = FoldPass {
            out: out[offset..].as_mut_ptr(),
            operands: &operands,
            start: 0,
            elements: range.len(),
            wide,
        };
        // SAFETY: every buffer holds the range, the output is a vector of its own, and `wide`
        // is what the machine has.
        unsafe { dispatch_dtype(self.op, self.dtype, reduction) };
        assert!(out[..offset].iter().all(|byte| *byte == 0x5a), "wrote before the output");
        assert!(out[offset + bytes..].iter().all(|byte| *byte == 0x5a), "wrote past the output");
        out[offset..offset + bytes].to_vec()
    }

    fn expected(&self) -> Vec<u8> {
        let column = |index: usize| self.operands.iter().map(move |(noise, w)| (noise[index], *w));
        let value = |index| reference(self.op, self.dtype, &column(index).collect::<Vec<_>>());
        lay_out(self.dtype, &(0..self.elements()).map(value).collect::<Vec<_>>())
    }
}

/// One element the slow way: a scalar at a time, `half`'s conversions, plain branches.
fn reference(op: ReduceOp, dtype: Dtype, column: &[(u64, f64)]) -> u64 {
    let bits = column.iter().map(|(bits, _)| *bits);
    match (dtype, op) {
        (Dtype::F32, ReduceOp::Avg) => {
            single(mean(column, |bits| f64::from(f32::from_bits(bits as u32))) as f32)
        }
        (Dtype::F32, _) => single(fold32(op, bits.map(|bits| f32::from_bits(bits as u32)))),
        (Dtype::F64, ReduceOp::Avg) => double(mean(column, f64::from_bits)),
        (Dtype::F64, _) => double(bits.map(f64::from_bits).reduce(scalar64(op)).unwrap()),
        (Dtype::F16, _) => {
            let decode_element = |bits: u64| f16::from_bits(bits as u16).to_f32();
            let value = sixteen(op, column, decode_element);
            if value.is_nan() { 0x7e00 } else { f16::from_f32(value).to_bits().into() }
        }
        (Dtype::Bf16, _) => {
            let decode_element = |bits: u64| bf16::from_bits(bits as u16).to_f32();
            let value = sixteen(op, column, decode_element);
            if value.is_nan() { 0x7fc0 } else { bf16::from_f32(value).to_bits().into() }
        }
        (Dtype::I8, _) => integer(op, bits.map(|bits| i128::from(bits as i8))),
        (Dtype::I16, _) => integer(op, bits.map(|bits| i128::from(bits as i16))),
        (Dtype::I32, _) => integer(op, bits.map(|bits| i128::from(bits as i32))),
        (Dtype::I64, _) => integer(op, bits.map(|bits| i128::from(bits as i64))),
        (Dtype::U8, _) => integer(op, bits.map(|bits| i128::from(bits as u8))),
        (Dtype::U16, _) => integer(op, bits.map(|bits| i128::from(bits as u16))),
        (Dtype::U32, _) => integer(op, bits.map(|bits| i128::from(bits as u32))),
        (Dtype::U64, _) => integer(op, bits.map(i128::from)),
        (Dtype::Bool, _) => truth(op, bits.map(|bits| bits as u8 != 0)),
    }
}

fn single(value: f32) -> u64 {
    if value.is_nan() { 0x7fc0_0000 } else { value.to_bits().into() }
}

fn double(value: f64) -> u64 {
    if value.is_nan() { 0x7ff8 << 48 } else { value.to_bits() }
}

/// Wraps at 128 bits, so its low bits are right for narrower integers too.
fn integer(op: ReduceOp, values: impl Iterator<Item = i128>) -> u64 {
    let folded = values.reduce(|a, b| match op {
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Band => a & b,
        ReduceOp::Bor => a | b,
        ReduceOp::Bxor => a ^ b,
        ReduceOp::Avg => unreachable!("filtered"),
    });
    folded.unwrap() as u64
}

/// By counting instead of combining.
fn truth(op: ReduceOp, values: impl Iterator<Item = bool>) -> u64 {
    let values: Vec<bool> = values.collect();
    let ones = values.iter().filter(|value| **value).count();
    u64::from(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::Bor => ones > 0,
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::Band => ones == values.len(),
        ReduceOp::Bxor => ones % 2 == 1,
        ReduceOp::Avg => unreachable!("filtered"),
    })
}

fn scalar64(op: ReduceOp) -> impl Fn(f64, f64) -> f64 {
    move |a, b| match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Min if a == 0.0 && b == 0.0 => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        ReduceOp::Max if a == 0.0 && b == 0.0 => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        ReduceOp::Min => {
            if a < b {
                a
            } else {
                b
            }
        }
        ReduceOp::Max => {
            if a > b {
                a
            } else {
                b
            }
        }
        ReduceOp::Avg | ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => {
            unreachable!("computed by `mean`, or filtered")
        }
    }
}

/// Sums and products rounded to f32 at each step; comparisons are the same in either width.
fn fold32(op: ReduceOp, values: impl Iterator<Item = f32>) -> f32 {
    let folded = values.reduce(|a, b| match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        _ => scalar64(op)(a.into(), b.into()) as f32,
    });
    folded.unwrap()
}

fn sixteen(op: ReduceOp, column: &[(u64, f64)], decode_element: impl Fn(u64) -> f32) -> f32 {
    if op != ReduceOp::Avg {
        return fold32(op, column.iter().map(|(bits, _)| decode_element(*bits)));
    }
    let total: f64 = column.iter().map(|(_, weight)| weight).sum();
    let live = column.iter().filter(|(_, weight)| *weight > 0.0);
    let terms = live.map(|(bits, weight)| (weight / total) as f32 * decode_element(*bits));
    terms.reduce(|a, b| a + b).unwrap_or(f32::NAN)
}

fn mean(column: &[(u64, f64)], decode_element: impl Fn(u64) -> f64) -> f64 {
    let total: f64 = column.iter().map(|(_, weight)| weight).sum();
    let live = column.iter().filter(|(_, weight)| *weight > 0.0);
    let terms = live.map(|(bits, weight)| weight / total * decode_element(*bits));
    let bounded = |a: f64, b: f64| {
        let finite = a.is_finite() && b.is_finite();
        if finite { (a + b).clamp(f64::MIN, f64::MAX) } else { a + b }
    };
    terms.reduce(bounded).unwrap_or(f64::NAN)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn every_element_equals_the_scalar_reference_with_any_vectors(case in cases()) {
        let expected = case.expected();
        prop_assert_eq!(&case.run(0..case.elements(), false), &expected);
        prop_assert_eq!(&case.run(0..case.elements(), folds_by_wide_vectors()), &expected);
    }

    #[test]
    fn a_range_may_be_cut_anywhere(case in cases(), cut: prop::sample::Index) {
        let cut = cut.index(case.elements() + 1);
        let mut pieces = case.run(0..cut, folds_by_wide_vectors());
        pieces.extend(case.run(cut..case.elements(), folds_by_wide_vectors()));
        prop_assert_eq!(pieces, case.run(0..case.elements(), folds_by_wide_vectors()));
    }

    #[test]
    fn a_mean_of_finite_numbers_lies_between_them(
        operands in prop::collection::vec(
            (any::<f64>().prop_filter("finite", |x| x.is_finite()), 1e-3..1e3),
            1..12,
        )
    ) {
        let columns: Vec<([u8; 8], f64)> =
            operands.iter().map(|(x, weight)| (x.to_le_bytes(), *weight)).collect();
        let columns: Vec<(&[u8], f64)> = columns.iter().map(|(x, w)| (&x[..], *w)).collect();
        let mut out = [0; 8];
        dispatch_slices(ReduceOp::Avg, Dtype::F64, &mut out, &columns).unwrap();
        let mean = f64::from_le_bytes(out);
        let least = operands.iter().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
        let greatest = operands.iter().map(|(x, _)| *x).fold(f64::NEG_INFINITY, f64::max);
        let slack = 1e-14 * least.abs().max(greatest.abs()) + f64::from_bits(24);
        prop_assert!(mean.is_finite());
        prop_assert!(least - slack <= mean && mean <= greatest + slack, "{mean}");
    }
}

fn one(op: ReduceOp, dtype: Dtype, column: &[(u64, f64)]) -> u64 {
    let size = dtype.size() as usize;
    let operands: Vec<([u8; 8], f64)> =
        column.iter().map(|(bits, weight)| (bits.to_le_bytes(), *weight)).collect();
    let operands: Vec<(&[u8], f64)> = operands.iter().map(|(x, w)| (&x[..size], *w)).collect();
    let mut out = [0; 8];
    dispatch_slices(op, dtype, &mut out[..size], &operands).unwrap();
    u64::from_le_bytes(out)
}

/// The bits of the canonical NaN and of infinity for each float dtype.
const FLOAT_SPECIALS: [(Dtype, u64, u64); 4] = [
    (Dtype::F32, 0x7fc0_0000, 0x7f80_0000),
    (Dtype::F64, 0x7ff8 << 48, 0x7ff0 << 48),
    (Dtype::F16, 0x7e00, 0x7c00),
    (Dtype::Bf16, 0x7fc0, 0x7f80),
];

#[test]
fn every_nan_is_the_canonical_one() {
    for (dtype, canonical, infinity) in FLOAT_SPECIALS {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(dtype)) {
            let signalling = infinity + 1;
            assert_eq!(one(op, dtype, &[(signalling, 1.0)]), canonical, "{dtype} {op}");
            assert_eq!(one(op, dtype, &[(0, 1.0), (canonical | 3, 1.0)]), canonical);
            assert_eq!(one(op, dtype, &[(signalling, 1.0), (0, 1.0), (0, 2.0)]), canonical);
        }
        let sign = 1 << (dtype.size() * 8 - 1);
        let opposite = [(infinity, 1.0), (infinity | sign, 1.0)];
        assert_eq!(one(ReduceOp::Sum, dtype, &opposite), canonical);
        assert_eq!(one(ReduceOp::Prod, dtype, &[(infinity, 1.0), (0, 1.0)]), canonical);
    }
}

#[test]
fn the_sign_of_zero_orders_and_survives() {
    for (dtype, ..) in FLOAT_SPECIALS {
        let minus = 1 << (dtype.size() * 8 - 1);
        for column in [[(0, 1.0), (minus, 1.0)], [(minus, 1.0), (0, 1.0)]] {
            assert_eq!(one(ReduceOp::Min, dtype, &column), minus);
            assert_eq!(one(ReduceOp::Max, dtype, &column), 0);
            assert_eq!(one(ReduceOp::Sum, dtype, &column), 0);
        }
        assert_eq!(one(ReduceOp::Sum, dtype, &[(minus, 1.0), (minus, 1.0)]), minus);
        assert_eq!(one(ReduceOp::Avg, dtype, &[(minus, 1.0), (minus, 2.0)]), minus);
    }
}

#[test]
fn an_operand_without_weight_is_not_read() {
    for (dtype, canonical, infinity) in FLOAT_SPECIALS {
        let column = [(canonical, 0.0), (5, 2.0), (infinity, 0.0)];
        assert_eq!(one(ReduceOp::Avg, dtype, &column), 5, "a subnormal, unchanged");
        assert_eq!(one(ReduceOp::Avg, dtype, &[(5, 0.0), (6, 0.0)]), canonical);
        // The least weight there is still counts for an infinity.
        let column = [(0, f64::MAX / 2.0), (infinity, f64::from_bits(1))];
        assert_eq!(one(ReduceOp::Avg, dtype, &column), infinity);
    }
}

#[test]
fn the_mean_of_the_greatest_numbers_is_finite() {
    for (dtype, _, infinity) in FLOAT_SPECIALS {
        let sign = 1 << (dtype.size() * 8 - 1);
        let greatest = infinity - 1;
        for count in 1..70_u32 {
            // Only f64 is accumulated without bits to spare.
            let ulps = if dtype == Dtype::F64 { u64::from(count) } else { 0 };
            for (bits, weight) in [(greatest, 0.1), (greatest | sign, f64::from(count))] {
                let mean = one(ReduceOp::Avg, dtype, &vec![(bits, weight); count as usize]);
                assert!(mean <= bits && bits - mean <= ulps, "{dtype} x {count}: {mean:x}");
            }
        }
        assert_eq!(one(ReduceOp::Avg, dtype, &[(infinity, 1.0), (0, 1.0)]), infinity);
    }
}

#[test]
fn sixteen_bit_floats_are_rounded_once() {
    // 2048 + 1 is a tie in f16 and rounds to 2048; three of them at once make 2052.
    let [big, one_] = [f16::from_f32(2048.0), f16::from_f32(1.0)].map(|x| u64::from(x.to_bits()));
    let column = [(big, 1.0), (one_, 1.0), (one_, 1.0), (one_, 1.0)];
    let expected = u64::from(f16::from_f32(2052.0).to_bits());
    assert_eq!(one(ReduceOp::Sum, Dtype::F16, &column), expected);
}

#[test]
fn weights_without_a_mean_give_nan() {
    let value = 1.0_f64.to_le_bytes();
    for weight in [-1.0, f64::NAN, f64::INFINITY, f64::MAX] {
        let operand = |weight| Operand { bytes: value.as_ptr(), weight };
        let operands = [operand(f64::MAX), operand(weight)];
        let mut out = [0; 8];
        // SAFETY: each buffer holds one element.
        unsafe { reduce(ReduceOp::Avg, Dtype::F64, out.as_mut_ptr(), &operands, 1) };
        assert_eq!(u64::from_le_bytes(out), 0x7ff8 << 48, "{weight}");
    }
}

#[test]
fn an_undefined_reduction_is_refused_and_leaves_the_output() {
    let (op, dtype) = (ReduceOp::Sum, Dtype::I32);
    let mut out = [7; 8];
    for op in ReduceOp::ALL {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| !op.accepts(*dtype)) {
            let refused = dispatch_slices(op, dtype, &mut out, &[(&[0; 8], 1.0)]);
            let why = refused.expect_err("undefined").to_string();
            assert!(why.starts_with(&format!("{op} is not defined on {dtype}; ")), "{why}");
        }
    }
    assert_eq!(dispatch_slices(op, dtype, &mut out, &[]), Err(ReduceError::NoOperand));
    let ragged = dispatch_slices(op, dtype, &mut out[..7], &[(&[0; 7], 1.0)]);
    assert_eq!(ragged, Err(ReduceError::Ragged { bytes: 7, dtype }));
    let short = dispatch_slices(op, dtype, &mut out, &[(&[0; 8], 1.0), (&[0; 4], 1.0)]);
    assert_eq!(short, Err(ReduceError::Length { index: 1, got: 4, want: 8 }));
    let weight = dispatch_slices(ReduceOp::Avg, Dtype::F32, &mut out, &[(&[0; 8], -1.0)]);
    assert_eq!(weight, Err(ReduceError::Weight { index: 0, weight: -1.0 }));
    assert_eq!(out, [7; 8]);
}

/// Every 16-bit float, its neighbours' midpoints, and one step of `f32` to either side.
fn near_every<T>(to_f32: impl Fn(u16) -> T) -> Vec<f32>
where
    f32: From<T>,
{
    let exact = |bits| f32::from(to_f32(bits));
    let around = |bits: u16| {
        let (low, high) = (exact(bits), exact(bits.wrapping_add(1)));
        let middle = (low.to_bits() / 2).wrapping_add(high.to_bits() / 2);
        [low.to_bits(), middle, middle.wrapping_sub(1), middle + 1, middle + 2].map(f32::from_bits)
    };
    (0..=u16::MAX).flat_map(around).collect()
}

#[test]
fn half_conversions_equal_those_of_the_half_crate() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (F16Element::decode_element(bits), f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits}");
        let (ours, theirs) = (Bf16Element::decode_element(bits), bf16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits}");
    }
    for value in near_every(f16::from_bits) {
        let expected = if value.is_nan() { 0x7e00 } else { f16::from_f32(value).to_bits() };
        assert_eq!(F16Element::encode_element(value), expected, "{value:e}");
    }
    for value in near_every(bf16::from_bits) {
        let expected = if value.is_nan() { 0x7fc0 } else { bf16::from_f32(value).to_bits() };
        assert_eq!(Bf16Element::encode_element(value), expected, "{value:e}");
        let expected = if value.is_nan() { 0x7e00 } else { f16::from_f32(value).to_bits() };
        assert_eq!(F16Element::encode_element(value), expected, "{value:e}");
    }
}
