//! Whether a figure is as wanted, and whether its run counts.
#![allow(dead_code, reason = "not every bench repeats void runs")]

use wan_sim::FidelityReport;

/// Returns the text of a table's last column.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "NOT MET" }
}

/// Says how many of these runs are void, and why the first of them is.
pub fn void<'a>(reports: impl IntoIterator<Item = &'a FidelityReport>) -> String {
    let (mut all, mut void) = (0, Vec::new());
    for report in reports {
        all += 1;
        void.extend((!report.void.is_empty()).then(|| report.void.join(", ")));
    }
    let why = void.first().map_or(String::new(), |why| format!(", the first: {why}"));
    format!("{} of {all}{why}", void.len())
}

/// A figure and the run that it comes from.
pub struct Tried<T> {
    /// The figure.
    pub value: T,
    /// The fidelity report of its run.
    pub report: FidelityReport,
    /// Void runs before the run that counts.
    pub void_before: usize,
}

/// Measures until a run is not void, at most [`TRIES`] times. The last run counts, void or not.
pub fn tried<T>(mut measure: impl FnMut() -> (T, FidelityReport)) -> Tried<T> {
    for void_before in 0.. {
        let (value, report) = measure();
        if report.void.is_empty() || void_before + 1 == TRIES {
            return Tried { value, report, void_before };
        }
    }
    unreachable!("the last try returns")
}

impl<T> Tried<T> {
    /// Returns the verdict on the figure; a void run meets nothing.
    pub fn verdict(&self, met: bool) -> &'static str {
        match (self.report.void.is_empty(), met) {
            (true, met) => verdict(met),
            (false, _) => "NOT MET: void",
        }
    }

    /// Describes the run in a few words.
    pub fn run(&self) -> String {
        let FidelityReport { lateness_p999, cpu_permille, machine_permille, .. } = self.report;
        let again = match self.void_before {
            0 => String::new(),
            void => format!("after {void} void: "),
        };
        let good = match self.report.void.as_slice() {
            [] => "good".to_owned(),
            reasons => format!("VOID: {}", reasons.join(", ")),
        };
        format!(
            "{again}{good}, p99.9 {:.2} ms late, CPU {} %, machine {} % busy",
            lateness_p999.ns() as f64 / 1e6,
            cpu_permille / 10,
            machine_permille.unwrap_or_default() / 10
        )
    }
}

/// 5 runs: the most for one figure, while the runs before were void.
const TRIES: usize = 5;
