//! What one all-reduce alone does not show: many of them over one link, in virtual time.

use scenarios::{Shape, ppm, series};
use serde::Serialize;
use std::time::Instant;
use units::{BitRate, ByteCount, Span};

/// One figure of many all-reduces.
#[derive(Debug, Clone, Serialize)]
pub struct Long {
    pub what: &'static str,
    pub figure: f64,
    /// What it took to simulate them.
    pub real_seconds: f64,
}

pub const ALONE: &str = "200 of 64 MB, each alone, 1 Gbit/s, 80 ms, 0.01 %, jitter 1 ms: p99/p50";
pub const IN_A_ROW: &str = "8 of 512 MiB, the next always posted, 10 Gbit/s, 100 ms, 1 %: eta, \
                            the worst of three seeds, 0 when a connection closed";
pub const BEHIND: &str = "4 KiB behind 1 GiB, 1 Gbit/s, 80 ms: the slowest, in round trips";

/// All of them.
pub const ALL: [fn() -> Long; 3] = [behind, alone, in_a_row];

fn measured(what: &'static str, figure: impl FnOnce() -> f64) -> Long {
    let begun = Instant::now();
    let figure = figure();
    Long { what, figure, real_seconds: begun.elapsed().as_secs_f64() }
}

fn alone() -> Long {
    let shape = Shape { loss: ppm(100), jitter: Span::from_ms(1), ..Shape::new(1, 1) };
    measured(ALONE, || {
        let times = series::alone(&shape, 64_000_000, 200, 1);
        series::quantile(&times, 0.99) / series::quantile(&times, 0.5)
    })
}

fn in_a_row() -> Long {
    let shape = Shape {
        rate: BitRate::from_bits_per_second(10_000_000_000),
        rtt: Span::from_ms(100),
        loss: ppm(10_000),
        // What has parity lands before it is added, and most of the last one may.
        memory: ByteCount::new(2 << 30),
        ..Shape::new(1, 1)
    };
    measured(IN_A_ROW, || {
        let of_seed = |seed| {
            let row = series::in_a_row(&shape, 512 << 20, 8, seed);
            let closed = row.lanes.0 < row.lanes.1 || row.resent.get() > 0;
            if closed { 0.0 } else { row.eta }
        };
        (1..=3).map(of_seed).fold(f64::INFINITY, f64::min)
    })
}

fn behind() -> Long {
    let shape = Shape::new(1, 1);
    measured(BEHIND, || {
        let pauses = [20, 100, 500, 1000].map(Span::from_ms);
        let times = series::behind(&shape, (4 << 10, 1 << 30), &pauses, 1);
        times.into_iter().fold(0.0, f64::max) / shape.rtt.as_secs_f64()
    })
}
