//! Speed of the reduction kernels beside a plain loop in the same run.
//!
//! `cargo bench -p hier-collectives --bench reduce [-- FILTER]` runs it on one thread. GB/s counts
//! every byte read and written. `ratio` is the speed relative to a plain f32 sum in safe Rust over
//! as many aligned buffers of the same size, in turn with the kernel. The program fails where the
//! f32 sum of eight operands does not reach [`SPEED_RATIO_MIN`].
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(unsafe_code, reason = "the plain loop is compiled for AVX2 too, to be no straw man")]

use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::reduce::{Operand, reduce};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// 100 ms: the least time for which the speed of a reduction kernel is measured.
const MEASURED_TIME_MIN: Duration = Duration::from_millis(100);

/// 0.7 of a plain loop's speed: the least that the reduction of eight operands must reach, for
/// buffers of [`JUDGED_BYTES_MIN`] and more.
const SPEED_RATIO_MIN: f64 = 0.7;
/// 1 MiB, the shortest buffer that is held to [`SPEED_RATIO_MIN`].
const JUDGED_BYTES_MIN: usize = 1 << 20;

fn main() -> ExitCode {
    let mut good = true;
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let filter = filter.unwrap_or_default();
    for bytes in [1_400, 1 << 20, 64 << 20] {
        let inputs: Vec<Vec<u8>> = (0..8).map(|seed| values(bytes + 1, seed)).collect();
        for operands in [2, 8] {
            println!("\n{bytes} bytes, {operands} operands         plain f32 loop   ratio");
            for (dtype, op) in cases().filter(|(d, o)| format!("{d} {o}").contains(&filter)) {
                let [kernel, plain] = speeds(op, dtype, &inputs[..operands]);
                let ratio = kernel / plain;
                println!("{dtype:>5} {op:4} {kernel:7.2} GB/s   {plain:9.2} GB/s   {ratio:5.2}");
                let judged = operands == 8 && bytes >= JUDGED_BYTES_MIN;
                if judged && (dtype, op) == (Dtype::F32, ReduceOp::Sum) && ratio < SPEED_RATIO_MIN {
                    println!("TOO SLOW: {ratio:.2} where {SPEED_RATIO_MIN} is the least");
                    good = false;
                }
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns every pair of a dtype and a reduce operation that is defined on it.
fn cases() -> impl Iterator<Item = (Dtype, ReduceOp)> {
    let pairs = Dtype::ALL.into_iter().flat_map(|d| ReduceOp::ALL.into_iter().map(move |o| (d, o)));
    pairs.filter(|(dtype, op)| op.accepts(*dtype))
}

/// Median GB/s of the kernel and of the plain loop, in turn, so that both have the same conditions.
fn speeds(op: ReduceOp, dtype: Dtype, inputs: &[Vec<u8>]) -> [f64; 2] {
    let bytes = inputs[0].len() - 1;
    let elements = bytes / dtype.size() as usize;
    let operands: Vec<Operand> = inputs.iter().map(|input| operand(input)).collect();
    let mut out = vec![0_u8; bytes + 1];
    let plain_inputs: Vec<Vec<f32>> = inputs.iter().map(|_| vec![1.0; bytes / 4]).collect();
    let mut plain_out = vec![0_f32; bytes / 4];

    let moved = bytes * (inputs.len() + 1);
    let batch = ((4 << 20) / moved).max(1);
    let mut seconds = [Vec::new(), Vec::new()];
    let begin = Instant::now();
    while begin.elapsed() < MEASURED_TIME_MIN || seconds[0].len() < 5 {
        let start = Instant::now();
        for _ in 0..batch {
            let out = black_box(&mut out[1..]).as_mut_ptr();
            // SAFETY: every buffer has `bytes` bytes after its first.
            unsafe { reduce(op, dtype, out, black_box(&operands), elements) }
        }
        seconds[0].push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for _ in 0..batch {
            plain_fastest(black_box(&mut plain_out), black_box(&plain_inputs));
        }
        seconds[1].push(start.elapsed().as_secs_f64());
    }
    seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        (moved * batch) as f64 / seconds[seconds.len() / 2] / 1e9
    })
}

/// The buffer from its second byte on, since data from a network are not aligned.
fn operand(input: &[u8]) -> Operand {
    Operand { bytes: input[1..].as_ptr(), weight: 1.0 }
}

/// Bytes whose sums and products are ordinary numbers in each float dtype.
fn values(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next() & 0x03 | 0x3c).collect()
}

/// Runs the plain loop, compiled for AVX2 where the machine has it.
fn plain_fastest(out: &mut [f32], inputs: &[Vec<f32>]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        return unsafe { plain_avx2(out, inputs) };
    }
    plain(out, inputs);
}

/// Runs the plain loop, compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn plain_avx2(out: &mut [f32], inputs: &[Vec<f32>]) {
    plain(out, inputs);
}

/// Adds two or eight buffers of `f32`, element by element.
#[inline(always)]
fn plain(out: &mut [f32], inputs: &[Vec<f32>]) {
    let n = out.len();
    match inputs {
        [a, b] => {
            let (a, b) = (&a[..n], &b[..n]);
            for i in 0..n {
                out[i] = a[i] + b[i];
            }
        }
        [a, b, c, d, e, f, g, h] => {
            let (a, b, c, d) = (&a[..n], &b[..n], &c[..n], &d[..n]);
            let (e, f, g, h) = (&e[..n], &f[..n], &g[..n], &h[..n]);
            for i in 0..n {
                out[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
            }
        }
        _ => unreachable!("the table has 2 and 8 operands"),
    }
}
