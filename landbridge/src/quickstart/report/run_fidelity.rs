//! Whether the times of a quickstart are those of its link, or of a machine that was too busy.
//!
//! The runner reads processor times before and after the all-reduces, and asks the relay for its
//! own verdict. A quickstart whose times do not count is void, as a run of `wan-sim lab` is.

use super::processor_times::ProcessorTimes;
use serde::{Deserialize, Serialize};
use units::{Span, rounded_decimal_percent};

/// 5 % of the time of all processors: with less idle time processes wait for each other. Such a run
/// is void if other programs took more than [`OTHERS_FRACTION_MAX`]. The fraction is chosen.
const IDLE_FRACTION_MIN: f64 = 0.05;

/// 10 % of the time of all processors: where other programs took more, a run with less idle time
/// than [`IDLE_FRACTION_MIN`] is void. Its times then do not count. The fraction is chosen.
const OTHERS_FRACTION_MAX: f64 = 0.10;

/// Fidelity of the all-reduces to the emulated link. The field names are keys of the JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct QuickstartRunFidelity {
    /// Lateness in seconds that all but one packet in a thousand kept below at the relay.
    pub lateness_p999_seconds: f64,
    /// Fraction of all processors' time in which they worked, 0 to 1; `None` where unknown.
    pub machine_busy: Option<f64>,
    /// Fraction of all processors' time that other programs took, 0 to 1; `None` where unknown.
    pub busy_by_others: Option<f64>,
    /// Reasons why the times do not count; empty when they do.
    pub void: Vec<String>,
}

/// Answer of the relay to `fidelity`, as far as the quickstart reads it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(in crate::quickstart) struct RelayFidelity {
    lateness_ns: RelayLateness,
    void: Vec<String>,
}

/// Lateness of the relay's deliveries.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct RelayLateness {
    p999: u64,
}

impl QuickstartRunFidelity {
    /// Judges a run by the relay's verdict and by the processor times before and after it. The run
    /// is void if the relay says so, or by [`IDLE_FRACTION_MIN`] and [`OTHERS_FRACTION_MAX`].
    pub(in crate::quickstart) fn new(
        relay: RelayFidelity,
        before: Option<ProcessorTimes>,
        after: Option<ProcessorTimes>,
    ) -> Self {
        let shares = before.zip(after).and_then(|(before, after)| after.shares_since(&before));
        let mut void = relay.void;
        if let Some((busy, others)) = shares
            && 1.0 - busy < IDLE_FRACTION_MIN
            && others > OTHERS_FRACTION_MAX
        {
            void.push(format!(
                "the machine was {} busy, {} with other programs",
                rounded_decimal_percent(busy),
                rounded_decimal_percent(others)
            ));
        }
        Self {
            lateness_p999_seconds: Span::from_ns(relay.lateness_ns.p999).as_secs_f64(),
            machine_busy: shares.map(|(busy, _)| busy),
            busy_by_others: shares.map(|(_, others)| others),
            void,
        }
    }

    /// Returns the measurements, or the reasons why the times do not count, for a table.
    pub(in crate::quickstart) fn describe(&self) -> String {
        if !self.void.is_empty() {
            return self.void.join("; ");
        }
        let late = Span::from_secs_f64(self.lateness_p999_seconds).rounded();
        let busy = self.machine_busy.map_or("unknown".to_owned(), rounded_decimal_percent);
        format!("packets late by {late} (p99.9), machine busy: {busy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(all: u64, idle: u64, own: u64) -> Option<ProcessorTimes> {
        Some(ProcessorTimes { all, idle, interrupts: 0, own })
    }

    fn relay(void: &[&str]) -> RelayFidelity {
        let void = void.iter().map(ToString::to_string).collect();
        RelayFidelity { lateness_ns: RelayLateness { p999: 400_000 }, void }
    }

    #[test]
    fn a_machine_busy_with_others_voids_the_run() {
        let start = times(0, 0, 0);
        let run = |idle, own| QuickstartRunFidelity::new(relay(&[]), start, times(1000, idle, own));
        // Its own processes may use all of it.
        assert!(run(0, 950).void.is_empty());
        // Others do no harm where processors are idle.
        assert!(run(300, 300).void.is_empty());
        let busy = run(20, 600);
        assert_eq!(busy.void, ["the machine was 98 % busy, 38 % with other programs"]);
        assert_eq!((busy.machine_busy, busy.busy_by_others), (Some(0.98), Some(0.38)));
    }

    #[test]
    fn a_void_run_of_the_relay_voids_the_quickstart() {
        let void = QuickstartRunFidelity::new(relay(&["it stood still"]), None, None);
        assert_eq!((void.describe().as_str(), void.machine_busy), ("it stood still", None));
        let good = QuickstartRunFidelity::new(relay(&[]), times(0, 0, 0), times(100, 40, 50));
        assert_eq!(good.describe(), "packets late by 400 us (p99.9), machine busy: 60 %");
    }
}
