//! The causes of a job's trouble, by the dumps of its gateways.
//!
//! [`find_causes`] asks the other files for what they find, in the order in which a fault explains
//! others: posts that contradict each other, gateways that are gone, clocks and files, what keeps
//! gateways from being ready, ranks and news that are awaited, whatever is slow, and the past.

use super::client_dumps::{
    add_places_of_clients, find_contradicting_posts_of_clients, find_failures_of_clients,
    find_waits_of_clients,
};
use super::dump::Dump;
use super::dump_view::DumpView;
use super::files::{find_differing_fabrics, find_differing_jobs, find_wrong_clocks};
use super::party::{CulpritKind, Finding};
use super::past::{find_contradicting_posts, find_lost_log_lines, find_past_incidents};
use super::problems::{ReportedProblems, find_absent_gateways, find_reported_problems};
use super::slowness::{find_long_exchanges, find_slow_links, find_stragglers};
use super::waits::{find_silent_paths, find_waiting_commits, find_waits};
use gateway::client::ClientDump;
use serde::Serialize;

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

/// Returns the causes that dumps show, one for each party at fault. The cause that explains the
/// others comes first, and what an earlier one explains is left out. Commits that wait, past
/// failures that are no fault of posts, and lost lines of logs are causes only where there is no
/// other. `clients` are dumps of ranks, of which there may be none.
pub(crate) fn find_causes(dumps: &[Dump], clients: &[ClientDump]) -> Vec<Cause> {
    let view = DumpView::of_dumps(dumps);
    let mut findings = find_contradicting_posts(&view);
    findings.extend(find_contradicting_posts_of_clients(clients));
    findings.extend(find_absent_gateways(&view));
    findings.extend(find_wrong_clocks(&view));
    findings.extend(find_differing_fabrics(&view));
    findings.extend(find_differing_jobs(&view, true));
    findings.extend(find_reported_problems(&view, ReportedProblems::Blocking));
    findings.extend(find_waits(&view));
    findings.extend(find_waits_of_clients(&view, clients));
    findings.extend(find_silent_paths(&view));
    // A link below its rate loses what its queue cannot hold.
    findings.extend(find_slow_links(&view));
    findings.extend(find_reported_problems(&view, ReportedProblems::Others));
    findings.extend(find_differing_jobs(&view, false));
    findings.extend(find_stragglers(&view));
    findings.extend(find_long_exchanges(&view));
    for find in [find_waiting_commits, find_past_incidents, find_lost_log_lines] {
        if findings.is_empty() {
            findings = find(&view);
        }
    }
    if findings.is_empty() {
        findings = find_failures_of_clients(&view, clients);
    }
    add_places_of_clients(&mut findings, clients);
    let mut kept: Vec<Finding> = Vec::new();
    for finding in findings {
        if !kept.iter().any(|known| known.party.explains(&finding.party, &view)) {
            kept.push(finding);
        }
    }
    let cause = |finding: Finding| Cause {
        kind: finding.party.kind(),
        culprit: finding.party.culprit_name(&view),
        found: finding.found,
        remedy: finding.remedy,
    };
    kept.into_iter().map(cause).collect()
}
