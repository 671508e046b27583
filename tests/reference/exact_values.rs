//! Values so small that any order of additions or multiplications is exact, and their reductions,
//! computed independently of the gateways' code.

use crate::SplitMix64;
use half::{bf16, f16};
use hier_collectives::descriptor::{Dtype, ReduceOp};

/// The operation and the element type of a collective, which say how small its values must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactValues {
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
}

impl ExactValues {
    /// Returns so many values, drawn from a seed.
    pub fn draw(self, seed: u64, count: u64) -> Vec<i64> {
        match (self.op, self.dtype) {
            (_, Dtype::Bool) => draw_each(seed, count, |value| value & 1),
            (ReduceOp::Prod, Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64) => {
                draw_each(seed, count, |value| 1 + (value & 1))
            }
            (ReduceOp::Prod, _) => {
                draw_each(seed, count, |value| [1, -1, 2, 1][(value & 3) as usize])
            }
            (_, Dtype::U8) => draw_each(seed, count, |value| value & 0xff),
            (_, Dtype::I8) => draw_each(seed, count, |value| i64::from(value as i8)),
            (_, Dtype::U16 | Dtype::U32 | Dtype::U64) => {
                draw_each(seed, count, |value| value & 0xffff)
            }
            (_, Dtype::Bf16) => draw_each(seed, count, |value| value % 16),
            (_, Dtype::F16) => draw_each(seed, count, |value| value % 128),
            _ => draw_each(seed, count, |value| value),
        }
    }

    /// Reduces the values of another rank into `total`, which has as many.
    pub fn reduce(self, total: &mut [i64], values: &[i64]) {
        match self.op {
            ReduceOp::Max => reduce_each(total, values, i64::max),
            ReduceOp::Min => reduce_each(total, values, i64::min),
            ReduceOp::Prod => reduce_each(total, values, i64::wrapping_mul),
            ReduceOp::Band => reduce_each(total, values, |total, value| total & value),
            ReduceOp::Bor => reduce_each(total, values, |total, value| total | value),
            ReduceOp::Bxor => reduce_each(total, values, |total, value| total ^ value),
            // The sum of truth values is their logical or.
            ReduceOp::Sum if self.dtype == Dtype::Bool => {
                reduce_each(total, values, |total, value| total | value);
            }
            ReduceOp::Sum | ReduceOp::Avg => {
                reduce_each(total, values, |total, value| total + value);
            }
        }
    }

    /// Returns the bytes of some values.
    pub fn encode(self, values: &[i64]) -> Vec<u8> {
        match self.dtype {
            Dtype::F32 => encode_each(values, |value| (value as f32).to_le_bytes()),
            Dtype::F64 => encode_each(values, |value| (value as f64).to_le_bytes()),
            Dtype::F16 => encode_each(values, |value| f16::from_f64(value as f64).to_le_bytes()),
            Dtype::Bf16 => encode_each(values, |value| bf16::from_f64(value as f64).to_le_bytes()),
            integer => match integer.size() {
                1 => encode_each(values, |value| [value as u8]),
                2 => encode_each(values, |value| (value as u16).to_le_bytes()),
                4 => encode_each(values, |value| (value as u32).to_le_bytes()),
                _ => encode_each(values, i64::to_le_bytes),
            },
        }
    }

    /// Returns the mean of the values of several ranks, each with its weight.
    pub fn mean(values: &[(Vec<i64>, f64)]) -> Vec<f64> {
        let total: f64 = values.iter().map(|(_, weight)| weight).sum();
        let mut mean = vec![0.0; values.first().map_or(0, |(values, _)| values.len())];
        for (values, weight) in values {
            for (mean, value) in mean.iter_mut().zip(values) {
                *mean += *value as f64 * (weight / total);
            }
        }
        mean
    }
}

/// Draws values of 16 bits and maps each of them. Each random number has four.
fn draw_each(seed: u64, count: u64, map: impl Fn(i64) -> i64) -> Vec<i64> {
    let mut dice = SplitMix64(seed);
    let mut values = vec![0; count.next_multiple_of(4) as usize];
    for values in values.as_chunks_mut::<4>().0 {
        let four = dice.roll();
        *values = [0, 16, 32, 48].map(|at| map(i64::from((four >> at) as i16)));
    }
    values.truncate(count as usize);
    values
}

/// Sets each total to its combination with the value beside it.
fn reduce_each(total: &mut [i64], values: &[i64], combine: impl Fn(i64, i64) -> i64) {
    for (total, value) in total.iter_mut().zip(values) {
        *total = combine(*total, *value);
    }
}

/// Returns the bytes of each value, one after the other.
fn encode_each<const SIZE: usize>(values: &[i64], encode: impl Fn(i64) -> [u8; SIZE]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * SIZE];
    for (element, value) in bytes.as_chunks_mut::<SIZE>().0.iter_mut().zip(values) {
        *element = encode(*value);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::reduce::dispatch_slices;

    /// The reduction by the kernels of gateways, in the order given.
    fn by_kernel(exact: ExactValues, contributions: &[Vec<u8>]) -> Vec<u8> {
        let inputs: Vec<(&[u8], f64)> = contributions.iter().map(|all| (&all[..], 1.0)).collect();
        let mut out = vec![0; contributions[0].len()];
        dispatch_slices(exact.op, exact.dtype, &mut out, &inputs).expect("fitting slices");
        out
    }

    #[test]
    fn kernels_reduce_exact_values_alike_in_any_order() {
        for dtype in Dtype::ALL {
            let ops = ReduceOp::ALL.into_iter().filter(|op| op.accepts(dtype));
            for op in ops.filter(|op| *op != ReduceOp::Avg) {
                let exact = ExactValues { op, dtype };
                let values: Vec<_> = (0..8).map(|rank| exact.draw(rank, 1001)).collect();
                let mut total = values[0].clone();
                values[1..].iter().for_each(|values| exact.reduce(&mut total, values));
                let mut bytes: Vec<_> = values.iter().map(|values| exact.encode(values)).collect();
                assert_eq!(by_kernel(exact, &bytes), exact.encode(&total), "{op} {dtype}");
                bytes.reverse();
                assert_eq!(by_kernel(exact, &bytes), exact.encode(&total), "{op} {dtype}");
            }
        }
    }
}
