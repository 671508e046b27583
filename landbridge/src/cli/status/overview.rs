//! The overview of `landbridge status --watch`: links with their load, jobs, what they wait for.
//!
//! It shows what the status page shows, in a terminal. Long lists are cut, with the number of what
//! is left out.

use super::status_tables::{describe_status_table_readiness, rounded_status_table_seconds};
use crate::cli::output::table::render_table;
use gateway::observe::status::{
    CollectiveReport, CollectiveState, GatewayReport, JobReport, LinkReport, PeerReport,
};
use std::collections::BTreeMap;
use units::{BitRate, ByteCount, rounded_decimal_percent};

/// 10: `landbridge status --watch` shows at most so many rows of each table, so many problems, and
/// so many ranks in a cell. Of more, it shows the first 10 and the number of those left out. Three
/// tables and the problems then about fill a terminal.
const ROWS_SHOWN_MAX: usize = 10;

/// Payload rates to and from a peer, in bits per second.
#[derive(Debug, Clone, Copy, Default)]
struct PayloadRates {
    out: f64,
    inward: f64,
}

/// Returns the overview of a gateway. Rates are those since the report `before`, if there is one.
pub(super) fn describe_overview(before: Option<&GatewayReport>, now: &GatewayReport) -> String {
    let mut text = describe_status_table_readiness(now, ROWS_SHOWN_MAX);
    text.push_str(&omitted_overview_rows(now.problems.len(), "problems"));
    let before = before.filter(|before| before.uptime_seconds < now.uptime_seconds);
    let rates = before.map(|before| overview_peer_rates(before, now)).unwrap_or_default();
    text.push('\n');
    let header = ["link", "lanes", "out", "in", "limit", "used", "rtt", "loss"];
    let rows =
        now.links.iter().take(ROWS_SHOWN_MAX).map(|link| link_overview_row(link, now, &rates));
    text.push_str(&render_table(header, &rows.collect::<Vec<_>>()));
    text.push_str(&omitted_overview_rows(now.links.len(), "links"));
    text.push('\n');
    let mut jobs: Vec<&JobReport> = now.jobs.iter().collect();
    jobs.sort_by_key(|job| (job.epoch.is_some(), job.straggler.is_none()));
    let header = ["job", "epoch", "ranks", "throughput", "eta", "done", "failed", "state"];
    let rows = jobs.iter().take(ROWS_SHOWN_MAX).map(|job| job_overview_row(job, before, now));
    text.push_str(&render_table(header, &rows.collect::<Vec<_>>()));
    text.push_str(&omitted_overview_rows(now.jobs.len(), "jobs"));
    text.push('\n');
    text.push_str(&describe_collectives_overview(now));
    text
}

/// Returns the line on the rows of a table that are left out; empty if there are none.
fn omitted_overview_rows(rows: usize, word: &str) -> String {
    match rows.saturating_sub(ROWS_SHOWN_MAX) {
        0 => String::new(),
        more => format!("and {more} more {word}\n"),
    }
}

/// Returns the payload rates of all peers between two reports, by gateway.
fn overview_peer_rates<'a>(
    before: &GatewayReport,
    now: &'a GatewayReport,
) -> BTreeMap<&'a str, PayloadRates> {
    let seconds = now.uptime_seconds - before.uptime_seconds;
    let rate = |peer: &'a PeerReport| {
        let earlier = before.peers.iter().find(|earlier| earlier.gateway == peer.gateway)?;
        let bits = |now: u64, then: u64| now.saturating_sub(then) as f64 * 8.0 / seconds;
        let out = bits(peer.sent_bytes, earlier.sent_bytes);
        let inward = bits(peer.received_bytes, earlier.received_bytes);
        Some((&*peer.gateway, PayloadRates { out, inward }))
    };
    now.peers.iter().filter_map(rate).collect()
}

