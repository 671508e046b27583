//! The causes of delay in collectives that go on: stragglers, links below their rate, long exchanges.

use super::dump::DumpedGateway;
use super::dump_view::DumpView;
use super::party::{Finding, Party};
use gateway::observe::status::{
    CollectiveReport, CollectiveState, GatewayReport, LinkReport, MissingBytesReport,
    StragglerReport,
};
use std::collections::BTreeMap;
use units::{BitRate, ByteCount, Span};

/// 10 s, the least stall deadline: `landbridge explain` names an exchange that all ranks have
/// posted and that has run for this time or longer.
/// Tested by `a_long_exchange_is_told`.
const RUN_TOLD_AFTER_S: f64 = 10.0;
/// 2 times: an exchange is long if it has run for so many times what its bytes take on the slowest link
/// of the region. The alert LandbridgeEfficiencyLow has the same limit.
/// Tested by `an_exchange_of_many_bytes_may_be_long`.
const RUN_TOLD_TIMES: f64 = 2.0;
/// 0.8 of the rate: a link with less measured capacity is slow. The alert LandbridgeLinkSlow has the
/// same limit.
/// Tested by `a_link_below_its_rate_is_named`.
const SLOW_LINK_FRACTION: f64 = 0.8;

/// Finds ranks, regions and links that delay collectives that go on. Ranks come first, since one
/// explains why other gateways find its region late.
pub(super) fn find_stragglers(view: &DumpView<'_>) -> Vec<Finding> {
    let stragglers = view.jobs().into_iter().filter_map(|job| job.straggler.as_ref());
    let mut findings: Vec<Finding> =
        stragglers.filter_map(|straggler| find_straggler(view, straggler)).collect();
    findings.sort_by_key(|finding| !matches!(finding.party, Party::Rank(_)));
    findings
}

/// Finds the party of one straggler; `None` for a name that the fabric lacks. A rank looks late where
/// a limit on processors holds back its gateway, which is the party at fault then.
fn find_straggler(view: &DumpView<'_>, straggler: &StragglerReport) -> Option<Finding> {
    let name = &straggler.name;
    let (party, remedy) = match &*straggler.kind {
        "rank" => {
            let rank = name.parse().ok()?;
            if view.is_gateway_of_rank_held_back(rank) {
                return None;
            }
            (Party::Rank(rank), "look at its host and its input; or give it less work")
        }
        "link" => (
            Party::Link(view.link_named(name)?),
            "ask whoever runs the link; correct its rate and RTT",
        ),
        _ => (Party::Region(name.clone()), "look at its hosts; or give it less work"),
    };
    let found = format!(
        "it delayed the last {} collectives, the last one by {}",
        straggler.collectives,
        Span::from_secs_f64(straggler.behind_seconds).rounded()
    );
    Some(Finding::of_party(party, found, remedy))
}

/// Finds links whose measured capacity is well below the rate that files and operators give them.
pub(super) fn find_slow_links(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for status in view.statuses() {
        for link in &status.links {
            let limit = link_limit(link);
            let Some(measured) = link.measured_bits_per_second else { continue };
            if (measured as f64) >= SLOW_LINK_FRACTION * limit as f64 {
                continue;
            }
            let rate = |bits| BitRate::from_bits_per_second(bits).to_string();
            findings.push(Finding::of_party(
                Party::Link(link.between.clone()),
                format!(
                    "gateway {} measures {} there, and its rate is {}",
                    status.gateway,
                    rate(measured),
                    rate(limit)
                ),
                "ask whoever runs the link; or correct its `rate` in the fabric file",
            ));
        }
    }
    findings
}

/// Returns the rate that a link should have, in bits per second: that of the fabric file, or a lower
/// one of its schedule or of an operator.
fn link_limit(link: &LinkReport) -> u64 {
    let lower = [link.scheduled_bits_per_second, link.operator_bits_per_second];
    lower.into_iter().flatten().fold(link.rate_bits_per_second, u64::min)
}

/// An exchange that runs on a gateway for too long, and the peers of which it misses bytes.
struct LongExchange<'a> {
    status: &'a GatewayReport,
    collective: &'a CollectiveReport,
    seconds: f64,
    /// `None` where no flight recorder tells.
    missing: Option<&'a [MissingBytesReport]>,
}

