//! What was wanted of each figure, and whether it is so.

use super::long::{ALONE, BEHIND, IN_A_ROW};
use super::quinn::FIXED_WINDOW;
use super::row::{COMMON, CUT_AFTER_S, Cell, Row};
use super::simulated::{FIXED_ONE_WAY, HELD};
use super::{Measured, Took};
use serde::Serialize;
use std::cmp::Ordering;

/// One bound, with the figure that is furthest on its wrong side.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    pub wanted: String,
    /// The figure, and whose it is.
    pub worst: String,
    /// Not while any figure is of a void run.
    pub met: bool,
    /// Figures that were held to it.
    pub figures: usize,
    /// Figures of runs that the emulator calls void, which say nothing.
    pub void: usize,
}

/// All bounds of which something was measured.
pub fn verdicts(measured: &Measured) -> Vec<Verdict> {
    let (clean, lossy) = (etas(measured, 0.0..0.001_01), etas(measured, 0.001_01..1.0));
    let bounds = [
        least("virtual: eta of 20 BDP and more, loss up to 0.1 %, at least 0.95", clean, 0.95),
        least("virtual: eta of 20 BDP and more, loss of 1 %, at least 0.93", lossy, 0.93),
        most("lab and virtual: etas of 20 BDP and more apart, at most 0.04", apart(measured), 0.04),
        most("4 KiB and 1 MB without loss: over 1.15 T* + 3 ms, in ms", small(measured), 0.0),
        most(
            "virtual: a window of 1.25 MB, one way: off W/RTT, at most 0.1",
            windows(measured),
            0.1,
        ),
        least(
            "virtual: one segment for all, from 80 ms on, times as long as ours, at least 1.05",
            segments(measured),
            1.05,
        ),
        most("virtual: 200 lone all-reduces: p99/p50, at most 1.1", long(measured, ALONE), 1.1),
        least(
            "virtual: eight in a row at 10 Gbit/s and 1 %: eta of the whole, at least 0.9",
            long(measured, IN_A_ROW),
            0.9,
        ),
        most("virtual: 4 KiB behind 1 GiB, in round trips, at most 3", long(measured, BEHIND), 3.0),
        least("lab, 2 ms clean: the best peer, times as long as ours", peers(measured, NEAR), 1.0),
        least("lab, 80 ms, loss to 0.1 %: the best peer, at least 1.3", peers(measured, FAR), 1.3),
        least("lab, 80 ms, 0.1 %: Gloo with BBR, at least 8", peers(measured, GLOO), 8.0),
        most("loopback: CPU seconds over those of quinn, at most 1.25", costs(measured), 1.25),
        most("the whole bench, over what it may take, in minutes", took(measured), 0.0),
    ];
    bounds.into_iter().flatten().collect()
}

/// Whose each is; `None` where the emulator calls its run void.
type Figures = Vec<(String, Option<f64>)>;

fn least(wanted: &str, figures: Figures, bound: f64) -> Option<Verdict> {
    verdict(wanted, figures, |figure| bound - figure)
}

fn most(wanted: &str, figures: Figures, bound: f64) -> Option<Verdict> {
    verdict(wanted, figures, |figure| figure - bound)
}

/// `beyond` says by how much a figure is on the wrong side of its bound.
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

const OURS: &str = "landbridge";

fn cells<'a>(
    measured: &'a Measured,
    who: &'a str,
    arm: &'a str,
) -> impl Iterator<Item = (&'a Row, &'a Cell)> {
    let cells = measured.cells.iter().map(|(row, cell)| (row, cell));
    cells.filter(move |(_, cell)| cell.who == who && cell.arm == arm)
}

/// Far enough for a bound on eta, and large enough.
fn is_bulk((row, cell): &(&Row, &Cell)) -> bool {
    row.twenty_bdp().is_some_and(|least| cell.bytes >= least)
}

fn named(row: &Row, cell: &Cell) -> String {
    format!("{}, {row}", units::ByteCount::new(cell.bytes))
}

/// A cell that was cut took longer than any bound.
fn eta(cell: &Cell) -> Option<f64> {
    said(cell, cell.eta.unwrap_or(0.0))
}

/// A figure of this cell, unless its run is void.
fn said(cell: &Cell, figure: f64) -> Option<f64> {
    cell.void.is_none().then_some(figure)
}

fn etas(measured: &Measured, losses: std::ops::Range<f64>) -> Figures {
    let bulk = cells(measured, HELD, "virtual").chain(cells(measured, OURS, "virtual"));
    let bulk = bulk.filter(is_bulk);
    let bulk = bulk.filter(|(row, _)| losses.contains(&row.loss.as_f64()));
    bulk.map(|(row, cell)| (named(row, cell), eta(cell))).collect()
}

