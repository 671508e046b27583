//! What was wanted of each figure, and whether it is so.

use crate::arms::cpu::PAYLOADS;
use crate::arms::long::{ALONE, ALONE_OVER, BEHIND, IN_A_ROW};
use crate::arms::simulated::{FIXED_ONE_WAY, HELD, ONE_SEGMENT};
use crate::contenders::quinn::FIXED_WINDOW;
use crate::lab::testbed::Ground;
use crate::row::{COMMON, CUT_AFTER_S, Cell, Row};
use crate::{Arm, Measured, Took};
use serde::Serialize;
use std::cmp::Ordering;

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
        most("netem: all-reduces of ours that were cut, at most 0", netem(measured), 0.0),
        most("loopback: CPU seconds over those of quinn, at most 1.25", costs(measured), 1.25),
        most("the whole bench, over what it may take, in minutes", took(measured), 0.0),
    ];
    bounds.into_iter().flatten().collect()
}

/// Whose each is; `None` where the emulator calls its run void, or there was none.
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

/// The cell of this row, if it was measured.
fn cell<'a>(
    measured: &'a Measured,
    row: &Row,
    (who, arm, bytes): (&str, &str, u64),
) -> Option<&'a Cell> {
    let is_it = |cell: &Cell| cell.who == who && cell.arm == arm && cell.bytes == bytes;
    measured.cells.iter().find(|(of, cell)| of == row && is_it(cell)).map(|(_, cell)| cell)
}

/// Rows that were to be measured in an arm.
fn rows(measured: &Measured, arm: Arm) -> impl Iterator<Item = &Row> {
    measured.asked.rows.iter().filter(move |_| measured.asked.arms.contains(&arm))
}

const VIRTUAL: &str = "virtual";
const LAB: &str = "lab";
const BOTH: [(Arm, &str); 2] = [(Arm::Virtual, VIRTUAL), (Arm::Lab, LAB)];

/// Sizes of ours that a bound on eta is about.
fn bulk(row: &Row) -> impl Iterator<Item = u64> {
    let least = row.twenty_bdp();
    row.sizes.iter().copied().filter(move |bytes| *bytes >= least)
}

fn named(row: &Row, bytes: u64) -> String {
    format!("{}, {row}", units::ByteCount::new(bytes))
}

/// One that was cut took longer than any bound.
fn eta(cell: Option<&Cell>) -> Option<f64> {
    said(cell, |cell| cell.eta.unwrap_or(0.0))
}

/// Seconds; so many where it was cut.
fn seconds(cell: Option<&Cell>, cut: f64) -> Option<f64> {
    said(cell, |cell| cell.seconds.unwrap_or(cut))
}

/// A figure of this cell, unless its run is void, or there was none.
fn said<T>(cell: Option<&Cell>, figure: impl Fn(&Cell) -> T) -> Option<T> {
    cell.filter(|cell| cell.void.is_none()).map(figure)
}

fn etas(measured: &Measured, losses: std::ops::Range<f64>) -> Figures {
    let rows = rows(measured, Arm::Virtual);
    let rows = rows.filter(|row| row.is_long() && losses.contains(&row.loss.as_f64()));
    let of_row = |row: &Row| -> Figures {
        let held = [(HELD, row.twenty_bdp())];
        let whole = bulk(row).map(|bytes| (OURS, bytes));
        let figure = |(who, bytes)| {
            let cell = cell(measured, row, (who, VIRTUAL, bytes));
            let runs = cell.map_or(0, |cell| cell.runs);
            (format!("{}, median of {runs}", named(row, bytes)), eta(cell))
        };
        held.into_iter().chain(whole).map(figure).collect()
    };
    rows.flat_map(of_row).collect()
}

fn apart(measured: &Measured) -> Figures {
    if !measured.asked.arms.contains(&Arm::Virtual) {
        return Figures::new();
    }
    let rows = rows(measured, Arm::Lab).filter(|row| row.rate.bits_per_second() <= 1_000_000_000);
    let of_row = |row: &Row| -> Figures {
        let apart = |bytes| {
            let eta =
                |arm| said(cell(measured, row, (OURS, arm, bytes)), |cell| cell.eta).flatten();
            let apart = eta(LAB).zip(eta(VIRTUAL)).map(|(lab, simulated)| (lab - simulated).abs());
            (named(row, bytes), apart)
        };
        bulk(row).map(apart).collect()
    };
    rows.flat_map(of_row).collect()
}

