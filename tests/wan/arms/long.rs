//! Series of many all-reduces over one link, in virtual time.

use hier_collectives::bound;
use scenarios::collectives::series;
use scenarios::{Shape, ppm};
use serde::Serialize;
use std::time::Instant;
use units::{BitRate, ByteCount, Span};

/// One figure of many all-reduces.
#[derive(Debug, Clone, Serialize)]
pub struct Long {
    pub what: &'static str,
    pub figure: f64,
    /// Real seconds of the simulation; `None` where the figure before is of the same run.
    pub real_seconds: Option<f64>,
}

/// The label of lone all-reduces: p99 over the median.
pub const ALONE: &str = "200 of 64 MB, each alone, 1 Gbit/s, 80 ms, 0.01 %, jitter 1 ms: p99/p50";
/// The p99 over the lower bound. It complements p99/p50, whose median may itself include
/// retransmissions.
pub const ALONE_OVER: &str = "the same: p99 over T*";
/// The label of large all-reduces in a row.
pub const IN_A_ROW: &str = "8 of 512 MiB, the next always posted, 10 Gbit/s, 100 ms, 1 %: eta, \
                            the worst of three seeds, 0 when a connection closed";
/// The label of small all-reduces behind a large one.
pub const BEHIND: &str = "4 KiB behind 1 GiB, 1 Gbit/s, 80 ms: the slowest, in round trips";

/// All of them, each with what stands beside it.
pub const ALL: [fn() -> Vec<Long>; 4] = [behind, alone, alone_unrepaired, in_a_row];

fn measured<const N: usize>(
    what: [&'static str; N],
    figures: impl FnOnce() -> [f64; N],
) -> Vec<Long> {
    let begun = Instant::now();
    let figures = figures();
    let mut took = Some(begun.elapsed().as_secs_f64());
    let long = |(what, figure)| Long { what, figure, real_seconds: took.take() };
    what.into_iter().zip(figures).map(long).collect()
}

fn alone() -> Vec<Long> {
    let shape = Shape { loss: ppm(100), jitter: Span::from_ms(1), ..Shape::new(1, 1) };
    measured([ALONE, ALONE_OVER], || times_alone(&shape))
}

/// The link loses, but the fabric does not say so: no parity.
fn alone_unrepaired() -> Vec<Long> {
    let (true_loss, jitter) = (Some(ppm(100)), Span::from_ms(1));
    let shape = Shape { true_loss, jitter, ..Shape::new(1, 1) };
    let what =
        ["the same without tail repair: p99/p50", "the same without tail repair: p99 over T*"];
    measured(what, || times_alone(&shape))
}

/// The slowest hundredth, over the median and over the bound.
fn times_alone(shape: &Shape) -> [f64; 2] {
    const BYTES: u64 = 64_000_000;
    let times = series::alone(shape, BYTES, 200, 1);
    let (median, late) = (series::quantile(&times, 0.5), series::quantile(&times, 0.99));
    let bound = bound::all_reduce_lower_bound(&shape.fabric(), ByteCount::new(BYTES));
    [late / median, late / bound.as_secs_f64()]
}

fn in_a_row() -> Vec<Long> {
    let shape = Shape {
        rate: BitRate::from_bits_per_second(10_000_000_000),
        rtt: Span::from_ms(100),
        loss: ppm(10_000),
        // What has parity lands before it is added, and most of the last one may.
        memory: ByteCount::new(2 << 30),
        ..Shape::new(1, 1)
    };
    measured([IN_A_ROW], || {
        let of_seed = |seed| {
            let row = series::in_a_row(&shape, 512 << 20, 8, seed);
            let closed = row.lanes.0 < row.lanes.1 || row.resent.get() > 0;
            if closed { 0.0 } else { row.eta }
        };
        [(1..=3).map(of_seed).fold(f64::INFINITY, f64::min)]
    })
}

fn behind() -> Vec<Long> {
    let shape = Shape::new(1, 1);
    measured([BEHIND], || {
        let pauses = [20, 100, 500, 1000].map(Span::from_ms);
        let times = series::behind(&shape, 4 << 10, 1 << 30, &pauses, 1);
        [times.into_iter().fold(0.0, f64::max) / shape.rtt.as_secs_f64()]
    })
}
