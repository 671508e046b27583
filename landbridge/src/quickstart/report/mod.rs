//! The report of a quickstart: JSON, a table, and checks that must pass.
//!
//! The runner fills it in. [`binomial`] has the limits of random loss, [`run_fidelity`] judges whether
//! the times are those of the link, by [`processor_times`].

mod binomial;
pub(super) mod processor_times;
pub(crate) mod report_checks;
pub(super) mod run_fidelity;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use run_fidelity::QuickstartRunFidelity;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use units::{BitRate, ByteCount, Span, rounded_decimal_percent};

/// 1e-5: the largest difference of a model weight from training in one process with which a
/// quickstart passes its check. It is far above rounding, and far below the effect of wrong
/// averages.
/// Tested by `unweighted_averages_miss_the_reference`.
pub(crate) const REFERENCE_MAX_ABS_DIFF: f64 = 1e-5;
/// 1.03 to 1.15 IP bytes at the relay for each byte of payload: the range in which each direction
/// of a quickstart passes its check. Headers are 4.7 %, retransmissions and acknowledgements the
/// rest.
pub(crate) const RELAY_BYTES_PER_PAYLOAD_BYTE: RangeInclusive<f64> = 1.03..=1.15;
/// 0.0005: the probability with which a correct relay drops fewer packets than a quickstart's check
/// accepts, and also that with which it drops more. So one correct check of a thousand fails.
/// Tested by `large_cases_are_near_the_normal_approximation`.
pub(crate) const RELAY_DROPS_TAIL: f64 = 0.0005;

/// Report of a quickstart. The field names are the keys of its JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct QuickstartReport {
    /// True if the weights and results of all ranks are bit-identical.
    pub identical: bool,
    /// Largest difference of any final weight from the one-process reference.
    pub reference_max_abs_diff: f64,
    /// Fraction of the test images classified correctly, 0 to 1.
    pub accuracy: f64,
    /// Number of training steps.
    pub steps: u32,
    /// Samples of each global batch that each rank computed.
    pub batch_shares: Vec<u64>,
    /// Mean loss over the last global batch, in nats. The table shows it, the JSON does not.
    #[serde(skip)]
    pub loss: f64,
    /// The all-reduces after the training.
    pub allreduce: AllReduce,
    /// Counters of the relay during the all-reduces.
    pub relay: RelayCounters,
    /// The link that the relay emulated.
    pub link: LinkConditions,
    /// Whether the times are those of the link; a busy machine makes them void.
    pub fidelity: QuickstartRunFidelity,
}

/// The timed all-reduces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct AllReduce {
    /// Size of the buffer.
    pub bytes: u64,
    /// Number of all-reduces.
    pub iterations: u32,
    /// Median of `seconds`.
    pub seconds_median: f64,
    /// Time from the last post to the last result, of each iteration.
    pub seconds: Vec<f64>,
    /// T*, the lower bound: no algorithm takes less time on this link.
    pub bound_seconds: f64,
    /// Efficiency: T* over the median, 0 to 1.
    pub eta: f64,
    /// Bits of the buffer over the median.
    pub goodput_bits_per_second: f64,
    /// Stream bytes of one all-reduce in the direction with more of them, without retransmissions.
    pub wan_payload_bytes_per_direction: u64,
    /// Stages of the all-reduce with the median time.
    pub stage_seconds: StageSeconds,
}

/// Stages of an all-reduce. They sum to its time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct StageSeconds {
    /// Time before the first segment.
    pub local_reduce: f64,
    /// Time from the first segment to the last.
    pub wan: f64,
    /// Time after the last segment.
    pub deliver: f64,
}

/// Counters of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct RelayCounters {
    /// Counters from east to west.
    pub east_west: DirectionCounters,
    /// Counters from west to east.
    pub west_east: DirectionCounters,
}