/// Returns the table row of a link: lanes and trouble, rates, the limit, use, RTT and loss. Use is
/// that of the busier direction; RTT and loss are the largest of all peers across the link.
fn link_overview_row(
    link: &LinkReport,
    now: &GatewayReport,
    rates: &BTreeMap<&str, PayloadRates>,
) -> [String; 8] {
    let far = link.between.iter().find(|region| **region != now.region);
    let peers: Vec<&PeerReport> =
        now.peers.iter().filter(|peer| Some(&peer.region) == far).collect();
    let up: u32 = peers.iter().map(|peer| u32::from(peer.lanes_up)).sum();
    let lanes: u32 = peers.iter().map(|peer| u32::from(peer.lanes)).sum();
    let trouble = if now.links_down.iter().any(|outage| outage.between == link.between) {
        " DOWN"
    } else if peers.iter().any(|peer| peer.loss_alarm) {
        " LOSS ALARM"
    } else {
        ""
    };
    let known: Vec<PayloadRates> =
        peers.iter().filter_map(|peer| rates.get(&*peer.gateway).copied()).collect();
    let out: f64 = known.iter().map(|rates| rates.out).sum();
    let inward: f64 = known.iter().map(|rates| rates.inward).sum();
    let limit = link.effective_bits_per_second;
    let used = out.max(inward) / limit as f64;
    let shown = |text: String| if known.is_empty() { "-".to_owned() } else { text };
    let rtt = peers.iter().filter_map(|peer| peer.rtt_ms).reduce(f64::max);
    let loss = peers.iter().map(|peer| peer.loss).reduce(f64::max);
    [
        link.between.join("-"),
        format!("{up}/{lanes}{trouble}"),
        shown(rounded_overview_rate(out)),
        shown(rounded_overview_rate(inward)),
        BitRate::from_bits_per_second(limit).rounded(),
        shown(rounded_decimal_percent(used)),
        rtt.map_or("-".to_owned(), |rtt| rounded_status_table_seconds(rtt / 1e3)),
        loss.map_or("-".to_owned(), rounded_decimal_percent),
    ]
}

/// Returns the table row of a job: epoch, attached ranks, throughput and efficiency since `before`,
/// collectives, and its state.
fn job_overview_row(
    job: &JobReport,
    before: Option<&GatewayReport>,
    now: &GatewayReport,
) -> [String; 8] {
    let attached = job.ranks.iter().filter(|rank| rank.attached).count();
    let earlier = before.and_then(|before| {
        let same = before.jobs.iter().find(|earlier| earlier.job == job.job)?;
        Some((same.totals, now.uptime_seconds - before.uptime_seconds))
    });
    let throughput = earlier.map(|(totals, seconds)| {
        rounded_overview_rate(job.totals.bytes.saturating_sub(totals.bytes) as f64 * 8.0 / seconds)
    });
    let efficiency = earlier.and_then(|(totals, _)| {
        let taken = job.totals.seconds - totals.seconds;
        let bound = job.totals.bound_seconds - totals.bound_seconds;
        (taken > 0.0).then(|| rounded_decimal_percent(bound / taken))
    });
    let state = match (&job.draining, job.epoch, &job.straggler) {
        _ if job.removed => "REMOVED".to_owned(),
        (Some(drain), ..) => {
            format!("EXITS WITHIN {}", rounded_status_table_seconds(drain.seconds_left))
        }
        (_, None, _) => "NO EPOCH".to_owned(),
        (_, _, Some(straggler)) => format!("waits for {} {}", straggler.kind, straggler.name),
        _ => "in its epoch".to_owned(),
    };
    [
        job.job.clone(),
        job.epoch.map_or("-".to_owned(), |epoch| epoch.to_string()),
        format!("{attached}/{}", job.ranks.len()),
        throughput.unwrap_or_else(|| "-".to_owned()),
        efficiency.unwrap_or_else(|| "-".to_owned()),
        job.totals.completed.to_string(),
        job.totals.failed.to_string(),
        state,
    ]
}

/// Returns the collectives under way of all jobs, oldest first, or a line that says there are none.
fn describe_collectives_overview<'a>(now: &'a GatewayReport) -> String {
    let of_job = |job: &'a JobReport| {
        job.collectives.iter().map(|collective| (&*job.job, collective)).collect::<Vec<_>>()
    };
    let mut all: Vec<(&str, &CollectiveReport)> = now.jobs.iter().flat_map(of_job).collect();
    if all.is_empty() {
        return "no collective under way\n".to_owned();
    }
    all.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    let row = |(job, collective): &(&str, &CollectiveReport)| {
        let state = match collective.state {
            CollectiveState::Awaiting => "awaiting",
            CollectiveState::Running => "running",
            CollectiveState::Settling => "settling",
        };
        [
            (*job).to_owned(),
            collective.sequence.to_string(),
            format!("{} {}", collective.op, collective.dtype),
            ByteCount::new(collective.bytes).rounded(),
            state.to_owned(),
            overview_awaited_ranks(&collective.awaited),
            rounded_status_table_seconds(collective.seconds),
        ]
    };
    let rows: Vec<_> = all.iter().take(ROWS_SHOWN_MAX).map(row).collect();
    let header = ["job", "collective", "op", "size", "state", "awaited ranks", "since"];
    render_table(header, &rows) + &omitted_overview_rows(all.len(), "collectives")
}

