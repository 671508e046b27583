//! The figures that bounds are about, each from the cells that were measured.

use crate::arms::attach::{Attached, Transfer};
use crate::arms::cpu::PAYLOADS;
use crate::arms::simulated::{FIXED_ONE_WAY, FIXED_WINDOW, HELD, ONE_SEGMENT};
use crate::cell::{CUT_AFTER_S, Cell};
use crate::lab::testbed::Ground;
use crate::measured::{Arm, Measured, Took};
use crate::row::{COMMON, Row};
use hier_collectives::plan::Operation;
use std::cmp::Ordering;

/// Figures with their labels; `None` where the emulator calls the run void, or there was none.
pub(super) type Figures = Vec<(String, Option<f64>)>;

/// The name of Landbridge among contenders.
pub const OURS: &str = "landbridge";

/// The name of Landbridge beside two busy processes.
pub const BUSY: &str = "landbridge, two busy processes";

/// The operations other than all-reduce that peers are compared by.
pub const OPERATIONS: [Operation; 2] = [Operation::AllGather, Operation::AllToAll];

/// Returns the name of a contender with its operation, where that is no all-reduce.
pub fn label(who: &str, operation: &str) -> String {
    match operation == Operation::AllReduce.name() {
        true => who.to_owned(),
        false => format!("{who}, {operation}"),
    }
}

/// Returns the cell of an all-reduce by row, contender, arm and size, if it was measured.
fn cell<'a>(
    measured: &'a Measured,
    row: &Row,
    who: &str,
    arm: &str,
    bytes: u64,
) -> Option<&'a Cell> {
    cell_of(measured, row, (who, Operation::AllReduce), (arm, bytes))
}

/// Returns the cell of a row, a contender with its operation, and an arm with a size, if it was
/// measured.
fn cell_of<'a>(
    measured: &'a Measured,
    row: &Row,
    (who, operation): (&str, Operation),
    (arm, bytes): (&str, u64),
) -> Option<&'a Cell> {
    let is_it = |cell: &Cell| {
        (&*cell.who, cell.operation, cell.arm, cell.bytes) == (who, operation.name(), arm, bytes)
    };
    measured.cells.iter().find(|(of, cell)| of == row && is_it(cell)).map(|(_, cell)| cell)
}

/// Returns the rows that were to be measured in an arm.
fn rows(measured: &Measured, arm: Arm) -> impl Iterator<Item = &Row> {
    measured.asked.rows.iter().filter(move |_| measured.asked.arms.contains(&arm))
}

/// The name of the virtual arm in cells.
pub(super) const VIRTUAL: &str = "virtual";

/// The name of the lab arm in cells.
pub(super) const LAB: &str = "lab";

/// Both arms that measure Landbridge.
const BOTH: [(Arm, &str); 2] = [(Arm::Virtual, VIRTUAL), (Arm::Lab, LAB)];

/// Sizes of ours that a bound on eta is about.
pub(super) fn bulk(row: &Row) -> impl Iterator<Item = u64> {
    let least = row.twenty_bdp();
    row.sizes.iter().copied().filter(move |bytes| *bytes >= least)
}

fn named(row: &Row, bytes: u64) -> String {
    format!("{}, {row}", units::ByteCount::new(bytes))
}

/// Returns the efficiency of a cell: 0 if its runs were cut, which took longer than any bound.
fn eta(cell: Option<&Cell>) -> Option<f64> {
    figure_of(cell, |cell| cell.eta.unwrap_or(0.0))
}

/// Returns the seconds of a cell, or `cut` if its runs were cut.
fn seconds(cell: Option<&Cell>, cut: f64) -> Option<f64> {
    figure_of(cell, |cell| cell.seconds.unwrap_or(cut))
}

/// Returns a figure of a cell; `None` if its run is void or missing.
fn figure_of<T>(cell: Option<&Cell>, figure: impl Fn(&Cell) -> T) -> Option<T> {
    cell.filter(|cell| cell.void.is_none()).map(figure)
}

pub(super) fn etas(measured: &Measured, losses: std::ops::Range<f64>) -> Figures {
    let rows = rows(measured, Arm::Virtual);
    let rows = rows.filter(|row| row.is_long() && losses.contains(&row.loss.as_f64()));
    let of_row = |row: &Row| -> Figures {
        let held = [(HELD, row.twenty_bdp())];
        let whole = bulk(row).map(|bytes| (OURS, bytes));
        let figure = |(who, bytes)| {
            let cell = cell(measured, row, who, VIRTUAL, bytes);
            let runs = cell.map_or(0, |cell| cell.runs);
            (format!("{}, median of {runs}", named(row, bytes)), eta(cell))
        };
        held.into_iter().chain(whole).map(figure).collect()
    };
    rows.flat_map(of_row).collect()
}