/// Packets that arrived at the relay in one direction, over all iterations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct DirectionCounters {
    /// Bytes of IP packets, dropped ones included.
    pub ip_bytes: u64,
    /// Packets, dropped ones included.
    pub packets: u64,
    /// Packets dropped at random.
    pub drops_loss: u64,
    /// Packets dropped because the queue was full.
    pub drops_queue: u64,
}

/// Conditions of the emulated link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct LinkConditions {
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Rate of IP bytes in each direction.
    pub rate_bits_per_second: f64,
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
}

/// One check of a report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReportCheck {
    /// The claim that must hold.
    pub claim: String,
    /// The value found.
    pub found: String,
    /// True if the claim holds.
    pub passed: bool,
}

/// Returns a report and its checks as a table that is at most `columns` wide.
pub(crate) fn render_quickstart_report(
    report: &QuickstartReport,
    checks: &[ReportCheck],
    columns: u16,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    table.set_header(["", "", "check"]);
    quickstart_report_training_rows(&mut table, report);
    quickstart_report_all_reduce_rows(&mut table, report);
    quickstart_report_relay_rows(&mut table, report);
    for check in checks {
        let verdict = if check.passed { "pass" } else { "FAIL" };
        table.add_row([check.claim.as_str(), &check.found, verdict]);
    }
    let verdict = if report.fidelity.void.is_empty() { "good" } else { "VOID" };
    table.add_row(["fidelity", &report.fidelity.describe(), verdict]);
    let numbers = table.column_mut(1).expect("three columns");
    numbers.set_cell_alignment(CellAlignment::Right);
    table.to_string()
}

/// Returns the name and the counters of each direction of the relay.
fn quickstart_report_directions(
    report: &QuickstartReport,
) -> impl Iterator<Item = (&'static str, &DirectionCounters)> {
    let RelayCounters { east_west, west_east } = &report.relay;
    [("east to west", east_west), ("west to east", west_east)].into_iter()
}

/// Adds steps, shares of the batch, loss and accuracy to the report's table.
fn quickstart_report_training_rows(table: &mut Table, report: &QuickstartReport) {
    let shares: Vec<String> = report.batch_shares.iter().map(u64::to_string).collect();
    table.add_row(["training steps", &report.steps.to_string()]);
    table.add_row(["samples of each batch, by rank", &shares.join(", ")]);
    table.add_row(["loss, last batch", &format!("{:.4}", report.loss)]);
    table.add_row(["test accuracy", &rounded_decimal_percent(report.accuracy)]);
}

/// Adds the link and the times, goodput and stages of the all-reduces to the report's table.
fn quickstart_report_all_reduce_rows(table: &mut Table, report: &QuickstartReport) {
    let all_reduce = &report.allreduce;
    let LinkConditions { rtt_ms, rate_bits_per_second, loss } = report.link;
    let time = |seconds: f64| Span::from_secs_f64(seconds).rounded();
    let rate = |bits: f64| BitRate::from_bits_per_second(bits.round() as u64).rounded();
    let size = |bytes: u64| ByteCount::new(bytes).rounded();
    let (rtt, bandwidth) = (time(rtt_ms / 1e3), rate(rate_bits_per_second));
    let link = format!("RTT {rtt}, {bandwidth}\nloss {}", rounded_decimal_percent(loss));
    let times = format!("{} all-reduces of", all_reduce.iterations);
    let median = all_reduce.seconds_median;
    table.add_row(["link", &link]);
    table.add_row([times.as_str(), &size(all_reduce.bytes)]);
    table.add_row(["median time", &time(median)]);
    table.add_row(["lower bound T*", &time(all_reduce.bound_seconds)]);
    table.add_row(["efficiency (eta)", &format!("{:.3}", all_reduce.eta)]);
    table.add_row(["goodput", &rate(all_reduce.goodput_bits_per_second)]);
    let StageSeconds { local_reduce, wan, deliver } = all_reduce.stage_seconds;
    for (stage, seconds) in [("local reduce", local_reduce), ("WAN", wan), ("deliver", deliver)] {
        let found = format!("{} ({})", time(seconds), rounded_decimal_percent(seconds / median));
        table.add_row([&format!("time in {stage}"), &found]);
    }
    let payload = size(all_reduce.wan_payload_bytes_per_direction);
    table.add_row(["WAN payload per direction", &payload]);
}

