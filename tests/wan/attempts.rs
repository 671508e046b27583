//! Everybody over every link of a lab, and once more what came out void.

use super::Measured;
use super::contender::{Contender, Tools};
use super::lab::Ground;
use super::report;
use super::row::{Cell, Row};
use super::verdict::is_bounded;
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::time::Instant;

/// How often anything is measured at most.
const ATTEMPTS: u32 = 8;

/// Cells by row, contender and size, which is also their order.
type Cells = BTreeMap<(usize, usize, u64), (Row, Cell)>;

/// One contender over one link, and the sizes that there is nothing good of yet.
struct Task {
    /// Where its cells are in the report.
    place: (usize, usize),
    row: Row,
    contender: Contender,
    sizes: &'static [u64],
}

/// Where it is measured, and until when what is void is measured again.
pub struct Attempts<'a> {
    pub tools: &'a Tools,
    pub ground: Ground,
    pub until: Instant,
    pub bar: &'a ProgressBar,
}

impl Attempts<'_> {
    /// All of `present` over all of `rows`, one after the other, so that a busy spell meets all.
    /// Then, while there is time, what the emulator called void, whoever it is of: what a bound is
    /// about before the rest, each time in another lab. What stays void is shown as it was last.
    pub fn measure(&self, rows: &[Row], present: &[Contender], measured: &mut Measured) {
        let mut tasks = tasks(rows, present);
        let mut cells = Cells::new();
        for attempt in 1..=ATTEMPTS {
            let mut again = Vec::new();
            for task in tasks {
                if attempt > 1 && Instant::now() >= self.until {
                    break;
                }
                again.extend(self.attempt(task, attempt, &mut cells, measured));
                self.bar.inc(1);
            }
            again.sort_by_key(|task| !is_bounded(&task.row, &task.contender.name()));
            self.bar.inc_length(again.len() as u64);
            tasks = again;
        }
        measured.cells.extend(cells.into_values());
    }

    /// Measures what is left of a task once; returns it with what is left after that.
    fn attempt(
        &self,
        task: Task,
        attempt: u32,
        cells: &mut Cells,
        measured: &mut Measured,
    ) -> Option<Task> {
        let Task { place, row, contender, sizes } = task;
        if contender != Contender::Landbridge
            && let Some(cell) = cut_before(cells, &row, place.1)
        {
            cells.insert((place.0, place.1, cell.bytes), (row, cell));
            return None;
        }
        self.bar.set_message(format!("{row}: {}", contender.name()));
        let found = match contender.measure(self.tools, &row, self.ground, sizes) {
            Ok(found) => found,
            Err(error) => {
                measured.skip(format!("{row}: {}: {error}", contender.name()));
                return None;
            }
        };
        // A lab that was late once says so of all that comes after as well.
        let good = found.iter().take_while(|cell| cell.void.is_none()).count();
        let is_cut = good > 0 && found[good - 1].seconds.is_none();
        // Whoever waits for so long may see what comes of it.
        let seen: String = found.iter().map(report::line).collect();
        self.bar.suspend(|| eprint!("{row} {seen}"));
        for cell in found {
            let cell = Cell { attempt, ..cell };
            cells.insert((place.0, place.1, cell.bytes), (row, cell));
        }
        let left = &sizes[good..];
        (!left.is_empty() && !is_cut).then_some(Task { place, row, contender, sizes: left })
    }
}

/// What cannot do one run in time over a link is not asked again to do so with more loss.
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
    rows.iter().enumerate().flat_map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::COMMON;

    #[test]
    fn only_what_did_nothing_in_time_is_not_asked_again_with_more_loss() {
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
        assert_eq!(of(cell(vec![]), &rows[13], 3), None, "another link");
        let void = Cell { void: Some("late".to_owned()), ..cell(vec![]) };
        assert_eq!(of(void, &at(2), 3), None);
    }
}
