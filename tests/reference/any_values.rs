//! Seeded contributions and the result they must give.

use crate::SplitMix64;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::reduce::dispatch_slices;
use std::sync::Arc;

/// A rank's contribution: any bits at all, so that NaN with payloads, infinities, zeros of
/// both signs and subnormals are among them; every eighth element is one of these on purpose.
pub fn contribution(dtype: Dtype, elements: u64, rank: u32, seed: u64) -> Vec<u8> {
    let random = SplitMix64(seed ^ (u64::from(rank) << 32) ^ elements);
    match dtype {
        Dtype::F32 => fill::<4>(elements, random, with_specials(8, 23, plain_f32)),
        Dtype::F64 => fill::<8>(elements, random, with_specials(11, 52, plain_f64)),
        Dtype::F16 => fill::<2>(elements, random, with_specials(5, 10, plain_f16)),
        Dtype::Bf16 => fill::<2>(elements, random, with_specials(8, 7, plain_bf16)),
        _ => integers(dtype, elements, random),
    }
}

/// A contribution of numbers at most 2 in magnitude, so that arithmetic in f64 comes close to any
/// result.
pub fn ordinary(dtype: Dtype, elements: u64, rank: u32, seed: u64) -> Vec<u8> {
    let random = SplitMix64(seed ^ (u64::from(rank) << 32) ^ elements);
    match dtype {
        Dtype::F32 => fill::<4>(elements, random, |_, random| plain_f32(random)),
        Dtype::F64 => fill::<8>(elements, random, |_, random| plain_f64(random)),
        Dtype::F16 => fill::<2>(elements, random, |_, random| plain_f16(random)),
        Dtype::Bf16 => fill::<2>(elements, random, |_, random| plain_bf16(random)),
        _ => integers(dtype, elements, random),
    }
}

/// Bytes that differ between places and between salts, so that none can stand in for another.
pub fn patterned(bytes: u64, salt: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9).wrapping_add(salt * 0x85eb) >> 7) as u8;
    (0..bytes).map(byte).collect()
}

/// Integers of any bits.
fn integers(dtype: Dtype, elements: u64, random: SplitMix64) -> Vec<u8> {
    match dtype.size() {
        1 => fill::<1>(elements, random, |_, random| random),
        2 => fill::<2>(elements, random, |_, random| random),
        4 => fill::<4>(elements, random, |_, random| random),
        _ => fill::<8>(elements, random, |_, random| random),
    }
}

/// Elements of `SIZE` bytes, from the bits that `bits` makes of an index and a random number.
fn fill<const SIZE: usize>(
    elements: u64,
    mut random: SplitMix64,
    bits: impl Fn(usize, u64) -> u64,
) -> Vec<u8> {
    let mut bytes = vec![0; elements as usize * SIZE];
    for (index, element) in bytes.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
        element.copy_from_slice(&bits(index, random.roll()).to_le_bytes()[..SIZE]);
    }
    bytes
}

/// Every eighth element a special float with these bits of exponent and mantissa, the others plain.
fn with_specials(
    exponent: u32,
    mantissa: u32,
    plain: impl Fn(u64) -> u64,
) -> impl Fn(usize, u64) -> u64 {
    move |index, random| match index % 8 {
        0 => special(random, exponent, mantissa),
        _ => plain(random),
    }
}

#[inline]
fn plain_f32(random: u64) -> u64 {
    u64::from(((random % 2001) as f32 / 1000.0 - 1.0).to_bits())
}

#[inline]
fn plain_f64(random: u64) -> u64 {
    ((random % 2001) as f64 / 1000.0 - 1.0).to_bits()
}

#[inline]
fn plain_f16(random: u64) -> u64 {
    0x3800 | (random & 0x87ff)
}

#[inline]
fn plain_bf16(random: u64) -> u64 {
    0x3f00 | (random & 0x80ff)
}

/// The elements of a float buffer.
///
/// # Panics
/// When the dtype is an integer one.
pub fn as_f64(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let read = |element: &[u8]| {
        let mut low = [0; 8];
        low[..element.len()].copy_from_slice(element);
        let bits = u64::from_le_bytes(low);
        match dtype {
            Dtype::F32 => f64::from(f32::from_bits(bits as u32)),
            Dtype::F64 => f64::from_bits(bits),
            Dtype::F16 => half::f16::from_bits(bits as u16).to_f64(),
            Dtype::Bf16 => half::bf16::from_bits(bits as u16).to_f64(),
            _ => panic!("{dtype} is no float"),
        }
    };
    bytes.chunks_exact(dtype.size() as usize).map(read).collect()
}

#[inline]
fn special(random: u64, exponent: u32, mantissa: u32) -> u64 {
    let sign = (random >> 63) << (exponent + mantissa);
    let top = ((1u64 << exponent) - 1) << mantissa;
    let low = random & ((1 << mantissa) - 1);
    match random % 4 {
        0 => sign,
        1 => sign | top,
        2 => sign | top | low,
        _ => sign | low,
    }
}

/// The result of two regions: each region's ranks in order, encoded, then the regions in order.
/// `contributions` and `weights` are by rank; the first `east` ranks are the first region's.
pub fn expected(
    op: ReduceOp,
    dtype: Dtype,
    contributions: &[Arc<Vec<u8>>],
    weights: &[f64],
    east: usize,
) -> Vec<u8> {
    let reduce = |inputs: &[(&[u8], f64)]| match inputs {
        // A region of one rank hands its contribution over as it is.
        [(alone, _)] => alone.to_vec(),
        _ => {
            let mut out = vec![0; inputs[0].0.len()];
            dispatch_slices(op, dtype, &mut out, inputs).expect("fitting slices");
            out
        }
    };
    let inputs: Vec<(&[u8], f64)> =
        contributions.iter().map(|bytes| &bytes[..]).zip(weights.iter().copied()).collect();
    let (first, second) = inputs.split_at(east);
    let weight = |inputs: &[(&[u8], f64)]| inputs.iter().map(|(_, weight)| weight).sum();
    let (left, right) = (reduce(first), reduce(second));
    reduce(&[(&left, weight(first)), (&right, weight(second))])
}
