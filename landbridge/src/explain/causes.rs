//! The causes of a job's trouble, by the dumps of its gateways.
//!
//! Each function looks for one kind of fault. [`find_causes`] calls them in the order in which a fault
//! explains others: posts that contradict each other, gateways that are gone, what gateways
//! themselves find wrong, ranks that are awaited, and whoever is slow.

use super::dump::Dump;
use super::dump_view::DumpView;
use gateway::observe::problem_cause::{ProblemCause, ProblemReport};
use gateway::observe::status::{
    CollectiveReport, CollectiveState, IncidentReport, JobReport, PeerState,
};
use hier_collectives::post::FailureCode;
use serde::Serialize;
use std::collections::BTreeSet;
use units::{ByteCount, Span};

/// 1 s: `landbridge explain` names ranks that the oldest collective has awaited for this time or
/// longer. A shorter wait is no trouble, since ranks never post together.
/// Tested by `ranks_that_post_soon_are_no_trouble`.
const WAIT_TOLD_AFTER_S: f64 = 1.0;
/// 10 s, the least stall deadline: `landbridge explain` names an exchange that all ranks have
/// posted and that has run for this time or longer.
/// Tested by `a_long_exchange_is_told`.
const RUN_TOLD_AFTER_S: f64 = 10.0;

/// The kind of the party at fault. The names are values of the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CulpritKind {
    /// The training script: posts of ranks contradict each other.
    Script,
    /// A gateway.
    Gateway,
    /// The path between two gateways.
    Link,
    /// The files of a gateway.
    Files,
    /// A rank.
    Rank,
    /// A region that is slow.
    Region,
}

/// One cause, with what shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cause {
    /// The kind of the party at fault.
    pub kind: CulpritKind,
    /// The party at fault, such as `rank 1 (east)`.
    pub culprit: String,
    /// The observation that shows it, as a sentence.
    pub found: String,
    /// The action to take, where one is known.
    pub remedy: Option<String>,
}

impl Cause {
    /// Makes a cause with a remedy.
    fn of(kind: CulpritKind, culprit: String, found: String, remedy: &str) -> Self {
        Self { kind, culprit, found, remedy: Some(remedy.to_owned()) }
    }
}

/// Returns the causes that dumps show, the one that explains the others first, and one for each
/// party at fault. Incidents of the past are causes only where there is no other.
pub(crate) fn find_causes(dumps: &[Dump]) -> Vec<Cause> {
    let view = DumpView::of_dumps(dumps);
    let mut causes = find_causes_in_posts(&view);
    causes.extend(find_causes_in_absent_gateways(&view));
    causes.extend(find_causes_in_reported_problems(&view));
    causes.extend(find_causes_in_awaited_ranks(&view));
    causes.extend(find_causes_in_stragglers(&view));
    causes.extend(find_causes_in_long_exchanges(&view));
    if causes.is_empty() {
        causes.extend(find_causes_in_incidents(&view));
    }
    let mut known = BTreeSet::new();
    causes.retain(|cause| known.insert((cause.kind, cause.culprit.clone())));
    causes
}

/// Returns the jobs of all gateways that answered.
fn answered_jobs<'a>(view: &DumpView<'a>) -> Vec<&'a JobReport> {
    view.statuses().flat_map(|status| &status.jobs).collect()
}

/// Returns whether the job has completed no collective since an incident, or none at all.
fn has_completed_nothing_since(job: &JobReport, incident: &IncidentReport) -> bool {
    job.completed_seconds_ago.is_none_or(|completed| completed >= incident.seconds_ago)
}

/// Finds the last incident of each job that was a fault of posts, if the job has completed no
/// collective since. The same posts would fail again.
fn find_causes_in_posts(view: &DumpView<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for job in answered_jobs(view) {
        let by_posts = |incident: &&IncidentReport| {
            let code = FailureCode::from_code(incident.code);
            code.is_some_and(FailureCode::is_fault_of_posts)
                && has_completed_nothing_since(job, incident)
        };
        if let Some(incident) = job.incidents.iter().rev().find(by_posts) {
            let ago = Span::from_secs_f64(incident.seconds_ago).rounded();
            causes.push(Cause::of(
                CulpritKind::Script,
                format!("the script of job {}", job.job),
                format!("{ago} ago: {}", incident.text),
                "let all ranks post the same collectives in one order",
            ));
        }
    }
    causes
}

