//! All contenders over every link of a lab, and repetitions of void cells.

use crate::cell::Cell;
use crate::contenders::contender::{Contender, Program};
use crate::measured::Measured;
use crate::report::figures::is_bounded;
use crate::report::pages;
use crate::row::Row;
use indicatif::ProgressBar;
use scenarios::testbed::error::LabError;
use scenarios::testbed::interrupt;
use std::collections::BTreeMap;
use std::time::Instant;

/// 8 attempts to measure a cell, at most.
const ATTEMPTS: u32 = 8;

/// Cells by row, contender and size, which is also their order.
type Cells = BTreeMap<(usize, usize, u64), (Row, Cell)>;

/// A contender over one link, with the sizes that have no good cell yet.
struct Task {
    /// The position of its cells in the report: row and column.
    place: (usize, usize),
    row: Row,
    contender: Contender,
    sizes: &'static [u64],
}

/// Measures one contender with these sizes over a link.
type Measure<'a> = dyn Fn(Contender, &Row, &[u64]) -> Result<Vec<Cell>, LabError> + 'a;

/// How cells are measured, and until when void cells are measured again.
pub struct Attempts<'a> {
    pub how: &'a Measure<'a>,
    pub until: Instant,
    pub bar: &'a ProgressBar,
}

impl Attempts<'_> {
    /// Measures all of `present` over all of `rows`, one after the other, so that a busy spell
    /// affects all. Then repeats void cells while there is time: bounded ones first, until they are
    /// good, then the rest, each in a new lab. A cell that stays void is shown as it was last.
    pub fn measure(&self, rows: &[Row], present: &[Contender], measured: &mut Measured) {
        let mut cells = Cells::new();
        let void = self.round(tasks(rows, present), 1, &mut cells, measured);
        let bounded = |task: &Task| {
            is_bounded(&task.row, &task.contender.name(), task.contender.operation.name())
        };
        let (bounded, rest) = void.into_iter().partition::<Vec<_>, _>(bounded);
        for mut tasks in [bounded, rest] {
            for attempt in 2..=ATTEMPTS {
                self.bar.inc_length(tasks.len() as u64);
                tasks = self.round(tasks, attempt, &mut cells, measured);
            }
        }
        measured.cells.extend(cells.into_values());
    }

    /// Measures each task once, after the first attempt only while there is time. Returns the tasks
    /// that are left.
    fn round(
        &self,
        tasks: Vec<Task>,
        attempt: u32,
        cells: &mut Cells,
        measured: &mut Measured,
    ) -> Vec<Task> {
        let in_time =
            |_: &Task| !interrupt::has_come() && (attempt == 1 || Instant::now() < self.until);
        let mut left = Vec::new();
        for task in tasks.into_iter().take_while(in_time) {
            left.extend(self.attempt(task, attempt, cells, measured));
            self.bar.inc(1);
        }
        left
    }

    /// Measures the sizes that are left of a task once. Returns the task if sizes are left after
    /// that.
    fn attempt(
        &self,
        task: Task,
        attempt: u32,
        cells: &mut Cells,
        measured: &mut Measured,
    ) -> Option<Task> {
        let Task { place, row, contender, sizes } = task;
        if contender.program != Program::Landbridge
            && let Some(cell) = cut_before(cells, &row, place.1)
        {
            cells.insert((place.0, place.1, cell.bytes), (row, cell));
            return None;
        }
        self.bar.set_message(format!("{row}: {}", contender.label()));
        let found = match (self.how)(contender, &row, sizes) {
            Ok(found) => found,
            Err(error) => {
                measured.skip(format!("{row}: {}: {error}", contender.label()));
                return None;
            }
        };
        // A lab that was late once says so of all that comes after as well.
        let good = found.iter().take_while(|cell| cell.void.is_none()).count();
        let is_cut = good > 0 && found[good - 1].seconds.is_none();
        // Whoever waits for so long may see what comes of it.
        let seen: String = found.iter().map(pages::line).collect();
        self.bar.suspend(|| eprint!("{row} {seen}"));
        for cell in found {
            let cell = Cell { attempt, ..cell };
            cells.insert((place.0, place.1, cell.bytes), (row, cell));
        }
        let left = &sizes[good..];
        (!left.is_empty() && !is_cut).then_some(Task { place, row, contender, sizes: left })
    }
}

