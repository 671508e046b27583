//! The bounds, and a verdict for each: whether its worst figure meets it.

use super::figures::{
    BUSY, FAR, Figures, GLOO, NEAR, OURS, apart, attached, costs, etas, lab_etas, long, netem,
    operation_peers, peers, segments, small, took, windows,
};
use crate::arms::long::{ALONE, ALONE_OVER, BEHIND, IN_A_ROW};
use crate::measured::Measured;
use serde::Serialize;

/// One bound, with the figure that is furthest on its wrong side.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    pub wanted: String,
    /// The figure, and whose it is.
    pub worst: String,
    /// Not while any figure is of a void run, or missing.
    pub met: bool,
    /// Figures that were held to it.
    pub figures: usize,
    /// Figures of runs that the emulator calls void, which say nothing, and figures that are missing.
    pub void: usize,
}

/// All bounds of which something was to be measured.
pub fn verdicts(measured: &Measured) -> Vec<Verdict> {
    let (clean, lossy) = (etas(measured, 0.0..0.001_01), etas(measured, 0.001_01..1.0));
    let bounds = [
        least("virtual: eta of 20 BDP and more, loss up to 0.1 %, at least 0.95", clean, 0.95),
        least("virtual: eta of 20 BDP and more, loss of 1 %, at least 0.93", lossy, 0.93),
        most("lab and virtual: etas of 20 BDP and more apart, at most 0.04", apart(measured), 0.04),
        least(
            "lab, 64 MiB at 1 Gbit/s, 2 ms clean: eta, at least 0.95",
            lab_etas(measured, OURS, &[2], 0.0..=0.0),
            0.95,
        ),
        least(
            "lab, the same, 20 and 80 ms clean: eta, at least 0.965",
            lab_etas(measured, OURS, &[20, 80], 0.0..=0.0),
            0.965,
        ),
        least(
            "lab, the same, 2 to 80 ms, 0.1 %: eta, at least 0.955",
            lab_etas(measured, OURS, &[2, 20, 80], 0.000_99..=0.001_01),
            0.955,
        ),
        least(
            "lab, the same, to 0.1 %, beside two busy processes: eta, at least 0.9",
            lab_etas(measured, BUSY, &[2, 20, 80], 0.0..=0.001_01),
            0.9,
        ),
        most("4 KiB and 1 MB without loss: over 1.15 T* + 3 ms, in ms", small(measured), 0.0),
        most(
            "virtual: a window of 1.25 MB, one way: off W/RTT, at most 0.1",
            windows(measured),
            0.1,
        ),
        least(
            "one segment for all, from 80 ms on, times as long as ours, at least 1.05",
            segments(measured),
            1.05,
        ),
        most("virtual: 200 lone all-reduces: p99/p50, at most 1.1", long(measured, ALONE), 1.1),
        most("virtual: the same: p99 over T*, at most 1.1", long(measured, ALONE_OVER), 1.1),
        least(
            "virtual: eight in a row at 10 Gbit/s and 1 %: eta of the whole, at least 0.9",
            long(measured, IN_A_ROW),
            0.9,
        ),
        most("virtual: 4 KiB behind 1 GiB, in round trips, at most 3", long(measured, BEHIND), 3.0),
        least("lab, 2 ms clean: the best peer, times as long as ours", peers(measured, NEAR), 1.0),
        least("lab, 80 ms, loss to 0.1 %: the best peer, at least 1.3", peers(measured, FAR), 1.3),
        least("lab, 80 ms, 0.1 %: Gloo with BBR, at least 8", peers(measured, GLOO), 8.0),
        least(
            "lab, all-gather and all-to-all, 2 ms clean: the best peer, times as long as ours",
            operation_peers(measured, NEAR),
            1.0,
        ),
        least(
            "lab, all-gather and all-to-all, 80 ms clean: the best peer, at least 1.3",
            operation_peers(measured, FAR),
            1.3,
        ),
        least(
            "attached over TCP, 64 MiB and more: rate over that of TCP alone, at least 0.7",
            attached(measured),
            0.7,
        ),
        most("netem: all-reduces of ours that were cut, at most 0", netem(measured), 0.0),
        most("loopback: CPU seconds over those of quinn, at most 1.25", costs(measured), 1.25),
        most("the whole bench, over what it may take, in minutes", took(measured), 0.0),
    ];
    bounds.into_iter().flatten().collect()
}

fn least(wanted: &str, figures: Figures, bound: f64) -> Option<Verdict> {
    verdict(wanted, figures, |figure| bound - figure)
}

fn most(wanted: &str, figures: Figures, bound: f64) -> Option<Verdict> {
    verdict(wanted, figures, |figure| figure - bound)
}

/// The verdict on figures; `beyond` returns how far a figure is on the wrong side of its bound.
fn verdict(wanted: &str, figures: Figures, beyond: impl Fn(f64) -> f64) -> Option<Verdict> {
    let void = figures.iter().filter(|(_, figure)| figure.is_none()).count();
    let held = figures.into_iter().filter_map(|(whose, figure)| Some((whose, figure?)));
    let held: Vec<_> = held.collect();
    let worst = held.iter().max_by(|a, b| beyond(a.1).total_cmp(&beyond(b.1)));
    let met = void == 0 && worst.is_some_and(|(_, figure)| beyond(*figure) <= 0.0);
    let named = |(whose, figure): &(String, f64)| format!("{figure:.3} ({whose})");
    let (worst, wanted) = (worst.map_or_else(|| "-".to_owned(), named), wanted.to_owned());
    let figures = held.len();
    (figures + void > 0).then_some(Verdict { wanted, worst, met, figures, void })
}
