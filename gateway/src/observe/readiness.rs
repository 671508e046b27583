//! The judgement whether a gateway is ready, and of whatever makes it work less well than it could.
//!
//! There is one judgement: `/readyz`, `/status`, the gateway's log and metrics, `landbridge status`
//! and `landbridge doctor` all print the problems that [`judge_readiness`] finds in a report.

use super::problem_cause::{ProblemCause, ProblemReport};
use super::status::{
    GatewayReport, JobDifference, JobDifferenceKind, JobReport, LinkOutageReport, PeerReport,
    PeerState,
};
use std::fmt;
use units::{Span, rounded_decimal_percent};

impl fmt::Display for ProblemReport {
    /// Prints the subject, the observation and the action to take.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.found)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// Returns the problems that the rest of a report shows. Those that keep the gateway from being
/// ready come first. A gateway is ready while all its jobs have an epoch, trainers can attach, and it
/// does not drain.
pub fn judge_readiness(report: &GatewayReport) -> Vec<ProblemReport> {
    let mut problems = Vec::new();
    let own = format!("gateway {}", report.gateway);
    if report.jobs.iter().any(|job| job.draining.is_some()) {
        let found = "shutting down".to_owned();
        problems.push(blocking_readiness(ProblemCause::ShuttingDown, own.clone(), found, None));
    }
    if let Some(found) = &report.socket_problem {
        problems.push(blocking_readiness(ProblemCause::Socket, own.clone(), found.clone(), None));
    }
    problems.extend(report.processor_problem.iter().map(|found| ProblemReport {
        cause: ProblemCause::Processor,
        blocks: false,
        subject: own.clone(),
        found: found.clone(),
        remedy: Some(PROCESSOR_REMEDY.to_owned()),
    }));
    let waiting: Vec<&JobReport> =
        report.jobs.iter().filter(|job| !job.removed && job.epoch.is_none()).collect();
    let a_job_waits = !waiting.is_empty();
    problems.extend(links_of_members(report).map(|link| judge_link_readiness(link, a_job_waits)));
    let peers = report.peers.iter().filter(|peer| !has_region_left(report, &peer.region));
    problems.extend(peers.filter_map(|peer| judge_peer_readiness(peer, a_job_waits)));
    problems.extend(report.job_differences.iter().map(judge_job_difference_for_readiness));
    let unexplained =
        waiting.iter().filter(|job| unready_job_differences(job, report).next().is_none());
    problems.extend(unexplained.map(|job| judge_waiting_job_readiness(job, report)));
    problems.extend(report.peers.iter().filter_map(judge_loss_for_readiness));
    problems.extend(report.peers.iter().filter_map(|peer| judge_rtt_for_readiness(peer, report)));
    if !report.restart_needed.is_empty() {
        let keys = report.restart_needed.join(", ");
        problems.push(ProblemReport {
            cause: ProblemCause::Restart,
            blocks: false,
            subject: own.clone(),
            found: format!("its files have other values than it runs with: {keys}"),
            remedy: Some("restart it".to_owned()),
        });
    }
    problems.extend(judge_other_fabrics(report, a_job_waits));
    problems.extend(report.fabric_version.refused.iter().map(|refused| ProblemReport {
        cause: ProblemCause::Fabric,
        blocks: false,
        subject: own.clone(),
        found: format!("a newer fabric of other gateways cannot come into force here: {refused}"),
        remedy: Some("correct what it names, and apply a fabric of a higher `version`".to_owned()),
    }));
    problems.extend(report.file_faults.iter().map(|fault| ProblemReport {
        cause: ProblemCause::Files,
        blocks: false,
        subject: own.clone(),
        found: format!("its files cannot be used: {fault}"),
        remedy: Some(
            "mend them and send SIGHUP; until then it runs with what it read before".to_owned(),
        ),
    }));
    // A stable sort keeps the order of causes within both parts.
    problems.sort_by_key(|problem| !problem.blocks);
    problems
}

/// Returns the text for a job's trainers on what keeps the job from having an epoch; `None` for a
/// job that has one. Other jobs are not named.
pub fn describe_unready_epoch(report: &GatewayReport, job: &str) -> Option<String> {
    let waits = |known: &&JobReport| known.job == job && !known.removed && known.epoch.is_none();
    let job = report.jobs.iter().find(waits)?;
    if has_region_left(report, &report.region) {
        return Some(judge_waiting_job_readiness(job, report).to_string());
    }
    let files = unready_job_differences(job, report).map(judge_job_difference_for_readiness);
    let links = links_of_members(report).map(|link| judge_link_readiness(link, true));
    let peers = report.peers.iter().filter(|peer| !has_region_left(report, &peer.region));
    let peers = peers.filter_map(|peer| judge_peer_readiness(peer, true));
    let fabrics = judge_other_fabrics(report, true);
    let blocking = links.chain(peers).chain(fabrics).filter(|problem| problem.blocks);
    let found: Vec<ProblemReport> = files.chain(blocking).collect();
    let found =
        if found.is_empty() { vec![judge_waiting_job_readiness(job, report)] } else { found };
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    Some(texts.join("; "))
}

/// Iterates over the problems that other gateways have another fabric. They block if `a_job_waits` for an
/// epoch; with an epoch, those others are left out.
fn judge_other_fabrics(
    report: &GatewayReport,
    a_job_waits: bool,
) -> impl Iterator<Item = ProblemReport> {
    let here = &report.fabric_version;
    here.apart.iter().map(move |other| {
        let (found, remedy) = other.difference(here);
        let subject = format!("gateway {}", other.gateway);
        let (cause, remedy) = (ProblemCause::Fabric, Some(remedy));
        ProblemReport { cause, blocks: a_job_waits, subject, found, remedy }
    })
}

/// Returns whether a gateway with these problems is ready: collectives of its trainers can run.
pub fn is_ready(problems: &[ProblemReport]) -> bool {
    problems.iter().all(|problem| !problem.blocks)
}

/// Makes a problem that keeps the gateway from being ready.
fn blocking_readiness(
    cause: ProblemCause,
    subject: String,
    found: String,
    remedy: Option<String>,
) -> ProblemReport {
    ProblemReport { cause, blocks: true, subject, found, remedy }
}

/// Returns the problem that a link is down. It blocks if `a_job_waits` for an epoch; with an epoch,
/// data and control go round it.
fn judge_link_readiness(link: &LinkOutageReport, a_job_waits: bool) -> ProblemReport {
    let LinkOutageReport { between, seconds, why, way_round } = link;
    let lasted = Span::from_secs_f64(*seconds).rounded();
    let way = match way_round {
        Some(gateway) => format!("it is gone round by way of {gateway}"),
        None => "no single gateway goes round it".to_owned(),
    };
    ProblemReport {
        cause: ProblemCause::Link,
        blocks: a_job_waits,
        subject: format!("link {}", between.join("-")),
        found: format!("down for {lasted} ({why}); {way}"),
        remedy: Some(
            "mend the path between both regions; it is used again once it is up".to_owned(),
        ),
    }
}

/// Returns the problem with the lanes to a peer; `None` where none is missing. Without any lane it
/// blocks if `a_job_waits` for an epoch; with an epoch, others pass on what is for the peer.
fn judge_peer_readiness(peer: &PeerReport, a_job_waits: bool) -> Option<ProblemReport> {
    let PeerReport { lanes_up, lanes, .. } = peer;
    let (cause, blocks, state) = match peer.state {
        PeerState::Up => return None,
        PeerState::Connecting => {
            (ProblemCause::Peer, a_job_waits, "no lane is connected".to_owned())
        }
        PeerState::Meeting | PeerState::Degraded if lanes_up < lanes => {
            (ProblemCause::Lanes, false, format!("{lanes_up} of {lanes} lanes are connected"))
        }
        PeerState::Meeting | PeerState::Degraded => return None,
    };
    let found = match &peer.problem {
        Some(problem) => format!("{state}: {problem}"),
        None => state,
    };
    let subject = format!("gateway {}", peer.gateway);
    let remedy = peer.remedy.clone();
    Some(ProblemReport { cause, blocks, subject, found, remedy })
}

/// Iterates over the gateways that a job of this gateway waits for in vain: their region files do
/// not have it.
fn unready_job_differences<'a>(
    job: &'a JobReport,
    report: &'a GatewayReport,
) -> impl Iterator<Item = &'a JobDifference> {
    let is_missing = move |found: &&JobDifference| {
        found.job == job.job && found.kind == JobDifferenceKind::MissingThere
    };
    report.job_differences.iter().filter(is_missing)
}