/// Finds what delays the oldest exchange of each job that all ranks have posted and that has run
/// for too long. It is the path to a gateway that waits for no third one, or a gateway that has all
/// bytes and no result.
pub(super) fn find_long_exchanges(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in view.job_names() {
        let of_gateway = |gateway| long_exchange(view, job, gateway);
        let all: Vec<LongExchange<'_>> = view.gateways().filter_map(of_gateway).collect();
        let oldest = all.iter().map(|exchange| exchange.collective.sequence).min();
        let all: Vec<_> =
            all.iter().filter(|one| Some(one.collective.sequence) == oldest).collect();
        let awaited: BTreeMap<&str, Vec<&str>> =
            all.iter().map(|one| (&*one.status.gateway, awaited_gateways(one))).collect();
        for exchange in &all {
            let own = &*exchange.status.gateway;
            // Whoever waits for a third one itself keeps nothing back.
            let waits_on = |peer: &str| {
                awaited.get(peer).is_some_and(|others| others.iter().any(|name| *name != own))
            };
            let keeps_back = awaited[own].iter().filter(|peer| !waits_on(peer));
            for peer in keeps_back {
                findings.push(describe_long_exchange(job, exchange, Some(*peer)));
            }
            if exchange.missing.is_some_and(<[MissingBytesReport]>::is_empty) {
                findings.push(describe_long_exchange(job, exchange, None));
            }
        }
    }
    findings
}

/// Returns the peers for which a gateway waits: those whose bytes are due, or else those whose
/// receipts are missing. Returns all peers where no flight recorder tells.
fn awaited_gateways<'a>(exchange: &LongExchange<'a>) -> Vec<&'a str> {
    let Some(missing) = exchange.missing else {
        return exchange.status.peers.iter().map(|peer| &*peer.gateway).collect();
    };
    let is_due = |missing: &&MissingBytesReport| missing.awaited_bytes > 0;
    let due: Vec<&str> = missing.iter().filter(is_due).map(|peer| &*peer.gateway).collect();
    if due.is_empty() { missing.iter().map(|peer| &*peer.gateway).collect() } else { due }
}

/// Returns the oldest exchange of a job on a gateway, if it runs for too long.
fn long_exchange<'a>(
    view: &DumpView<'a>,
    job: &str,
    gateway: &'a DumpedGateway,
) -> Option<LongExchange<'a>> {
    let status = gateway.status.as_ref()?;
    let report = status.jobs.iter().find(|report| report.job == job)?;
    let runs = |collective: &&CollectiveReport| collective.state == CollectiveState::Running;
    let collective = report.collectives.iter().find(runs)?;
    let posted = view.last_post_unix_seconds(job, collective.sequence);
    let since_last_post = posted.map(|posted| gateway.asked_unix_seconds - posted);
    let seconds = since_last_post.unwrap_or(collective.seconds).min(collective.seconds);
    let slowest = status.links.iter().map(link_limit).min();
    let least = slowest.map_or(0.0, |rate| 8.0 * collective.bytes as f64 / rate.max(1) as f64);
    if seconds < RUN_TOLD_AFTER_S.max(RUN_TOLD_TIMES * least) {
        return None;
    }
    let flight = gateway.flight(job, collective.sequence);
    let missing = flight.map(|flight| &*flight.missing);
    Some(LongExchange { status, collective, seconds, missing })
}

/// Describes a long exchange for which a gateway waits for `peer`. Without a `peer` the gateway has
/// all bytes, and delays the exchange itself.
fn describe_long_exchange(job: &str, exchange: &LongExchange<'_>, peer: Option<&str>) -> Finding {
    let own = &*exchange.status.gateway;
    let head = format!(
        "all ranks have posted collective {} ({}) of job {job}, and it has run for {}",
        exchange.collective.sequence,
        ByteCount::new(exchange.collective.bytes).rounded(),
        Span::from_secs_f64(exchange.seconds).rounded()
    );
    let Some(peer) = peer else {
        let found = format!("{head}; gateway {own} has all bytes of others, and no result");
        let remedy = "look at the load of its host";
        return Finding::of_party(Party::Gateway(own.to_owned()), found, remedy);
    };
    let of_peer = exchange.missing.and_then(|all| all.iter().find(|one| one.gateway == peer));
    let size = |bytes| ByteCount::new(bytes).rounded();
    let found = match of_peer {
        Some(missing) if missing.awaited_bytes > 0 => {
            format!(
                "{head}; gateway {own} waits for {} from gateway {peer}",
                size(missing.awaited_bytes)
            )
        }
        Some(missing) => format!(
            "{head}; gateway {own} has no receipt of {} by gateway {peer}",
            size(missing.unreceipted_bytes)
        ),
        None => head,
    };
    Finding::of_party(
        Party::of_path(own, peer),
        found,
        "compare `landbridge status` with the rate of the link, and with `landbridge plan`",
    )
}
