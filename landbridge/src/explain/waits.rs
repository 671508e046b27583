//! Ranks that have not posted, and posts whose news has not arrived at other gateways.

use super::dump::DumpedGateway;
use super::dump_view::{DumpView, DumpedPost};
use super::party::{Finding, Party};
use gateway::observe::status::{CollectiveReport, CollectiveState};
use units::{ByteCount, Span};

/// 1 s: `landbridge explain` names ranks that the oldest collective has awaited for this time or
/// longer. A shorter wait is no trouble, since ranks never post together.
/// Tested by `ranks_that_post_soon_are_no_trouble`.
pub(super) const WAIT_TOLD_AFTER_S: f64 = 1.0;
/// 2 round trips: the news of a post that has not arrived for this time and 1 s in addition is lost or
/// held up on its path. A lost packet is repeated within a round trip and a half.
/// Tested by `a_post_whose_news_is_late_names_the_path`.
const NEWS_LATE_ROUND_TRIPS: f64 = 2.0;

/// 10 s: `landbridge explain` names the regions for which a commit has waited for this time or longer.
/// The results of a step are there by then, and the news of them takes a round trip.
/// Tested by `a_commit_that_waits_names_the_region`.
const COMMIT_TOLD_AFTER_S: f64 = 10.0;

/// A collective that a gateway waits to start.
struct Wait<'a> {
    job: &'a str,
    waiter: &'a DumpedGateway,
    collective: &'a CollectiveReport,
}

/// Finds what the oldest collective of each job has waited for, for [`WAIT_TOLD_AFTER_S`] or longer.
/// A rank is named where its own gateway has no post of it either. Otherwise the path from that
/// gateway is at fault. Ranks of a gateway that gives no status are that gateway's fault.
pub(super) fn find_waits(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in view.job_names() {
        let waits: Vec<Wait<'_>> =
            view.gateways().filter_map(|gateway| oldest_wait(job, gateway)).collect();
        let Some(oldest) = waits.iter().map(|wait| wait.collective.sequence).min() else {
            continue;
        };
        let of_oldest = waits.iter().filter(|wait| wait.collective.sequence == oldest);
        for wait in of_oldest {
            let awaited = wait.collective.awaited.iter();
            findings.extend(awaited.filter_map(|rank| find_wait_for_rank(view, wait, *rank)));
        }
    }
    findings
}

/// Returns the oldest collective of a job for which a gateway has waited long; `None` if there is
/// none.
fn oldest_wait<'a>(job: &'a str, waiter: &'a DumpedGateway) -> Option<Wait<'a>> {
    let status = waiter.status.as_ref()?;
    let report = status.jobs.iter().find(|report| report.job == job)?;
    let waits = |collective: &&CollectiveReport| {
        collective.state == CollectiveState::Awaiting && collective.seconds >= WAIT_TOLD_AFTER_S
    };
    let collective = report.collectives.iter().find(waits)?;
    Some(Wait { job, waiter, collective })
}

/// Finds why a gateway waits for a rank; `None` where another party is at fault, or the post came a
/// moment ago.
fn find_wait_for_rank(view: &DumpView<'_>, wait: &Wait<'_>, rank: u32) -> Option<Finding> {
    let collective = wait.collective;
    let lasted = Span::from_secs_f64(collective.seconds).rounded();
    let waited = format!(
        "collective {} ({}, {}) of job {} has waited {lasted} for it",
        collective.sequence,
        collective.op,
        ByteCount::new(collective.bytes).rounded(),
        wait.job
    );
    let (found, remedy) = match view.post_of_rank(wait.job, rank, collective.sequence) {
        DumpedPost::Posted { unix_seconds, at } => {
            return find_late_news(wait, rank, at, unix_seconds);
        }
        DumpedPost::GatewayGone => return None,
        DumpedPost::Missing if view.is_rank_attached(wait.job, rank) == Some(false) => {
            (format!("it is not attached, and {waited}"), "start its trainer")
        }
        DumpedPost::Missing => (
            format!("it is attached and has not posted, and {waited}"),
            "look at its trainer: it may be stopped, slow, or in another part of the script",
        ),
        DumpedPost::NotAsked => (waited, "dump its region too; then look at its trainer"),
    };
    Some(Finding::of_party(Party::Rank(rank), found, remedy))
}

/// Finds that the news of a post, which gateway `at` has had since `unix_seconds`, should have arrived
/// at the waiting gateway. `None` while it may still be under way, and where other gateways pass it on.
fn find_late_news(
    wait: &Wait<'_>,
    rank: u32,
    at: &DumpedGateway,
    unix_seconds: f64,
) -> Option<Finding> {
    let status = wait.waiter.status.as_ref()?;
    let peer = status.peers.iter().find(|peer| peer.gateway == at.gateway)?;
    let of_links = status.links.iter().map(|link| link.rtt_ms);
    let rtt_ms = of_links.chain(peer.rtt_ms).fold(0.0, f64::max);
    let late = wait.waiter.asked_unix_seconds - unix_seconds;
    if late < WAIT_TOLD_AFTER_S + NEWS_LATE_ROUND_TRIPS * rtt_ms / 1000.0 {
        return None;
    }
    let found = format!(
        "gateway {} has had the post of rank {rank} of collective {} of job {} for {}, and gateway \
         {} has not heard of it",
        at.gateway,
        wait.collective.sequence,
        wait.job,
        Span::from_secs_f64(late).rounded(),
        status.gateway
    );
    Some(Finding::of_party(
        Party::of_path(&status.gateway, &at.gateway),
        found,
        "look at the path: `landbridge doctor` at both ends",
    ))
}

/// Finds paths over which bytes have had no acknowledgement for 1 s and [`NEWS_LATE_ROUND_TRIPS`] round
/// trips. Their lanes are still up.
pub(super) fn find_silent_paths(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for status in view.statuses() {
        let longest_ms = status.links.iter().map(|link| link.rtt_ms).fold(0.0, f64::max);
        for peer in &status.peers {
            let rtt_ms = longest_ms.max(peer.rtt_ms.unwrap_or_default());
            if peer.silent_seconds < WAIT_TOLD_AFTER_S + NEWS_LATE_ROUND_TRIPS * rtt_ms / 1000.0 {
                continue;
            }
            let lasted = Span::from_secs_f64(peer.silent_seconds).rounded();
            findings.push(Finding::of_party(
                Party::of_path(&status.gateway, &peer.gateway),
                format!(
                    "gateway {} has sent to gateway {} for {lasted} without an acknowledgement",
                    status.gateway, peer.gateway
                ),
                "look at the path: `landbridge doctor` at both ends",
            ));
        }
    }
    findings
}

/// Finds the regions for which commits have waited for [`COMMIT_TOLD_AFTER_S`] or longer.
pub(super) fn find_waiting_commits(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in view.jobs() {
        for commit in job.commits.iter().filter(|commit| commit.seconds >= COMMIT_TOLD_AFTER_S) {
            let found = format!(
                "rank {} has waited {} until it confirms step {} of job {}",
                commit.rank,
                Span::from_secs_f64(commit.seconds).rounded(),
                commit.step,
                job.job
            );
            let finding = |region: &String| {
                let remedy = "look whether its trainers are there, and whether it is cut off";
                Finding::of_party(Party::Region(region.clone()), found.clone(), remedy)
            };
            findings.extend(commit.awaited.iter().map(finding));
        }
    }
    findings
}