fn apart(measured: &Measured) -> Figures {
    let labs = cells(measured, OURS, "lab").filter(is_bulk);
    let labs = labs.filter(|(row, _)| row.rate.bits_per_second() <= 1_000_000_000);
    let pair = |(row, lab): (&Row, &Cell)| {
        let same = |(other, cell): &(&Row, &Cell)| *other == row && cell.bytes == lab.bytes;
        let (_, simulated) = cells(measured, OURS, "virtual").find(same)?;
        let apart = eta(lab).zip(eta(simulated)).map(|(lab, simulated)| (lab - simulated).abs());
        Some((named(row, lab), apart))
    };
    labs.filter_map(pair).collect()
}

fn small(measured: &Measured) -> Figures {
    let cells = ["virtual", "lab"].into_iter().flat_map(|arm| cells(measured, OURS, arm));
    let small = cells.filter(|(row, cell)| row.loss.as_f64() == 0.0 && cell.bytes <= 1_000_000);
    let over = |(row, cell): (&Row, &Cell)| {
        let bound = row.bound(&row.shape().fabric(), cell.bytes);
        let seconds = cell.seconds.unwrap_or(f64::INFINITY);
        let over = said(cell, (seconds - 1.15 * bound - 0.003) * 1e3);
        (format!("{}, {}", cell.arm, named(row, cell)), over)
    };
    small.map(over).collect()
}

/// Without loss, and where the window is less than the link holds. One way: while there is more to
/// send than has room, quinn's acknowledgements wait as well.
fn windows(measured: &Measured) -> Figures {
    let windows =
        cells(measured, FIXED_ONE_WAY, "virtual").filter(|(row, _)| row.loss.as_f64() == 0.0);
    let off = |(row, cell): (&Row, &Cell)| {
        let expected = FIXED_WINDOW as f64 / row.rtt.as_secs_f64();
        let got = cell.bytes as f64 / cell.seconds.unwrap_or(f64::INFINITY);
        let narrow = expected < 0.9 * row.rate.bytes_per_second();
        narrow.then(|| (row.to_string(), said(cell, (got / expected - 1.0).abs())))
    };
    windows.filter_map(off).collect()
}

/// On shorter links one lane's window holds what the link does, and it is about as fast.
fn segments(measured: &Measured) -> Figures {
    let whole = cells(measured, "one segment for the whole buffer", "virtual");
    let whole = whole.filter(|(row, _)| row.rtt >= units::Span::from_ms(80));
    let times = |(row, cell): (&Row, &Cell)| {
        let same = |(other, ours): &(&Row, &Cell)| *other == row && ours.bytes == cell.bytes;
        let (_, ours) = cells(measured, OURS, "virtual").find(same)?;
        let seconds = said(cell, cell.seconds.unwrap_or(CUT_AFTER_S as f64));
        let ours = said(ours, ours.seconds.unwrap_or(f64::INFINITY));
        Some((row.to_string(), seconds.zip(ours).map(|(whole, ours)| whole / ours)))
    };
    whole.filter_map(times).collect()
}

/// Rows of the lab, and who counts there.
struct Against {
    rtt_ms: u64,
    loss_most: f64,
    loss_least: f64,
    who: &'static [&'static str],
}

const PEERS: &[&str] = &["Gloo, cubic", "Gloo, bbr", "Open MPI, cubic", "Open MPI, bbr"];
const NEAR: Against = Against { rtt_ms: 2, loss_least: 0.0, loss_most: 0.0, who: PEERS };
const FAR: Against = Against { rtt_ms: 80, loss_least: 0.0, loss_most: 0.001_01, who: PEERS };
const GLOO: Against =
    Against { rtt_ms: 80, loss_least: 0.000_99, loss_most: 0.001_01, who: &["Gloo, bbr"] };

/// The best of them over ours; one that was cut took as long as it had at least.
fn peers(measured: &Measured, against: Against) -> Figures {
    let rows = cells(measured, OURS, "lab").filter(|(row, cell)| {
        cell.bytes == COMMON
            && row.rate.bits_per_second() == 1_000_000_000
            && row.rtt == units::Span::from_ms(against.rtt_ms)
            && (against.loss_least..=against.loss_most).contains(&row.loss.as_f64())
    });
    let best = |(row, ours): (&Row, &Cell)| {
        let of_peer = |who: &&'static str| {
            let found = cells(measured, who, "lab").find(|(other, _)| *other == row)?.1;
            Some((*who, said(found, found.seconds.unwrap_or(CUT_AFTER_S as f64))))
        };
        let peers: Vec<_> = against.who.iter().filter_map(of_peer).collect();
        // Of one that is void nobody knows whether it is the best.
        let void = peers.iter().find(|(_, seconds)| seconds.is_none());
        let best = peers.iter().min_by(|a, b| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal));
        let (who, seconds) = void.or(best)?;
        let ours = said(ours, ours.seconds.unwrap_or(f64::INFINITY));
        Some((format!("{who}, {row}"), seconds.zip(ours).map(|(peer, ours)| peer / ours)))
    };
    rows.filter_map(best).collect()
}

