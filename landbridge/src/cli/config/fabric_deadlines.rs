//! The deadlines of a fabric that follow from its patience, as `landbridge check` prints them.

use crate::cli::output::table::render_table;
use gateway::config::FabricFile;
use hier_collectives::plan::Plan;
use hier_collectives::topology::PatienceDeadline;
use serde::Serialize;
use units::Span;

/// The deadlines of one fabric. The field names are keys of the JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FabricDeadlines {
    /// Name of the fabric.
    fabric: String,
    /// Its patience.
    patience_seconds: f64,
    /// The deadlines that follow, where each is longest.
    deadlines: Vec<FabricDeadline>,
}

/// One deadline of a fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FabricDeadline {
    /// Its name.
    deadline: &'static str,
    /// Its time, in seconds.
    seconds: f64,
    /// The origin of the time: `patience`, `silence` or `link`.
    source: &'static str,
    /// The event at its end.
    meaning: &'static str,
}

impl FabricDeadlines {
    /// Computes the deadlines of a fabric that gateways would plan so.
    pub(super) fn of_file(file: &FabricFile, plan: &Plan) -> Self {
        let fabric = file.fabric();
        let deadline =
            |PatienceDeadline { rule, after, source }: PatienceDeadline| FabricDeadline {
                deadline: rule.name,
                seconds: after.as_secs_f64(),
                source: source.name(),
                meaning: rule.meaning,
            };
        Self {
            fabric: fabric.name().to_owned(),
            patience_seconds: fabric.patience().span().as_secs_f64(),
            deadlines: fabric.patience_deadlines(plan.segment).map(deadline).to_vec(),
        }
    }

    /// Returns the deadlines as a table, for people.
    pub(super) fn render(&self) -> String {
        let patience = Span::from_secs_f64(self.patience_seconds);
        let row = |one: &FabricDeadline| {
            let after = Span::from_secs_f64(one.seconds).rounded();
            [one.deadline.to_owned(), after, one.source.to_owned(), one.meaning.to_owned()]
        };
        let rows: Vec<_> = self.deadlines.iter().map(row).collect();
        let table = render_table(["deadline", "after", "by", "at its end"], &rows);
        format!("\nDeadlines of fabric {} by its patience of {patience}:\n{table}", self.fabric)
    }
}