/// Returns the problem that the region files of two gateways differ in a job. If the other gateway
/// alone lacks the job, this gateway is not ready.
fn judge_job_difference_for_readiness(difference: &JobDifference) -> ProblemReport {
    let JobDifference { job, gateway, kind } = difference;
    let (found, remedy) = match kind {
        JobDifferenceKind::MissingThere => (
            "not in its region file, so that the job gets no epoch".to_owned(),
            format!("add `[job.{job}]` there and send that gateway SIGHUP, or remove the job here"),
        ),
        JobDifferenceKind::MissingHere => (
            "not in the region file here, so that the job gets no epoch there".to_owned(),
            format!("add `[job.{job}]` here and send this gateway SIGHUP, or remove it there"),
        ),
        JobDifferenceKind::OtherToken => (
            "it differs from the one here".to_owned(),
            "if it is one job, copy one token file to both; if it is two, rename one".to_owned(),
        ),
        JobDifferenceKind::OtherWeight { here, there } => (
            format!("it is {there} there and {here} here: each end shares links differently"),
            "give it one weight in all region files".to_owned(),
        ),
    };
    // The log knows problems of one cause by their subjects.
    let part = match kind {
        JobDifferenceKind::MissingThere | JobDifferenceKind::MissingHere => "",
        JobDifferenceKind::OtherToken => "token of ",
        JobDifferenceKind::OtherWeight { .. } => "weight of ",
    };
    ProblemReport {
        cause: ProblemCause::JobFiles,
        blocks: *kind == JobDifferenceKind::MissingThere,
        subject: format!("{part}job {job} of gateway {gateway}"),
        found,
        remedy: Some(remedy),
    }
}