fn long(measured: &Measured, what: &str) -> Figures {
    let long = measured.long.iter().filter(|long| long.what == what);
    long.map(|long| (long.what.to_owned(), Some(long.figure))).collect()
}

fn costs(measured: &Measured) -> Figures {
    let named =
        |cost: &super::cpu::Cost| (format!("{} B", cost.packet_payload_bytes), Some(cost.ratio));
    measured.costs.iter().map(named).collect()
}

fn took(measured: &Measured) -> Figures {
    let minutes = |span: std::time::Duration| span.as_secs_f64() / 60.0;
    let over = measured.took.map(|Took { whole, at_most }| {
        let (whole, at_most) = (minutes(whole), minutes(at_most));
        (format!("{whole:.1} of {at_most:.0}"), Some(whole - at_most))
    });
    over.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::lab::Ground;
    use super::*;
    use std::time::Duration;
    use units::Span;

    #[test]
    fn what_is_void_meets_nothing() {
        let row = Row::matrix(false)[0];
        let cell =
            |who: &str, seconds| Cell::new(who, Ground::Lab.name(), COMMON, vec![seconds], seconds);
        let mut cells: Vec<_> = PEERS.iter().map(|who| (row, cell(who, 2.0))).collect();
        cells.push((row, cell(OURS, 1.0)));
        let of = |cells: &[(Row, Cell)]| {
            let cells = cells.to_vec();
            verdicts(&Measured { cells, ..Measured::default() }).remove(0)
        };
        let good = of(&cells);
        assert!(good.met && good.worst.starts_with("2.000 ("), "{good:?}");
        for index in 0..cells.len() {
            let mut some = cells.clone();
            some[index].1.void = Some("late".to_owned());
            let verdict = of(&some);
            assert!(!verdict.met && (verdict.figures, verdict.void) == (0, 1), "{verdict:?}");
        }
        cells[0].1.seconds = Some(0.5);
        let slower = of(&cells);
        assert!(!slower.met && slower.worst.starts_with("0.500 ("), "{slower:?}");
    }

    #[test]
    fn controls_that_were_cut_meet_no_bound_that_needs_a_figure() {
        let rows = Row::matrix(false);
        let far = |row: &&Row| row.rtt >= Span::from_ms(80) && row.loss.as_f64() == 0.0;
        let row = rows.iter().find(far).expect("a row at 80 ms");
        let cell = |who: &str, seconds: Option<f64>| {
            let took = seconds.unwrap_or(1.0);
            (*row, Cell { seconds, ..Cell::new(who, "virtual", COMMON, vec![took], took) })
        };
        let of = |control: &str, seconds, ours| {
            let cells = vec![cell(control, seconds), cell(OURS, ours)];
            let verdicts = verdicts(&Measured { cells, ..Measured::default() });
            let found = verdicts.into_iter().find(|verdict| !verdict.wanted.contains("eta"));
            found.expect("a verdict").met
        };
        let fits = COMMON as f64 * row.rtt.as_secs_f64() / FIXED_WINDOW as f64;
        assert!(of(FIXED_ONE_WAY, Some(fits), Some(0.6)));
        assert!(!of(FIXED_ONE_WAY, None, Some(0.6)), "cut, and what it had is unknown");
        let whole = "one segment for the whole buffer";
        assert!(of(whole, None, Some(0.6)), "cut, so slower than ours");
        assert!(!of(whole, Some(0.61), Some(0.6)) && of(whole, Some(1.2), Some(0.6)));
        assert!(!of(whole, None, None));
    }

    #[test]
    fn a_bench_that_takes_too_long_has_missed_its_bound() {
        let of = |minutes: u64| {
            let span = |minutes: u64| Duration::from_secs(60 * minutes);
            let took = Some(Took { whole: span(minutes), at_most: span(45) });
            verdicts(&Measured { took, ..Measured::default() })
        };
        let late = of(46);
        assert!(!late[0].met && late[0].worst.contains("46.0 of 45"), "{late:?}");
        assert!(of(45)[0].met);
        assert!(verdicts(&Measured::default()).is_empty(), "an arm alone is held to nothing");
    }
}