/// Returns the ranks that are awaited; of many the first ones and the number of the others.
fn overview_awaited_ranks(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(ROWS_SHOWN_MAX).map(u32::to_string).collect();
    match (shown.is_empty(), ranks.len().saturating_sub(ROWS_SHOWN_MAX)) {
        (true, _) => "-".to_owned(),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns a rate in bits per second in three significant digits.
fn rounded_overview_rate(bits_per_second: f64) -> String {
    BitRate::from_bits_per_second(bits_per_second.round() as u64).rounded()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the report of a gateway with two links and `jobs` jobs, after some seconds of work.
    fn report(uptime_seconds: f64, jobs: u32) -> GatewayReport {
        let bytes = (uptime_seconds * 1e7) as u64;
        let link = |far: &str| {
            serde_json::json!({
                "between": ["east", far], "rate_bits_per_second": 500_000_000,
                "scheduled_bits_per_second": null, "operator_bits_per_second": null,
                "operator_gateway": null, "effective_bits_per_second": 160_000_000,
                "rtt_ms": 80.0, "loss": 0.001,
            })
        };
        let peer = |region: &str, lanes_up: u32| {
            serde_json::json!({
                "gateway": format!("{region}-0"), "region": region, "state": "up",
                "lanes_up": lanes_up, "lanes": 4, "rtt_ms": 80.5, "sent_bytes": bytes,
                "received_bytes": bytes / 2, "lost_packets": 0, "loss": 0.0004,
                "loss_alarm": false, "problem": null,
            })
        };
        let job = |number: u32| {
            serde_json::json!({
                "job": format!("train-{number}"), "epoch": 3, "plan": null,
                "ranks": [{ "rank": 0, "attached": true }, { "rank": 1, "attached": false }],
                "collectives": [{
                    "sequence": 7, "op": "sum", "dtype": "f32", "bytes": 1 << 26,
                    "state": "awaiting", "awaited": [1, 2], "seconds": 1.5 + f64::from(number),
                }],
                "totals": {
                    "completed": 9, "failed": 0, "bytes": 10 * bytes, "seconds": uptime_seconds,
                    "bound_seconds": 0.5 * uptime_seconds,
                },
            })
        };
        let report = serde_json::json!({
            "gateway": "east-0", "fabric": "three", "region": "east",
            "uptime_seconds": uptime_seconds,
            "peers": [peer("north", 0), peer("west", 4)],
            "links": [link("north"), link("west")],
            "links_down": [{
                "between": ["east", "north"], "seconds": 9.0, "why": "silent", "way_round": null,
            }],
            "jobs": (0..jobs).map(job).collect::<Vec<_>>(),
        });
        serde_json::from_value(report).expect("a report")
    }

    /// Returns the words of the line that begins with a word.
    fn words_of<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
        line.unwrap_or_else(|| panic!("no {first} in\n{text}")).split_whitespace().collect()
    }

    #[test]
    fn load_stands_beside_the_limit() {
        let text = describe_overview(Some(&report(10.0, 1)), &report(20.0, 1));
        let west = "east-west 4/4 80 Mbit/s 40 Mbit/s 160 Mbit/s 50 % 80.5 ms 0.04 %";
        assert_eq!(words_of(&text, "east-west").join(" "), west, "{text}");
        assert_eq!(words_of(&text, "east-north")[1..3], ["0/4", "DOWN"], "{text}");
        let job = "train-0 3 1/2 800 Mbit/s 50 % 9 0 in its epoch";
        assert_eq!(words_of(&text, "train-0").join(" "), job, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("train-0  7") && text.contains("1, 2"), "{text}");
    }

    #[test]
    fn rates_are_unknown_before_the_second_report() {
        for before in [None, Some(report(20.0, 1)), Some(report(30.0, 1))] {
            let text = describe_overview(before.as_ref(), &report(20.0, 1));
            assert_eq!(words_of(&text, "east-west")[2..4], ["-", "-"], "{text}");
        }
    }

    #[test]
    fn long_lists_are_cut_with_their_number() {
        let mut now = report(20.0, 1000);
        now.jobs[500].epoch = None;
        let text = describe_overview(Some(&report(10.0, 1000)), &now);
        assert!(text.lines().count() < 50, "{text}");
        assert!(text.contains("and 990 more jobs\n"), "{text}");
        assert!(text.contains("and 990 more collectives\n"), "{text}");
        // Jobs without an epoch and old collectives come first.
        assert_eq!(words_of(&text, "train-500").last(), Some(&"EPOCH"), "{text}");
        assert!(text.contains("train-999"), "{text}");
    }
}
