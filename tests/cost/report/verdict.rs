//! The bounds, and a verdict for each.

use crate::figure::Figure;
use crate::measured::{Idle, Measured};
use crate::row::{Contender, FULL, GIGABIT, MTUS, Row};
use serde::Serialize;

/// 1.25: the cost of a byte at 1 Gbit/s over that at full speed, at most.
const AT_GIGABIT_MAX: f64 = 1.25;

/// 0.85: the cost of a byte over that of quinn as shipped that also adds, at most.
const OF_QUINN_MAX: f64 = 0.85;

/// 0.6: the cost of a byte at 1 Gbit/s over that of an older binary in the same run, at most.
const OF_BEFORE_MAX: f64 = 0.6;

/// 0.3 percent of one core: the most that an idle gateway takes.
const IDLE_CORE_PERCENT_MAX: f64 = 0.3;

/// 20 wake-ups in a second: all threads of an idle gateway together may have at most so many.
const IDLE_WAKEUPS_MAX: f64 = 20.0;

/// 10.7 s: the processor time of both gateways for each GB at 1 Gbit/s and MTU 1500 on loopback, as
/// recorded before batches of packets were longer. Another machine has another figure.
pub const RECORDED_BEFORE: f64 = 10.7;

/// Whether a bound is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The figure is within its bound.
    #[serde(rename = "met")]
    Met,
    /// The figure is beyond its bound.
    #[serde(rename = "not met")]
    NotMet,
    /// There is no figure.
    #[serde(rename = "skipped")]
    Skipped,
}

impl Outcome {
    /// Returns the word in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "NOT MET",
            Self::Skipped => "SKIPPED",
        }
    }
}

/// One bound, with its figure.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The bound in words.
    pub wanted: String,
    /// Median and spread of the figure; `None` where it was not measured.
    pub figure: Option<Figure>,
    /// The most that meets the bound.
    pub most: f64,
    /// Whether it is met.
    pub outcome: Outcome,
}

impl Verdict {
    /// Judges `held`, which is the median of `figure` or its worst value.
    fn at_most(
        wanted: &str,
        figure: Option<Figure>,
        held: impl Fn(&Figure) -> f64,
        most: f64,
    ) -> Self {
        let outcome = match figure.as_ref().map(held) {
            None => Outcome::Skipped,
            Some(held) if held <= most => Outcome::Met,
            // Also for no number.
            Some(_) => Outcome::NotMet,
        };
        Self { wanted: format!("{wanted} <= {most}"), figure, most, outcome }
    }
}

/// Returns all bounds of which something was to be measured.
pub fn verdicts(measured: &Measured) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for mtu in MTUS {
        let wanted = format!("1 Gbit/s / full speed, MTU {mtu}");
        let rows = [GIGABIT, FULL].map(|mbit| Row { mtu, ..Row::plain(mbit) });
        verdicts.extend(ratio(measured, &wanted, rows, AT_GIGABIT_MAX));
    }
    let ours = Row::plain(FULL);
    let quinn = Row { who: Contender::Quinn, ..ours };
    verdicts.extend(ratio(measured, "full speed / bare quinn", [ours, quinn], OF_QUINN_MAX));
    let ours = Row::plain(GIGABIT);
    let before = Row { who: Contender::Before, ..ours };
    verdicts.extend(ratio(measured, "1 Gbit/s / before", [ours, before], OF_BEFORE_MAX));
    // A bench that was ended early has none of these.
    if let Some(took) = &measured.took {
        let idle = |of: fn(&Idle) -> &Vec<f64>| {
            measured.idle.as_ref().and_then(|idle| Figure::of(of(idle).iter().copied()))
        };
        let worst = |figure: &Figure| figure.most;
        let core = idle(|idle| &idle.core_percent);
        let wakeups = idle(|idle| &idle.wakeups_per_second);
        let minutes = Figure::of([took.whole.as_secs_f64() / 60.0]);
        let most = took.at_most.as_secs_f64() / 60.0;
        verdicts.extend([
            Verdict::at_most("idle gateway, % of a core", core, worst, IDLE_CORE_PERCENT_MAX),
            Verdict::at_most("idle gateway, wake-ups/s", wakeups, worst, IDLE_WAKEUPS_MAX),
            Verdict::at_most("minutes of this bench", minutes, worst, most),
        ]);
    }
    verdicts
}