fn small(measured: &Measured) -> Figures {
    let of_arm = |(arm, name): (Arm, &'static str)| {
        let rows = rows(measured, arm).filter(|row| row.loss.as_f64() == 0.0);
        let sizes = |row: &Row| row.sizes.iter().copied().filter(|bytes| *bytes <= 1_000_000);
        let pairs = rows.flat_map(move |row| sizes(row).map(move |bytes| (row, bytes)));
        pairs.map(move |(row, bytes)| {
            let bound = row.bound(&row.shape().fabric(), bytes);
            let took = seconds(cell(measured, row, (OURS, name, bytes)), f64::INFINITY);
            let over = took.map(|seconds| (seconds - 1.15 * bound - 0.003) * 1e3);
            (format!("{name}, {}", named(row, bytes)), over)
        })
    };
    BOTH.into_iter().flat_map(of_arm).collect()
}

/// Without loss, and where the window is less than the link holds. One way: while there is more to
/// send than has room, quinn's acknowledgements wait as well.
fn windows(measured: &Measured) -> Figures {
    let rows = rows(measured, Arm::Virtual).filter(|row| row.loss.as_f64() == 0.0);
    let off = |row: &Row| {
        let expected = FIXED_WINDOW as f64 / row.rtt.as_secs_f64();
        let took = seconds(cell(measured, row, (FIXED_ONE_WAY, VIRTUAL, COMMON)), f64::INFINITY);
        let off = took.map(|seconds| (COMMON as f64 / seconds / expected - 1.0).abs());
        let narrow = expected < 0.9 * row.rate.bytes_per_second();
        narrow.then(|| (row.to_string(), off))
    };
    rows.filter_map(off).collect()
}

const SEGMENTS_FROM: units::Span = units::Span::from_ms(80);

/// On shorter links one lane's window holds what the link does, and it is about as fast.
fn segments(measured: &Measured) -> Figures {
    let of_arm = |(arm, name): (Arm, &'static str)| {
        let rows = rows(measured, arm).filter(|row| row.rtt >= SEGMENTS_FROM);
        rows.map(move |row| {
            let whole = cell(measured, row, (ONE_SEGMENT, name, COMMON));
            let ours = cell(measured, row, (OURS, name, COMMON));
            let pair = seconds(whole, CUT_AFTER_S as f64).zip(seconds(ours, f64::INFINITY));
            (format!("{name}, {row}"), pair.map(|(whole, ours)| whole / ours))
        })
    };
    BOTH.into_iter().flat_map(of_arm).collect()
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

impl Against {
    fn counts(&self, row: &Row) -> bool {
        row.rate.bits_per_second() == 1_000_000_000
            && row.rtt == units::Span::from_ms(self.rtt_ms)
            && (self.loss_least..=self.loss_most).contains(&row.loss.as_f64())
    }
}

/// Whether a bound is about what this contender does over this link.
pub fn is_bounded(row: &Row, who: &str) -> bool {
    let against = [NEAR, FAR, GLOO];
    who == OURS
        || (who == ONE_SEGMENT && row.rtt >= SEGMENTS_FROM)
        || against.iter().any(|them| them.counts(row) && them.who.contains(&who))
}

/// The best of them over ours; one that was cut took as long as it had at least.
fn peers(measured: &Measured, against: Against) -> Figures {
    let rows = rows(measured, Arm::Lab).filter(|row| against.counts(row));
    let best = |row: &Row| {
        let peers = against.who.iter().map(|who| {
            let found = cell(measured, row, (who, LAB, COMMON));
            (*who, seconds(found, CUT_AFTER_S as f64))
        });
        let peers: Vec<_> = peers.collect();
        // Of one that says nothing nobody knows whether it is the best.
        let silent = peers.iter().find(|(_, seconds)| seconds.is_none());
        let best = peers.iter().min_by(|a, b| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal));
        let (who, peer) = silent.or(best)?;
        let ours = seconds(cell(measured, row, (OURS, LAB, COMMON)), f64::INFINITY);
        Some((format!("{who}, {row}"), peer.zip(ours).map(|(peer, ours)| peer / ours)))
    };
    rows.filter_map(best).collect()
}

/// Each of ours by the kernel's own emulation; no figure of it is bounded.
fn netem(measured: &Measured) -> Figures {
    let of_row = |row: &Row| -> Figures {
        let cut = |bytes: &u64| {
            let cell = cell(measured, row, (OURS, Ground::Netem.name(), *bytes));
            (named(row, *bytes), cell.map(|cell| f64::from(u8::from(cell.seconds.is_none()))))
        };
        row.sizes.iter().map(cut).collect()
    };
    rows(measured, Arm::Netem).flat_map(of_row).collect()
}

