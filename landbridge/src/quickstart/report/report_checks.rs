//! The checks that the report of a quickstart must pass.

use super::binomial::central_binomial_interval;
use super::{
    DirectionCounters, QuickstartReport, REFERENCE_MAX_ABS_DIFF, RELAY_BYTES_PER_PAYLOAD_BYTE,
    RELAY_DROPS_TAIL, ReportCheck, quickstart_report_directions,
};

/// Returns all checks of a report, in the order of its table.
///
/// # Panics
/// When the loss of the link is not between 0 and 1.
pub(crate) fn check_quickstart_report(report: &QuickstartReport) -> Vec<ReportCheck> {
    let mut checks =
        vec![check_quickstart_report_weights(report), check_quickstart_report_distance(report)];
    checks.extend(
        quickstart_report_directions(report)
            .map(|(name, counted)| check_quickstart_report_bytes(report, name, counted)),
    );
    checks.extend(
        quickstart_report_directions(report)
            .map(|(name, counted)| check_quickstart_report_drops(report, name, counted)),
    );
    checks
}

/// Checks that the weights and results of all ranks have the same bits.
fn check_quickstart_report_weights(report: &QuickstartReport) -> ReportCheck {
    let found = if report.identical { "identical" } else { "different" };
    ReportCheck {
        claim: "final weights bit-identical on all ranks".to_owned(),
        found: found.to_owned(),
        passed: report.identical,
    }
}

/// Checks that the final weights are near those of the training in one process.
fn check_quickstart_report_distance(report: &QuickstartReport) -> ReportCheck {
    ReportCheck {
        claim: format!("within {REFERENCE_MAX_ABS_DIFF:e} of the one-process reference"),
        found: format!("{:.1e}", report.reference_max_abs_diff),
        // Not `>`: a NaN must fail.
        passed: report.reference_max_abs_diff <= REFERENCE_MAX_ABS_DIFF,
    }
}

/// Checks the IP bytes that the relay counted in one direction against the payload of the gateways.
fn check_quickstart_report_bytes(
    report: &QuickstartReport,
    name: &str,
    counted: &DirectionCounters,
) -> ReportCheck {
    let all_reduce = &report.allreduce;
    let iterations = f64::from(all_reduce.iterations);
    let payload = all_reduce.wan_payload_bytes_per_direction as f64 * iterations;
    let ratio = counted.ip_bytes as f64 / payload;
    let (low, high) = (RELAY_BYTES_PER_PAYLOAD_BYTE.start(), RELAY_BYTES_PER_PAYLOAD_BYTE.end());
    ReportCheck {
        claim: format!("relay/payload {name}, {low} to {high}"),
        found: format!("{ratio:.3}"),
        passed: RELAY_BYTES_PER_PAYLOAD_BYTE.contains(&ratio),
    }
}

/// Checks the random drops of the relay in one direction. The relay draws once for each packet,
/// before its queue, so the drops are binomially distributed.
fn check_quickstart_report_drops(
    report: &QuickstartReport,
    name: &str,
    counted: &DirectionCounters,
) -> ReportCheck {
    let fair = central_binomial_interval(counted.packets, report.link.loss, RELAY_DROPS_TAIL);
    ReportCheck {
        claim: format!("random drops {name}, {} to {}", fair.start(), fair.end()),
        found: counted.drops_loss.to_string(),
        passed: fair.contains(&counted.drops_loss),
    }
}