/// Finds gateways that were asked and gave no status. Tells those that other gateways still reach
/// from those that do not run, and from those whose process does not answer.
fn find_causes_in_absent_gateways(view: &DumpView<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for gateway in view.gateways().filter(|gateway| gateway.status.is_none()) {
        let seen = view.peer_reports(&gateway.gateway);
        let up = seen.iter().filter(|(_, peer)| peer.state != PeerState::Connecting);
        let error = gateway.error.clone().unwrap_or_default();
        let (found, remedy) = match (up.count() > 0, gateway.is_absent) {
            (true, true) => (
                format!(
                    "others reached it until some seconds ago, and it gives no status: {error}"
                ),
                "start it if it has ended: `landbridge run`; else look at its `status` address",
            ),
            (true, false) => (
                format!("others reach it, and it gives no status: {error}"),
                "look at the `status` address of its region file, and at its process",
            ),
            (false, true) => (
                format!("it does not run: {error}"),
                "start it: `landbridge run`; its log says why it ended",
            ),
            (false, false) => (
                format!("its process is there and does not answer: {error}"),
                "look whether it is stopped, or its host overloaded",
            ),
        };
        let culprit = format!("gateway {} ({})", gateway.gateway, gateway.region);
        causes.push(Cause::of(CulpritKind::Gateway, culprit, found, remedy));
    }
    causes
}

/// Finds what gateways themselves report, those that keep them from being ready first. What a gateway
/// that is gone explains is left out.
fn find_causes_in_reported_problems(view: &DumpView<'_>) -> Vec<Cause> {
    let is_gone = |name: &str| view.gateway(name).is_some_and(|gateway| gateway.status.is_none());
    let mut found: Vec<(&str, &ProblemReport)> = Vec::new();
    for status in view.statuses() {
        let explained = status.peers.iter().any(|peer| is_gone(&peer.gateway));
        let keeps = |problem: &&ProblemReport| match problem.cause {
            ProblemCause::Peer | ProblemCause::Lanes => {
                problem.subject.strip_prefix("gateway ").is_none_or(|name| !is_gone(name))
            }
            ProblemCause::Job | ProblemCause::Link => !explained,
            _ => true,
        };
        let kept = status.problems.iter().filter(keeps);
        found.extend(kept.map(|problem| (&*status.gateway, problem)));
    }
    found.sort_by_key(|(_, problem)| (!problem.blocks, problem_order(problem.cause)));
    found.into_iter().map(|(gateway, problem)| find_cause_in_problem(gateway, problem)).collect()
}

/// Returns the place of a problem among those of a gateway, from 0; lower places explain higher
/// ones. A wrong file explains a missing peer, and a missing peer a job without an epoch.
const fn problem_order(cause: ProblemCause) -> u8 {
    match cause {
        ProblemCause::ShuttingDown | ProblemCause::Socket | ProblemCause::Processor => 0,
        ProblemCause::Files | ProblemCause::JobFiles => 1,
        ProblemCause::Peer | ProblemCause::Link => 2,
        ProblemCause::Lanes | ProblemCause::Loss | ProblemCause::Rtt => 3,
        ProblemCause::Job | ProblemCause::Restart => 4,
    }
}

/// Turns a problem that `gateway` reports into a cause with a culprit.
fn find_cause_in_problem(gateway: &str, problem: &ProblemReport) -> Cause {
    let kind = match problem.cause {
        ProblemCause::ShuttingDown
        | ProblemCause::Socket
        | ProblemCause::Processor
        | ProblemCause::Job => CulpritKind::Gateway,
        ProblemCause::Files | ProblemCause::JobFiles | ProblemCause::Restart => CulpritKind::Files,
        ProblemCause::Peer
        | ProblemCause::Lanes
        | ProblemCause::Link
        | ProblemCause::Loss
        | ProblemCause::Rtt => CulpritKind::Link,
    };
    let is_pair = kind == CulpritKind::Link && problem.cause != ProblemCause::Link;
    let culprit = match problem.subject.strip_prefix("gateway ") {
        Some(peer) if is_pair => {
            let (first, second) = if gateway < peer { (gateway, peer) } else { (peer, gateway) };
            format!("the path between {first} and {second}")
        }
        _ => problem.subject.clone(),
    };
    let found = format!("gateway {gateway} finds: {}", problem.found);
    Cause { kind, culprit, found, remedy: problem.remedy.clone() }
}