/// Returns the problem that a job has no epoch, with the gateways that it waits for.
fn judge_waiting_job_readiness(job: &JobReport, report: &GatewayReport) -> ProblemReport {
    let absent: Vec<&str> = unready_peer_names(report, |state| state == PeerState::Connecting);
    let met: Vec<&str> = unready_peer_names(report, |state| state == PeerState::Meeting);
    let (found, remedy) = if has_region_left(report, &report.region) {
        let remedy = format!("`landbridge join {}` takes it in again", report.region);
        ("no epoch: this region has left, as an operator asked".to_owned(), Some(remedy))
    } else if !absent.is_empty() {
        (format!("no epoch: it waits for {}", absent.join(", ")), None)
    } else if !met.is_empty() {
        let remedy = "wait some seconds, since a gateway may be starting or have just died; then \
                      compare the jobs of all region files, and see the logs of these gateways";
        let found =
            format!("no epoch: lanes are up, and the job has not begun at {}", met.join(", "));
        (found, Some(remedy.to_owned()))
    } else {
        let remedy = "see the status of the other gateways".to_owned();
        ("no epoch: not all gateways of the fabric have met".to_owned(), Some(remedy))
    };
    blocking_readiness(ProblemCause::Job, format!("job {}", job.job), found, remedy)
}

/// Returns the gateway names of those peers whose state satisfies `fits`, of regions that have not left.
fn unready_peer_names(report: &GatewayReport, fits: impl Fn(PeerState) -> bool) -> Vec<&str> {
    let peers = report.peers.iter().filter(|peer| !has_region_left(report, &peer.region));
    peers.filter(|peer| fits(peer.state)).map(|peer| &*peer.gateway).collect()
}

/// Whether a region has left at an operator's request, so that nobody waits for it.
fn has_region_left(report: &GatewayReport, region: &str) -> bool {
    report.membership.as_ref().is_some_and(|it| it.left.iter().any(|left| left == region))
}

/// Iterates over the links that are down between regions of which none has left.
fn links_of_members(report: &GatewayReport) -> impl Iterator<Item = &LinkOutageReport> {
    let is_missed =
        |link: &&LinkOutageReport| !link.between.iter().any(|end| has_region_left(report, end));
    report.links_down.iter().filter(is_missed)
}

/// Returns the problem that the way to a peer loses more than the fabric expects; `None` where it
/// does not.
fn judge_loss_for_readiness(peer: &PeerReport) -> Option<ProblemReport> {
    peer.loss_alarm.then(|| ProblemReport {
        cause: ProblemCause::Loss,
        blocks: false,
        subject: format!("gateway {}", peer.gateway),
        found: format!(
            "the way to it loses {}, more than expected",
            rounded_decimal_percent(peer.loss)
        ),
        remedy: Some(LOSS_REMEDY.to_owned()),
    })
}

/// Returns the problem that the path to a peer is longer than the fabric says. `None` where it is
/// not, and for a peer of the same region.
fn judge_rtt_for_readiness(peer: &PeerReport, report: &GatewayReport) -> Option<ProblemReport> {
    let time = |seconds: f64| Span::from_secs_f64(seconds).rounded();
    let measured = time(peer.long_rtt_seconds?);
    let ends = [&*report.region, &*peer.region];
    let link = report.links.iter().find(|link| {
        let [a, b] = link.between.each_ref().map(String::as_str);
        ends == [a, b] || ends == [b, a]
    })?;
    Some(ProblemReport {
        cause: ProblemCause::Rtt,
        blocks: false,
        subject: format!("gateway {}", peer.gateway),
        found: format!(
            "the RTT to it is {measured}, the fabric says {}",
            time(link.rtt_ms / 1000.0)
        ),
        remedy: Some(LONG_RTT_REMEDY.to_owned()),
    })
}

/// The action to take that status, log and `/readyz` print where a limit on processors holds a
/// gateway back.
pub const PROCESSOR_REMEDY: &str =
    "raise it (CPUQuota= of a service, limits of a container): everybody waits for this gateway";
/// The action to take that status, log and `/readyz` print where the way to a peer loses more than
/// the fabric expects.
pub const LOSS_REMEDY: &str = "ask whoever runs the link; set `loss` of the link in the fabric \
    where packets are lost at random, or lower its `rate` where a queue overflows (`landbridge \
    doctor` measures it)";
/// The action to take that status, log and doctor print where the RTT to a peer is longer than the
/// fabric says.
pub const LONG_RTT_REMEDY: &str =
    "set `rtt` of the link to the measured value: it sizes the congestion windows";