/// Adds the bytes, packets and drops of each direction of the relay to the table.
fn quickstart_report_relay_rows(table: &mut Table, report: &QuickstartReport) {
    for (name, counted) in quickstart_report_directions(report) {
        let DirectionCounters { ip_bytes, packets, drops_loss, drops_queue } = *counted;
        let found = format!(
            "{}\n{packets} packets\n{drops_loss} lost at random\n{drops_queue} in a full queue",
            ByteCount::new(ip_bytes).rounded()
        );
        table.add_row([&format!("relay {name}"), &found]);
    }
}

#[cfg(test)]
mod tests {
    use super::report_checks::check_quickstart_report;
    use super::*;

    const BYTES: u64 = 64 << 20;

    fn good() -> QuickstartReport {
        let counted = DirectionCounters {
            ip_bytes: BYTES * 5 * 107 / 100,
            packets: 240_000,
            drops_loss: 245,
            drops_queue: 0,
        };
        QuickstartReport {
            identical: true,
            reference_max_abs_diff: 4e-7,
            accuracy: 0.967,
            steps: 80,
            batch_shares: vec![22, 21, 11, 43],
            loss: 0.05,
            allreduce: AllReduce {
                bytes: BYTES,
                iterations: 5,
                seconds_median: 1.2,
                seconds: vec![1.2, 1.1, 1.3, 1.2, 1.25],
                bound_seconds: 1.16,
                eta: 0.967,
                goodput_bits_per_second: 447.4e6,
                wan_payload_bytes_per_direction: BYTES,
                stage_seconds: StageSeconds { local_reduce: 0.01, wan: 1.18, deliver: 0.01 },
            },
            relay: RelayCounters { east_west: counted, west_east: counted },
            link: LinkConditions { rtt_ms: 80.0, rate_bits_per_second: 5e8, loss: 0.001 },
            fidelity: QuickstartRunFidelity {
                lateness_p999_seconds: 0.0004,
                machine_busy: Some(0.75),
                busy_by_others: Some(0.125),
                void: vec![],
            },
        }
    }

    /// Returns the claims that fail after `change`.
    fn failed(change: impl FnOnce(&mut QuickstartReport)) -> Vec<String> {
        let mut report = good();
        change(&mut report);
        let failed = check_quickstart_report(&report).into_iter().filter(|check| !check.passed);
        failed.map(|check| check.claim).collect()
    }

    /// Asserts that a change makes one check fail, whose claim begins with `claim`.
    fn only_failure(claim: &str, change: impl FnOnce(&mut QuickstartReport)) {
        let failed = failed(change);
        assert!(matches!(&failed[..], [one] if one.starts_with(claim)), "{claim}: {failed:?}");
    }

    #[test]
    fn a_good_report_passes_all_six_checks() {
        assert_eq!(check_quickstart_report(&good()).len(), 6);
        assert_eq!(failed(|_| ()), [""; 0]);
    }

    #[test]
    fn each_fault_fails_its_own_check() {
        only_failure("final weights", |r| r.identical = false);
        only_failure("within 1e-5", |r| r.reference_max_abs_diff = 1.01e-5);
        only_failure("within 1e-5", |r| r.reference_max_abs_diff = f64::NAN);
        let bytes = "relay/payload";
        only_failure(bytes, |r| r.relay.east_west.ip_bytes = BYTES * 5 * 102 / 100);
        only_failure(bytes, |r| r.relay.west_east.ip_bytes = BYTES * 5 * 116 / 100);
        // Expected 240, standard deviation 15.5.
        only_failure("random drops east to west", |r| r.relay.east_west.drops_loss = 185);
        only_failure("random drops west to east", |r| r.relay.west_east.drops_loss = 300);
    }

