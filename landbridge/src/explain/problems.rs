//! Gateways that are gone, and what gateways themselves find wrong.

use super::dump_view::DumpView;
use super::party::{Finding, Party};
use gateway::observe::problem_cause::{ProblemCause, ProblemReport};
use gateway::observe::status::{GatewayReport, PeerState};

/// The part of the reported problems that a search is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportedProblems {
    /// Those that keep a gateway from being ready, and limits on its processors, which delay all that it
    /// does.
    Blocking,
    /// The others.
    Others,
}

/// Finds gateways that were asked and gave no status. Tells those that other gateways still reach
/// from those that do not run, and from those whose process does not answer.
pub(super) fn find_absent_gateways(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
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
        findings.push(Finding::of_party(Party::Gateway(gateway.gateway.clone()), found, remedy));
    }
    findings
}

/// Finds what gateways themselves report, in the order in which one problem explains others. What
/// differs in the files of jobs is left to others.
pub(super) fn find_reported_problems(
    view: &DumpView<'_>,
    wanted: ReportedProblems,
) -> Vec<Finding> {
    let mut found: Vec<(u8, Finding)> = Vec::new();
    for status in view.statuses() {
        for problem in &status.problems {
            let is_blocking = problem.blocks || problem.cause == ProblemCause::Processor;
            if is_blocking == (wanted == ReportedProblems::Blocking)
                && let Some(party) = party_of_problem(status, problem)
            {
                let text = format!("gateway {} finds: {}", status.gateway, problem.found);
                let finding = Finding { party, found: text, remedy: problem.remedy.clone() };
                found.push((order_of_problem(problem.cause, &finding.party), finding));
            }
        }
    }
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Returns the place of a problem among those of all gateways, from 0; lower places explain higher
/// ones. A wrong file explains a missing peer, and a missing peer a job without an epoch.
const fn order_of_problem(cause: ProblemCause, party: &Party) -> u8 {
    match cause {
        ProblemCause::ShuttingDown | ProblemCause::Socket | ProblemCause::Processor => 0,
        ProblemCause::Files | ProblemCause::JobFiles | ProblemCause::Fabric => 1,
        ProblemCause::Peer if matches!(party, Party::Files { .. }) => 1,
        ProblemCause::Peer | ProblemCause::Link => 2,
        ProblemCause::Lanes | ProblemCause::Loss | ProblemCause::Rtt => 3,
        ProblemCause::Job | ProblemCause::Restart => 4,
    }
}

/// Returns the party at fault for a problem that a gateway reports; `None` for differences in the
/// files of jobs.
fn party_of_problem(status: &GatewayReport, problem: &ProblemReport) -> Option<Party> {
    let own = &*status.gateway;
    let subject = &*problem.subject;
    Some(match problem.cause {
        ProblemCause::ShuttingDown | ProblemCause::Socket | ProblemCause::Processor => {
            Party::Gateway(own.to_owned())
        }
        ProblemCause::Job => Party::Job(subject.strip_prefix("job ").unwrap_or(subject).to_owned()),
        ProblemCause::Files | ProblemCause::Restart => Party::of_files("files", &[own]),
        ProblemCause::Fabric => {
            let other = subject.strip_prefix("gateway ").filter(|other| *other != own);
            Party::of_files("fabric file", &[&[own][..], other.as_slice()].concat())
        }
        ProblemCause::JobFiles => return None,
        ProblemCause::Link => {
            let is_it = |between: &&[String; 2]| subject == format!("link {}", between.join("-"));
            let down = status.links_down.iter().map(|link| &link.between);
            Party::Link(down.into_iter().find(is_it)?.clone())
        }
        ProblemCause::Peer | ProblemCause::Lanes | ProblemCause::Loss | ProblemCause::Rtt => {
            let peer = subject.strip_prefix("gateway ").unwrap_or(subject);
            file_at_fault(own, peer, &problem.found).unwrap_or_else(|| Party::of_path(own, peer))
        }
    })
}

/// Returns the file that the text of a missing lane blames: the certificate that one end refuses, or
/// fabric files that differ. `None` for other texts.
fn file_at_fault(own: &str, peer: &str, found: &str) -> Option<Party> {
    if found.contains("fabric differs") {
        return Some(Party::of_files("fabric file", &[own, peer]));
    }
    // QUIC says so of a connection that the other end closed.
    let is_refused_there = found.contains("by peer");
    let owner = if is_refused_there { own } else { peer };
    found.contains("certificate").then(|| Party::of_files(Party::CERTIFICATE, &[owner]))
}
