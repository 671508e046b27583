//! Decides which problems of the gateway are logged: those that last, since many end by themselves.

use crate::observe::problem_cause::{ProblemCause, ProblemReport};
use crate::warnings::{WarningCause, Warnings};
use std::collections::BTreeMap;
use units::{Span, TimeNs};

/// 30 s: a problem of the gateway is logged once it has lasted both 30 s and 20 round trips of the
/// longest link. A problem that ends sooner is not logged. Gateways that start within 20 s of each
/// other, and lanes that are lost, are connected sooner.
/// Tested by `start_orders_within_20_s_need_no_warning`.
const PROBLEM_LOGGED_AFTER_MIN: Span = Span::from_secs(30);
/// 20 round trips of the longest link: a problem of the gateway is logged once it has lasted both
/// 20 round trips and 30 s. Gateways meet within 20 round trips even if packets are lost.
const PROBLEM_LOGGED_AFTER_ROUNDS: u64 = 20;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProblemLine {
    /// A problem has lasted: a warning.
    Lasts(String),
    /// A problem has lasted of which an operator was warned less than ten minutes ago.
    LastsStill(String),
    /// A problem that was logged is over.
    Ended(String),
}

/// The kind of a problem, and the party that has it.
pub(crate) type ProblemKey = (ProblemCause, String);

/// A problem that the gateway has now.
#[derive(Debug)]
struct OngoingProblem {
    since: TimeNs,
    /// Its text when it was logged.
    logged: Option<String>,
}

/// The problems that the gateway has now.
#[derive(Debug)]
pub(crate) struct ProblemLog {
    /// How long a problem lasts before it is logged.
    patience: Span,
    lasting: BTreeMap<ProblemKey, OngoingProblem>,
    warnings: Warnings,
}

impl ProblemLog {
    /// Makes the log of a gateway without problems. `rtt` is the round trip of the longest link.
    pub fn new(rtt: Span, warnings: Warnings) -> Self {
        let rounds = Span::from_ns(rtt.ns().saturating_mul(PROBLEM_LOGGED_AFTER_ROUNDS));
        let patience = rounds.max(PROBLEM_LOGGED_AFTER_MIN);
        Self { patience, lasting: BTreeMap::new(), warnings }
    }

    /// Updates the log by the problems of the gateway at `now`; returns the lines to log. A problem
    /// that has lasted long enough gets a line, and another one when its text changes. A problem
    /// that got a line gets one at its end.
    pub fn note_problems(
        &mut self,
        problems: &[ProblemReport],
        now: TimeNs,
    ) -> Vec<(ProblemKey, ProblemLine)> {
        let mut lines = Vec::new();
        let key = |problem: &ProblemReport| (problem.cause, problem.subject.clone());
        let present: Vec<_> =
            problems.iter().filter(|problem| is_logged_by_problem_log(problem.cause)).collect();
        let is_present = |known: &ProblemKey| present.iter().any(|p| key(p) == *known);
        let ended: Vec<_> = self.lasting.extract_if(.., |known, _| !is_present(known)).collect();
        for (known, ended) in ended {
            if ended.logged.is_some() {
                let lasted = now.since(ended.since).rounded();
                let text = format!("{}: no longer, after {lasted}", known.1);
                lines.push((known, ProblemLine::Ended(text)));
            }
        }
        for problem in present {
            let lasting = self
                .lasting
                .entry(key(problem))
                .or_insert(OngoingProblem { since: now, logged: None });
            if now.since(lasting.since) < self.patience {
                continue;
            }
            let text = problem.to_string();
            if lasting.logged.as_ref() == Some(&text) {
                continue;
            }
            let subject = format!("{} {}", problem.cause.name(), problem.subject);
            let line = match self.warnings.is_due(WarningCause::Problem, &subject, now) {
                true => ProblemLine::Lasts(text.clone()),
                false => ProblemLine::LastsStill(text.clone()),
            };
            lines.push((key(problem), line));
            lasting.logged = Some(text);
        }
        lines
    }
}

/// Returns whether a [`ProblemLog`] logs the problems of a cause. Those of other causes are logged
/// where they are found.
fn is_logged_by_problem_log(cause: ProblemCause) -> bool {
    match cause {
        ProblemCause::Peer
        | ProblemCause::Lanes
        | ProblemCause::Job
        | ProblemCause::JobFiles
        | ProblemCause::Rtt
        | ProblemCause::Fabric => true,
        ProblemCause::ShuttingDown
        | ProblemCause::Socket
        | ProblemCause::Processor
        | ProblemCause::Link
        | ProblemCause::Loss
        | ProblemCause::Restart
        | ProblemCause::Files => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the problem that lanes to west are missing.
    fn missing(found: &str) -> ProblemReport {
        ProblemReport {
            cause: ProblemCause::Lanes,
            blocks: false,
            subject: "gateway west-0".to_owned(),
            found: found.to_owned(),
            remedy: None,
        }
    }

    /// Notes one problem, or none, in each second of a range; returns the lines with their seconds.
    fn note(
        log: &mut ProblemLog,
        seconds: std::ops::Range<u64>,
        problem: Option<&ProblemReport>,
    ) -> Vec<(u64, ProblemLine)> {
        let mut noted = Vec::new();
        for second in seconds {
            let now = TimeNs::from_ns(7) + Span::from_secs(second);
            let lines = log.note_problems(problem.map_or(&[][..], std::slice::from_ref), now);
            noted.extend(lines.into_iter().map(|(_, line)| (second, line)));
        }
        noted
    }

    #[test]
    fn only_what_lasts_is_a_warning_once() {
        let (mut log, problem) =
            (ProblemLog::new(Span::from_ms(80), Warnings::default()), missing("1 of 4 lanes"));
        assert!(note(&mut log, 0..30, Some(&problem)).is_empty());
        assert!(note(&mut log, 30..40, None).is_empty(), "it ended in time");
        let text = "gateway west-0: 1 of 4 lanes".to_owned();
        let lines = note(&mut log, 40..500, Some(&problem));
        assert_eq!(lines, [(70, ProblemLine::Lasts(text.clone()))]);
        let ended = "gateway west-0: no longer, after 7.67 min".to_owned();
        assert_eq!(note(&mut log, 500..510, None), [(500, ProblemLine::Ended(ended))]);
        let lines = note(&mut log, 510..600, Some(&problem));
        assert_eq!(lines, [(540, ProblemLine::LastsStill(text))], "within ten minutes");
        let other = missing("2 of 4 lanes");
        let text = "gateway west-0: 2 of 4 lanes".to_owned();
        assert_eq!(note(&mut log, 700..800, Some(&other)), [(700, ProblemLine::Lasts(text))]);
    }

    #[test]
    fn problems_that_others_log_have_no_line() {
        let loss = ProblemReport { cause: ProblemCause::Loss, ..missing("loses 3 %") };
        assert!(
            note(&mut ProblemLog::new(Span::ZERO, Warnings::default()), 0..100, Some(&loss))
                .is_empty()
        );
    }
}