    #[test]
    fn the_payload_of_all_iterations_counts() {
        assert_eq!(failed(|r| r.allreduce.iterations = 1).len(), 2);
        assert_eq!(failed(|r| r.allreduce.iterations = 0).len(), 2);
        assert_eq!(failed(|r| r.allreduce.wan_payload_bytes_per_direction = 0).len(), 2);
    }

    #[test]
    fn the_edges_of_the_intervals_pass() {
        let edges = |r: &mut QuickstartReport| {
            r.reference_max_abs_diff = 1e-5;
            r.relay.east_west.ip_bytes = (BYTES * 5 * 103).div_ceil(100);
            r.relay.west_east.ip_bytes = BYTES * 5 * 115 / 100;
            r.relay.east_west.drops_loss = 192;
            r.relay.west_east.drops_loss = 292;
        };
        assert_eq!(failed(edges), [""; 0]);
    }

    #[test]
    fn a_lossless_link_must_not_drop_at_random() {
        let lossless = |drops| {
            failed(move |r| {
                r.link.loss = 0.0;
                r.relay.east_west.drops_loss = drops;
                r.relay.west_east.drops_loss = 0;
            })
        };
        assert_eq!(lossless(0), [""; 0]);
        assert_eq!(lossless(1).len(), 1);
    }

    #[test]
    fn the_json_has_the_agreed_keys() {
        let counters = serde_json::json!({
            "ip_bytes": 359_032_422_u64, "packets": 240_000, "drops_loss": 245, "drops_queue": 0,
        });
        let want = serde_json::json!({
            "identical": true, "reference_max_abs_diff": 4e-7, "accuracy": 0.967, "steps": 80,
            "batch_shares": [22, 21, 11, 43],
            "allreduce": {
                "bytes": BYTES, "iterations": 5, "seconds_median": 1.2,
                "seconds": [1.2, 1.1, 1.3, 1.2, 1.25], "bound_seconds": 1.16, "eta": 0.967,
                "goodput_bits_per_second": 447.4e6, "wan_payload_bytes_per_direction": BYTES,
                "stage_seconds": {"local_reduce": 0.01, "wan": 1.18, "deliver": 0.01},
            },
            "relay": {"east_west": counters, "west_east": counters},
            "link": {"rtt_ms": 80.0, "rate_bits_per_second": 5e8, "loss": 0.001},
            "fidelity": {
                "lateness_p999_seconds": 0.0004, "machine_busy": 0.75, "busy_by_others": 0.125,
                "void": [],
            },
        });
        assert_eq!(serde_json::to_value(good()).unwrap(), want);
    }

    #[test]
    fn the_table_shows_every_value_and_marks_failures() {
        let mut report = good();
        let text = render_quickstart_report(&report, &check_quickstart_report(&report), 80);
        println!("{text}");
        for shown in [
            "0.0500",
            "96.7 %",
            "22, 21, 11, 43",
            "identical",
            "4.0e-7",
            "1.2 s",
            "1.16 s",
            "0.967",
            "447 Mbit/s",
            "1.18 s (98.3 %)",
            "64 MiB",
            "342 MiB",
            "240000",
            "245 lost at random",
            "0 in a full queue",
            "RTT 80 ms, 500 Mbit/s",
            "loss 0.1 %",
            "1.070",
        ] {
            assert!(text.contains(shown), "{shown} in\n{text}");
        }
        assert_eq!((text.matches("pass").count(), text.matches("FAIL").count()), (6, 0));
        assert!(!text.contains("VOID") && text.contains("machine busy: 75 %"), "{text}");
        report.fidelity.void.push("it stood still for 1 s".to_owned());
        let text = render_quickstart_report(&report, &check_quickstart_report(&report), 80);
        assert_eq!((text.matches("pass").count(), text.matches("VOID").count()), (6, 1));
        report.identical = false;
        let text = render_quickstart_report(&report, &check_quickstart_report(&report), 80);
        assert_eq!((text.matches("pass").count(), text.matches("FAIL").count()), (5, 1));
    }
}