fn long(measured: &Measured, what: &str) -> Figures {
    let figure = measured.long.iter().find(|long| long.what == what).map(|long| long.figure);
    let asked = measured.asked.long || figure.is_some();
    asked.then(|| (what.to_owned(), figure)).into_iter().collect()
}

fn costs(measured: &Measured) -> Figures {
    let named = |payload: u16| {
        let cost = measured.costs.iter().find(|cost| cost.packet_payload_bytes == payload);
        (format!("{payload} B"), cost.map(|cost| cost.ratio))
    };
    let asked = measured.asked.arms.contains(&Arm::Cpu);
    PAYLOADS.into_iter().filter(|_| asked).map(named).collect()
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
    use super::*;
    use crate::Asked;
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
            let asked = Asked { rows: vec![row], arms: vec![Arm::Lab], long: false };
            let measured = Measured { cells: cells.to_vec(), asked, ..Measured::default() };
            let mut verdicts = verdicts(&measured).into_iter();
            verdicts.find(|verdict| verdict.wanted.contains("peer")).expect("a verdict")
        };
        let good = of(&cells);
        assert!(good.met && good.worst.starts_with("2.000 ("), "{good:?}");
        for index in 0..cells.len() {
            let mut some = cells.clone();
            some[index].1.void = Some("late".to_owned());
            let verdict = of(&some);
            assert!(!verdict.met && (verdict.figures, verdict.void) == (0, 1), "{verdict:?}");
            some.remove(index);
            let missing = of(&some);
            assert!(!missing.met && (missing.figures, missing.void) == (0, 1), "{missing:?}");
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
            let asked = Asked { rows: vec![*row], arms: vec![Arm::Virtual], long: false };
            let verdicts = verdicts(&Measured { cells, asked, ..Measured::default() });
            let about = if control == FIXED_ONE_WAY { "window" } else { "one segment" };
            let found = verdicts.into_iter().find(|verdict| verdict.wanted.contains(about));
            found.expect("a verdict").met
        };
        let fits = COMMON as f64 * row.rtt.as_secs_f64() / FIXED_WINDOW as f64;
        assert!(of(FIXED_ONE_WAY, Some(fits), Some(0.6)));
        assert!(!of(FIXED_ONE_WAY, None, Some(0.6)), "cut, and what it had is unknown");
        let whole = ONE_SEGMENT;
        assert!(of(whole, None, Some(0.6)), "cut, so slower than ours");
        assert!(!of(whole, Some(0.61), Some(0.6)) && of(whole, Some(1.2), Some(0.6)));
        assert!(!of(whole, None, None));
    }

    #[test]
    fn two_that_were_cut_are_not_as_good_as_each_other() {
        assert!(apart_at(80, Some(0.9), Some(0.9)) && !apart_at(80, None, None));
    }

    #[test]
    fn a_short_link_is_not_far_from_virtual_time_either() {
        assert!(apart_at(2, Some(0.97), Some(0.98)) && !apart_at(2, Some(0.90), Some(0.98)));
    }

    /// The verdict, where all of ours are done with these etas in the lab and in virtual time.
    fn apart_at(rtt_ms: u64, lab: Option<f64>, simulated: Option<f64>) -> bool {
        let rows = Row::matrix(false);
        let row = rows.iter().find(|row| row.rtt == Span::from_ms(rtt_ms)).expect("a row");
        let cell = |bytes, (arm, eta): (_, Option<f64>)| {
            let cell = Cell::new(OURS, arm, bytes, vec![1.0], 1.0);
            (*row, Cell { seconds: eta, eta, ..cell })
        };
        let both = [(LAB, lab), (VIRTUAL, simulated)];
        let cells = bulk(row).flat_map(|bytes| both.map(|arm| cell(bytes, arm))).collect();
        let arms = vec![Arm::Lab, Arm::Virtual];
        let asked = Asked { rows: vec![*row], arms, long: false };
        let verdicts = verdicts(&Measured { cells, asked, ..Measured::default() });
        let found = verdicts.into_iter().find(|verdict| verdict.wanted.contains("apart"));
        found.expect("a verdict").met
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

    #[test]
    fn what_was_asked_for_and_is_not_there_meets_nothing() {
        let arms = vec![Arm::Virtual, Arm::Lab, Arm::Cpu];
        let asked = Asked { rows: Row::matrix(false), arms, long: true };
        let verdicts = verdicts(&Measured { asked, ..Measured::default() });
        assert_eq!(verdicts.len(), 14, "all but the time and netem: {verdicts:?}");
        for verdict in verdicts {
            assert!(!verdict.met && verdict.figures == 0 && verdict.void > 0, "{verdict:?}");
        }
    }
}