/// Returns the efficiencies of `who` in the lab: 64 MiB over links of 1 Gbit/s with these round trips
/// and losses.
pub(super) fn lab_etas(
    measured: &Measured,
    who: &str,
    rtts_ms: &[u64],
    losses: std::ops::RangeInclusive<f64>,
) -> Figures {
    let rows = rows(measured, Arm::Lab).filter(|row| {
        row.rate.bits_per_second() == 1_000_000_000
            && rtts_ms.iter().any(|ms| row.rtt == units::Span::from_ms(*ms))
            && losses.contains(&row.loss.as_f64())
    });
    rows.map(|row| (row.to_string(), eta(cell(measured, row, who, LAB, COMMON)))).collect()
}

pub(super) fn apart(measured: &Measured) -> Figures {
    if !measured.asked.arms.contains(&Arm::Virtual) {
        return Figures::new();
    }
    let rows = rows(measured, Arm::Lab).filter(|row| row.rate.bits_per_second() <= 1_000_000_000);
    let of_row = |row: &Row| -> Figures {
        let apart = |bytes| {
            let eta =
                |arm| figure_of(cell(measured, row, OURS, arm, bytes), |cell| cell.eta).flatten();
            let apart = eta(LAB).zip(eta(VIRTUAL)).map(|(lab, simulated)| (lab - simulated).abs());
            (named(row, bytes), apart)
        };
        bulk(row).map(apart).collect()
    };
    rows.flat_map(of_row).collect()
}

pub(super) fn small(measured: &Measured) -> Figures {
    let of_arm = |(arm, name): (Arm, &'static str)| {
        let rows = rows(measured, arm).filter(|row| row.loss.as_f64() == 0.0);
        let sizes = |row: &Row| row.sizes.iter().copied().filter(|bytes| *bytes <= 1_000_000);
        let pairs = rows.flat_map(move |row| sizes(row).map(move |bytes| (row, bytes)));
        pairs.map(move |(row, bytes)| {
            let bound = row.bound(Operation::AllReduce, &row.shape().fabric(), bytes);
            let took = seconds(cell(measured, row, OURS, name, bytes), f64::INFINITY);
            let over = took.map(|seconds| (seconds - 1.15 * bound - 0.003) * 1e3);
            (format!("{name}, {}", named(row, bytes)), over)
        })
    };
    BOTH.into_iter().flat_map(of_arm).collect()
}

/// Without loss, and where the window is less than the link holds. One way: while there is more to
/// send than has room, quinn's acknowledgements wait as well.
pub(super) fn windows(measured: &Measured) -> Figures {
    let rows = rows(measured, Arm::Virtual).filter(|row| row.loss.as_f64() == 0.0);
    let off = |row: &Row| {
        let expected = FIXED_WINDOW as f64 / row.rtt.as_secs_f64();
        let took = seconds(cell(measured, row, FIXED_ONE_WAY, VIRTUAL, COMMON), f64::INFINITY);
        let off = took.map(|seconds| (COMMON as f64 / seconds / expected - 1.0).abs());
        let narrow = expected < 0.9 * row.rate.bytes_per_second();
        narrow.then(|| (row.to_string(), off))
    };
    rows.filter_map(off).collect()
}

/// 80 ms: the least RTT at which segments must pay off.
const SEGMENTS_FROM: units::Span = units::Span::from_ms(80);

/// On shorter links one lane's window holds what the link does, and it is about as fast.
pub(super) fn segments(measured: &Measured) -> Figures {
    let of_arm = |(arm, name): (Arm, &'static str)| {
        let rows = rows(measured, arm).filter(|row| row.rtt >= SEGMENTS_FROM);
        rows.map(move |row| {
            let whole = cell(measured, row, ONE_SEGMENT, name, COMMON);
            let ours = cell(measured, row, OURS, name, COMMON);
            let pair = seconds(whole, CUT_AFTER_S as f64).zip(seconds(ours, f64::INFINITY));
            (format!("{name}, {row}"), pair.map(|(whole, ours)| whole / ours))
        })
    };
    BOTH.into_iter().flat_map(of_arm).collect()
}

/// Rows of the lab, and who counts there.
pub(super) struct Against {
    rtt_ms: u64,
    loss_most: f64,
    loss_least: f64,
    who: &'static [&'static str],
}

/// The peers that run collectives.
pub(super) const PEERS: &[&str] = &["Gloo, cubic", "Gloo, bbr", "Open MPI, cubic", "Open MPI, bbr"];

/// The rows at 2 ms without loss.
pub(super) const NEAR: Against = Against { rtt_ms: 2, loss_least: 0.0, loss_most: 0.0, who: PEERS };

/// The rows at 80 ms with at most 0.1 % loss.
pub(super) const FAR: Against =
    Against { rtt_ms: 80, loss_least: 0.0, loss_most: 0.001_01, who: PEERS };

/// The row at 80 ms and 0.1 % loss, against Gloo with BBR.
pub(super) const GLOO: Against =
    Against { rtt_ms: 80, loss_least: 0.000_99, loss_most: 0.001_01, who: &["Gloo, bbr"] };