/// Finds the ranks for which the oldest collective of a job has waited for [`WAIT_TOLD_AFTER_S`] or
/// longer.
fn find_causes_in_awaited_ranks(view: &DumpView<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for job in answered_jobs(view) {
        let waits = |collective: &&CollectiveReport| {
            collective.state == CollectiveState::Awaiting && collective.seconds >= WAIT_TOLD_AFTER_S
        };
        let Some(oldest) = job.collectives.iter().find(waits) else { continue };
        for rank in &oldest.awaited {
            let place = view.place_of_rank(*rank);
            let region = place.map_or("unknown region", |place| &*place.region);
            let lasted = Span::from_secs_f64(oldest.seconds).rounded();
            let waited = format!(
                "collective {} ({}, {}) of job {} has waited {lasted} for it",
                oldest.sequence,
                oldest.op,
                ByteCount::new(oldest.bytes).rounded(),
                job.job
            );
            let (found, remedy) = match view.is_rank_attached(&job.job, *rank) {
                Some(false) => (format!("it is not attached, and {waited}"), "start its trainer"),
                Some(true) => (
                    format!("it is attached and has not posted, and {waited}"),
                    "look at its trainer: it may be stopped, slow, or in another part of the script",
                ),
                None => (waited, "dump its region too; then look at its trainer"),
            };
            let culprit = format!("rank {rank} ({region})");
            causes.push(Cause::of(CulpritKind::Rank, culprit, found, remedy));
        }
    }
    causes
}

/// Finds ranks, regions and links that delay collectives that go on.
fn find_causes_in_stragglers(view: &DumpView<'_>) -> Vec<Cause> {
    let stragglers = answered_jobs(view).into_iter().filter_map(|job| job.straggler.as_ref());
    let cause = |straggler: &gateway::observe::status::StragglerReport| {
        let (kind, remedy) = match &*straggler.kind {
            "rank" => (CulpritKind::Rank, "look at its host and its input; or give it less work"),
            "link" => (CulpritKind::Link, "ask whoever runs the link; correct its rate and RTT"),
            _ => (CulpritKind::Region, "look at its hosts; or give it less work"),
        };
        let found = format!(
            "it delayed the last {} collectives, the last one by {}",
            straggler.collectives,
            Span::from_secs_f64(straggler.behind_seconds).rounded()
        );
        let place = match &*straggler.kind {
            "rank" => straggler.name.parse().ok().and_then(|rank| view.place_of_rank(rank)),
            _ => None,
        };
        let place = place.map_or_else(String::new, |place| format!(" ({})", place.region));
        let culprit = format!("{} {}{place}", straggler.kind, straggler.name);
        Cause::of(kind, culprit, found, remedy)
    };
    stragglers.map(cause).collect()
}

/// Finds the oldest exchange of each job that all ranks have posted and that has run for
/// [`RUN_TOLD_AFTER_S`] or longer.
fn find_causes_in_long_exchanges(view: &DumpView<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for status in view.statuses() {
        for job in &status.jobs {
            let runs = |collective: &&CollectiveReport| {
                collective.state == CollectiveState::Running
                    && collective.seconds >= RUN_TOLD_AFTER_S
            };
            let Some(oldest) = job.collectives.iter().find(runs) else { continue };
            causes.push(Cause::of(
                CulpritKind::Link,
                format!("the links of region {}", status.region),
                format!(
                    "all ranks have posted collective {} ({}) of job {}, and it has run for {}",
                    oldest.sequence,
                    ByteCount::new(oldest.bytes).rounded(),
                    job.job,
                    Span::from_secs_f64(oldest.seconds).rounded()
                ),
                "compare `landbridge status` with the rate of the link, and with `landbridge plan`",
            ));
        }
    }
    causes
}

/// Finds the last incident of jobs that have completed nothing since.
fn find_causes_in_incidents(view: &DumpView<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for job in answered_jobs(view) {
        let Some(incident) =
            job.incidents.last().filter(|one| has_completed_nothing_since(job, one))
        else {
            continue;
        };
        let kind = match FailureCode::from_code(incident.code) {
            Some(FailureCode::RankLost | FailureCode::TimedOut) => CulpritKind::Rank,
            Some(FailureCode::RegionLost | FailureCode::Stalled) => CulpritKind::Link,
            _ => CulpritKind::Gateway,
        };
        let ago = Span::from_secs_f64(incident.seconds_ago).rounded();
        causes.push(Cause {
            kind,
            culprit: format!("job {}", job.job),
            found: format!("it has completed nothing since {ago} ago: {}", incident.text),
            remedy: None,
        });
    }
    causes
}
