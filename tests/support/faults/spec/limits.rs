//! The longest times that are promised, read from the page that promises them. So the page and the
//! oracle cannot differ.

use hier_collectives::post::FailureCode;
use std::collections::BTreeMap;
use units::Span;

/// The longest times of `docs/failures.md`.
#[derive(Debug, Clone)]
pub struct Limits {
    /// A result or a commit's confirmation, and slots, when nothing is in the way.
    pub result: Span,
    /// The time until both sides know what one knows, without obstacles.
    pub news: Span,
    /// The longest silence that must do no harm.
    pub harmless: Span,
    /// Code 8 of a gateway that drains, where all have posted.
    pub drained: Span,
    /// The time until a silent lane is given up, and others carry what it carried.
    pub lane_given_up: Span,
    /// The time from the end of the last fault until all ranks work again.
    pub recovery: Span,
    codes: BTreeMap<FailureCode, Span>,
}

/// Text of `docs/failures.md`, which has the limits on how long each outcome may take.
const PAGE: &str = include_str!("../../../../docs/failures.md");
/// Heading in `docs/failures.md` above the table of limits.
const HEAD: &str = "## How long at most";

impl Limits {
    /// The limits of `docs/failures.md`.
    ///
    /// # Panics
    /// When the page lacks one.
    pub fn of_the_page() -> Self {
        let (_, section) = PAGE.split_once(HEAD).expect("the section of limits");
        let section = section.split("\n## ").next().unwrap_or_default();
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (what, limit) = (cells.next()?, cells.next()?);
            Some((what.to_owned(), limit.parse::<Span>().ok()?))
        };
        let rows: BTreeMap<String, Span> = section.lines().filter_map(row).collect();
        let limit = |what: &str| {
            let found = rows.iter().find(|(name, _)| {
                name.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
            });
            *found.unwrap_or_else(|| panic!("no row `{what}` under `{HEAD}`")).1
        };
        let codes = FailureCode::ALL.into_iter();
        Self {
            result: limit("result"),
            news: limit("news"),
            harmless: limit("silence without harm"),
            drained: limit("code 8, of a gateway that finishes what all have posted first"),
            lane_given_up: limit("a silent lane is given up"),
            recovery: limit("recovery"),
            codes: codes.map(|code| (code, limit(&format!("code {}", code as u8)))).collect(),
        }
    }

    /// The time from the cause of a failure to its report.
    pub fn of(&self, code: FailureCode) -> Span {
        self.codes[&code]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_promises_no_time_that_is_not_judged() {
        let (rest, section) = PAGE.split_once(HEAD).expect("the section of limits");
        let (section, faults) = section.split_once("\n## ").expect("the faults after it");
        assert!(!rest.contains("| at most |"), "faults come after the limits");
        let times = |text: &str| -> Vec<String> {
            let words: Vec<&str> = text.split([' ', ',', ';', '|', '.']).collect();
            let pairs =
                words.windows(2).filter(|pair| pair[1] == "s" && pair[0].parse::<u32>().is_ok());
            pairs.map(|pair| format!("{} s", pair[0])).collect()
        };
        let judged = times(section);
        let mut column = None;
        for line in faults.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            column = match (line.starts_with('|'), cells.iter().position(|cell| *cell == "at most"))
            {
                (false, _) => None,
                (true, None) => column,
                (true, at) => at,
            };
            for time in column.and_then(|at| cells.get(at)).into_iter().flat_map(|cell| times(cell))
            {
                assert!(judged.contains(&time), "{time} is in no row of the limits: {line}");
            }
        }
        Limits::of_the_page();
    }
}