/// Returns the cell of a contender that finished no run in time on this link with less loss, if
/// there is one.
fn cut_before(cells: &Cells, row: &Row, column: usize) -> Option<Cell> {
    let is_it = |(place, (of, _)): &(&(usize, usize, u64), &(Row, Cell))| {
        let same = place.1 == column && (of.rate, of.rtt) == (row.rate, row.rtt);
        same && of.loss < row.loss
    };
    cells.iter().filter(is_it).find_map(|(_, (of, cell))| cell.with_more_loss(of.loss))
}

fn tasks(rows: &[Row], present: &[Contender]) -> Vec<Task> {
    let of_row = |(line, row): (usize, &Row)| {
        let row = *row;
        let of_one = move |(column, contender): (usize, &Contender)| {
            let (place, sizes) = ((line, column), contender.sizes(&row));
            Task { place, row, contender: *contender, sizes }
        };
        present.iter().enumerate().map(of_one).collect::<Vec<_>>()
    };
    let tasks = rows.iter().enumerate().flat_map(of_row);
    tasks.filter(|task| !task.sizes.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::COMMON;
    use hier_collectives::plan::Operation;
    use std::cell::RefCell;
    use std::time::Duration;

    const GLOO: Contender = all_reduce(Program::Gloo { congestion: "bbr" });

    const OURS: Contender = all_reduce(Program::Landbridge);

    const fn all_reduce(program: Program) -> Contender {
        Contender { program, operation: Operation::AllReduce }
    }

    /// Measures with cells that are void where `void` says so, by contender, row, size and attempt.
    /// Returns what was measured, in order.
    fn attempts(
        rows: &[Row],
        until: Instant,
        void: impl Fn(Contender, &Row, u64, usize) -> bool,
    ) -> (Vec<(Contender, String, Vec<u64>)>, Measured) {
        let seen = RefCell::new(Vec::new());
        let how = |contender: Contender, row: &Row, sizes: &[u64]| {
            let of = (contender, row.to_string(), sizes.to_vec());
            seen.borrow_mut().push(of);
            let seen = seen.borrow();
            let before =
                seen.iter().filter(|(who, of, _)| (*who, of) == (contender, &row.to_string()));
            let attempt = before.count();
            let cell = |bytes: &u64| Cell {
                void: void(contender, row, *bytes, attempt).then(|| "late".to_owned()),
                ..Cell::new(&contender.name(), "lab", *bytes, vec![1.0], 1.0)
            };
            Ok(sizes.iter().map(cell).collect())
        };
        let (bar, mut measured) = (ProgressBar::hidden(), Measured::default());
        Attempts { how: &how, until, bar: &bar }.measure(rows, &[OURS, GLOO], &mut measured);
        (seen.into_inner(), measured)
    }

    #[test]
    fn void_cells_are_repeated_with_bounded_ones_first() {
        let all = Row::matrix(false);
        let bounded = |row: &&Row| is_bounded(row, &GLOO.name(), GLOO.operation.name());
        let rows = [
            *all.iter().find(|row| !bounded(row)).expect("no bound"),
            *all.iter().find(bounded).expect("a bound"),
        ];
        let later = Instant::now() + Duration::from_secs(3600);
        let void = |who: Contender, row: &Row, bytes: u64, attempt: usize| match who {
            GLOO => attempt < 3,
            _ => *row == rows[0] && bytes > rows[0].sizes[0] && attempt == 1,
        };
        let (seen, measured) = attempts(&rows, later, void);
        let [unbound, bound] = rows.map(|row| row.to_string());
        let of = |who, row: &String, sizes: &[u64]| (who, row.clone(), sizes.to_vec());
        let ours = OURS;
        let expected = [
            of(ours, &unbound, rows[0].sizes),
            of(GLOO, &unbound, &[COMMON]),
            of(ours, &bound, rows[1].sizes),
            of(GLOO, &bound, &[COMMON]),
            // The first size was good.
            of(ours, &unbound, &rows[0].sizes[1..]),
            of(GLOO, &bound, &[COMMON]),
            of(GLOO, &bound, &[COMMON]),
            of(GLOO, &unbound, &[COMMON]),
            of(GLOO, &unbound, &[COMMON]),
        ];
        assert_eq!(seen, expected);
        assert_eq!(measured.cells.len(), rows[0].sizes.len() + rows[1].sizes.len() + 2);
        assert!(measured.cells.iter().all(|(_, cell)| cell.void.is_none()));
        let last = measured.cells.iter().map(|(_, cell)| cell.attempt).max();
        assert_eq!(last, Some(3));
    }

    #[test]
    fn a_cell_that_stays_void_is_shown_as_void() {
        let rows = &Row::matrix(false)[..1];
        let later = Instant::now() + Duration::from_secs(3600);
        let (seen, measured) = attempts(rows, later, |who, _, _, _| who == GLOO);
        let gloo = |cell: &Cell| cell.who == GLOO.name();
        assert_eq!(seen.iter().filter(|(who, ..)| *who == GLOO).count() as u32, ATTEMPTS);
        let void: Vec<_> = measured.cells.iter().filter(|(_, cell)| cell.void.is_some()).collect();
        assert!(void.len() == 1 && gloo(&void[0].1) && void[0].1.attempt == ATTEMPTS);
        let (seen, measured) = attempts(rows, Instant::now(), |_, _, _, _| true);
        assert_eq!(seen.len(), 2, "all once, whatever the time");
        assert!(measured.cells.iter().all(|(_, cell)| cell.void.is_some()));
    }

    #[test]
    fn contenders_without_a_timely_run_skip_rows_of_more_loss() {
        let rows = Row::matrix(false);
        let at = |loss: usize| rows[8 + loss];
        assert!(at(1).rtt == at(2).rtt && at(1).loss < at(2).loss);
        let cell = |seconds: Vec<f64>| Cell::new("someone", "lab", COMMON, seconds, 1.0);
        let of = |cell: Cell, row: &Row, column| {
            let cells = Cells::from([((9, 3, COMMON), (at(1), cell))]);
            cut_before(&cells, row, column).map(|cell| cell.cut_from)
        };
        assert_eq!(of(cell(vec![]), &at(2), 3), Some(Some(at(1).loss.to_string())));
        assert_eq!(of(cell(vec![19.0]), &at(2), 3), None, "slow, but in time");
        assert_eq!(of(cell(vec![]), &at(2), 4), None, "another contender");
        assert_eq!(of(cell(vec![]), &at(0), 3), None, "less loss");
        assert_eq!(of(cell(vec![]), &rows[14], 3), None, "another link");
        let void = Cell { void: Some("late".to_owned()), ..cell(vec![]) };
        assert_eq!(of(void, &at(2), 3), None);
    }

    #[test]
    fn other_operations_are_measured_over_their_links_alone() {
        let gather = Contender { operation: Operation::AllGather, ..GLOO };
        let tasks = tasks(&Row::matrix(false), &[gather]);
        let rtts: Vec<u64> = tasks.iter().map(|task| task.row.rtt.ns() / 1_000_000).collect();
        assert_eq!(rtts, [2, 20, 80]);
        assert!(tasks.iter().all(|task| task.row.loss.as_f64() == 0.0));
        assert_eq!(tasks.len(), Row::of_operations().len());
    }
}