impl Against {
    fn counts(&self, row: &Row) -> bool {
        row.rate.bits_per_second() == 1_000_000_000
            && row.rtt == units::Span::from_ms(self.rtt_ms)
            && (self.loss_least..=self.loss_most).contains(&row.loss.as_f64())
    }
}

/// Whether a bound is about what this contender does over this link with an operation.
pub fn is_bounded(row: &Row, who: &str, operation: &str) -> bool {
    if operation != Operation::AllReduce.name() {
        return [NEAR, FAR].iter().any(|them| them.counts(row));
    }
    let against = [NEAR, FAR, GLOO];
    [OURS, BUSY].contains(&who)
        || (who == ONE_SEGMENT && row.rtt >= SEGMENTS_FROM)
        || against.iter().any(|them| them.counts(row) && them.who.contains(&who))
}

/// The best of them over ours in all-reduces; one that was cut took as long as it had at least.
pub(super) fn peers(measured: &Measured, against: Against) -> Figures {
    let rows = rows(measured, Arm::Lab).filter(|row| against.counts(row));
    rows.filter_map(|row| best_peer(measured, row, &against, Operation::AllReduce)).collect()
}

/// The best of them over ours in [`OPERATIONS`].
pub(super) fn operation_peers(measured: &Measured, against: Against) -> Figures {
    let rows = rows(measured, Arm::Operations);
    let rows = rows.filter(|row| row.has_operations() && against.counts(row));
    let of_row = |row| {
        let best = |operation| best_peer(measured, row, &against, operation);
        OPERATIONS.into_iter().filter_map(best).collect::<Figures>()
    };
    rows.flat_map(of_row).collect()
}

/// Returns the time of the best peer over ours in an operation over one link.
fn best_peer(
    measured: &Measured,
    row: &Row,
    against: &Against,
    operation: Operation,
) -> Option<(String, Option<f64>)> {
    let at = (LAB, COMMON);
    let peers: Vec<_> = against
        .who
        .iter()
        .map(|who| {
            let found = cell_of(measured, row, (who, operation), at);
            (*who, seconds(found, CUT_AFTER_S as f64))
        })
        .collect();
    // Of one that says nothing nobody knows whether it is the best.
    let silent = peers.iter().find(|(_, seconds)| seconds.is_none());
    let best = peers.iter().min_by(|a, b| a.1.partial_cmp(&b.1).unwrap_or(Ordering::Equal));
    let (who, peer) = silent.or(best)?;
    let ours = seconds(cell_of(measured, row, (OURS, operation), at), f64::INFINITY);
    let name = format!("{}, {row}", label(who, operation.name()));
    Some((name, peer.zip(ours).map(|(peer, ours)| peer / ours)))
}

/// Each of ours by the kernel's own emulation; no figure of it is bounded.
pub(super) fn netem(measured: &Measured) -> Figures {
    let of_row = |row: &Row| -> Figures {
        let cut = |bytes: &u64| {
            let cell = cell(measured, row, OURS, Ground::Netem.name(), *bytes);
            (named(row, *bytes), cell.map(|cell| f64::from(u8::from(cell.seconds.is_none()))))
        };
        row.sizes.iter().map(cut).collect()
    };
    rows(measured, Arm::Netem).flat_map(of_row).collect()
}

pub(super) fn long(measured: &Measured, what: &str) -> Figures {
    let figure = measured.long.iter().find(|long| long.what == what).map(|long| long.figure);
    let asked = measured.asked.long || figure.is_some();
    asked.then(|| (what.to_owned(), figure)).into_iter().collect()
}

pub(super) fn costs(measured: &Measured) -> Figures {
    let named = |payload: u16| {
        let cost = measured.costs.iter().find(|cost| cost.packet_payload_bytes == payload);
        (format!("{payload} B"), cost.map(|cost| cost.ratio))
    };
    let asked = measured.asked.arms.contains(&Arm::Cpu);
    PAYLOADS.into_iter().filter(|_| asked).map(named).collect()
}

/// The rates of trainers that attach over TCP, over those of TCP alone.
pub(super) fn attached(measured: &Measured) -> Figures {
    let asked = measured.asked.arms.contains(&Arm::Attach);
    let figure = |transfer: Transfer| {
        let found = measured.attached.iter().find(|one| one.transfer == transfer);
        (transfer.label(), found.and_then(Attached::ratio))
    };
    Transfer::all().into_iter().filter(|_| asked).map(figure).collect()
}

pub(super) fn took(measured: &Measured) -> Figures {
    let minutes = |span: std::time::Duration| span.as_secs_f64() / 60.0;
    let over = measured.took.map(|Took { whole, at_most }| {
        let (whole, at_most) = (minutes(whole), minutes(at_most));
        (format!("{whole:.1} of {at_most:.0}"), Some(whole - at_most))
    });
    over.into_iter().collect()
}