/// Returns the verdict on the ratio between the costs of two rows, run by run; `None` unless both
/// were asked for.
fn ratio(measured: &Measured, wanted: &str, rows: [Row; 2], most: f64) -> Option<Verdict> {
    let [over, under] = [measured.cell(&rows[0])?, measured.cell(&rows[1])?];
    let pairs = over.samples.iter().zip(&under.samples);
    let ratios = pairs.map(|(over, under)| over.cpu_per_gb() / under.cpu_per_gb());
    Some(Verdict::at_most(wanted, Figure::of(ratios), |figure| figure.median, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::{Cell, Sample, Took};
    use std::time::Duration;

    /// A row with runs of these costs, in processor seconds for each GB.
    fn cell(row: Row, costs: &[f64]) -> Cell {
        let sample = |cost: &f64| {
            let cpu_seconds = 2.0 * cost;
            Sample { gigabytes: 2.0, gbit: 1.0, cpu_seconds, ..Sample::default() }
        };
        Cell { samples: costs.iter().map(sample).collect(), ..Cell::new(row) }
    }

    fn outcome(cells: Vec<Cell>, wanted: &str) -> Option<(Outcome, Option<Figure>)> {
        let verdicts = verdicts(&Measured { cells, ..Measured::default() });
        let found = verdicts.into_iter().find(|verdict| verdict.wanted.starts_with(wanted));
        found.map(|verdict| (verdict.outcome, verdict.figure))
    }

    #[test]
    fn ratios_are_of_runs_in_the_same_round() {
        let cells = |full: &[f64]| {
            vec![cell(Row::plain(GIGABIT), &[10.0, 20.0, 11.0]), cell(Row::plain(FULL), full)]
        };
        // A busy second round made both dearer.
        let (met, figure) = outcome(cells(&[10.0, 20.0, 10.0]), "1 Gbit/s / full").expect("asked");
        assert_eq!(met, Outcome::Met);
        let figure = figure.expect("runs");
        assert_eq!((figure.median, figure.most, figure.runs), (1.0, 1.1, 3));
        let (missed, _) = outcome(cells(&[5.0, 10.0, 5.0]), "1 Gbit/s / full").expect("asked");
        assert_eq!(missed, Outcome::NotMet);
    }

    #[test]
    fn a_verdict_without_a_figure_is_skipped() {
        let quinn = Row { who: Contender::Quinn, ..Row::plain(FULL) };
        let cells = vec![cell(Row::plain(FULL), &[5.0]), cell(quinn, &[])];
        assert_eq!(outcome(cells, "full speed / bare"), Some((Outcome::Skipped, None)));
        let alone = vec![cell(Row::plain(FULL), &[5.0])];
        assert_eq!(outcome(alone, "full speed / bare"), None, "not asked for");
        let took = Some(Took { whole: Duration::from_secs(60), at_most: Duration::from_secs(60) });
        let verdicts = verdicts(&Measured { took, ..Measured::default() });
        let outcomes: Vec<Outcome> = verdicts.iter().map(|verdict| verdict.outcome).collect();
        assert_eq!(outcomes, [Outcome::Skipped, Outcome::Skipped, Outcome::Met]);
    }

    #[test]
    fn the_worst_idle_gateway_counts() {
        let of = |core_percent: &[f64], wakeups: &[f64]| {
            let took = Took { whole: Duration::ZERO, at_most: Duration::from_secs(60) };
            let idle =
                Idle { core_percent: core_percent.to_vec(), wakeups_per_second: wakeups.to_vec() };
            let (idle, took) = (Some(idle), Some(took));
            let verdicts = verdicts(&Measured { idle, took, ..Measured::default() });
            [verdicts[0].outcome, verdicts[1].outcome]
        };
        assert_eq!(of(&[0.1, 0.3], &[5.0, 20.0]), [Outcome::Met; 2]);
        assert_eq!(of(&[0.1, 0.31], &[5.0, 20.5]), [Outcome::NotMet; 2]);
        assert_eq!(of(&[f64::NAN], &[]), [Outcome::NotMet, Outcome::Skipped]);
    }

    #[test]
    fn an_older_binary_of_the_same_run_is_a_bound() {
        let before = Row { who: Contender::Before, ..Row::plain(GIGABIT) };
        let cells = vec![cell(Row::plain(GIGABIT), &[6.0]), cell(before, &[10.0])];
        let (met, _) = outcome(cells, "1 Gbit/s / before").expect("asked");
        assert_eq!(met, Outcome::Met);
    }
}
