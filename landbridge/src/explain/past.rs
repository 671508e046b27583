//! The past, as dumps tell it: collectives that failed, epochs that ended, and lost lines of logs.

use super::dump_view::DumpView;
use super::party::{Finding, Party};
use gateway::observe::status::{IncidentReport, JobReport};
use hier_collectives::post::FailureCode;
use std::collections::BTreeSet;
use units::Span;

/// Returns whether the job has completed no collective since an incident, or none at all.
fn has_completed_nothing_since(job: &JobReport, incident: &IncidentReport) -> bool {
    job.completed_seconds_ago.is_none_or(|completed| completed >= incident.seconds_ago)
}

/// Finds the last incident of each job that was a fault of posts, if the job has completed no
/// collective since. The same posts would fail again.
pub(super) fn find_contradicting_posts(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in view.jobs() {
        let by_posts = |incident: &&IncidentReport| {
            let code = FailureCode::from_code(incident.code);
            code.is_some_and(FailureCode::is_fault_of_posts)
                && has_completed_nothing_since(job, incident)
        };
        if let Some(incident) = job.incidents.iter().rev().find(by_posts) {
            let ago = Span::from_secs_f64(incident.seconds_ago).rounded();
            findings.push(Finding::of_party(
                Party::Script(job.job.clone()),
                format!("{ago} ago: {}", incident.text),
                "let all ranks post the same collectives in one order",
            ));
        }
    }
    findings
}

/// Finds the last incident of each job that has completed nothing since, with the parties that its
/// text names.
pub(super) fn find_past_incidents(view: &DumpView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in view.jobs() {
        let last = job.incidents.last().filter(|one| has_completed_nothing_since(job, one));
        let Some(incident) = last else { continue };
        let ago = Span::from_secs_f64(incident.seconds_ago).rounded();
        let found =
            format!("job {} has completed nothing since {ago} ago: {}", job.job, incident.text);
        let finding = |party| Finding { party, found: found.clone(), remedy: None };
        let code = FailureCode::from_code(incident.code);
        let parties = parties_of_failure(view, &job.job, code, &incident.text);
        findings.extend(parties.into_iter().map(finding));
    }
    findings
}

/// Returns the parties that the text of a failure names: ranks, else a link, else a gateway, else
/// the job. Without a dump of a gateway, links and gateways are not known.
pub(super) fn parties_of_failure(
    view: &DumpView<'_>,
    job: &str,
    code: Option<FailureCode>,
    text: &str,
) -> Vec<Party> {
    let places = view.places();
    if matches!(code, Some(FailureCode::RankLost | FailureCode::TimedOut)) {
        let named = text.match_indices("rank ").filter_map(|(at, word)| {
            let rest = &text[at + word.len()..];
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse().ok()
        });
        let is_known = |rank: &u32| places.is_empty() || view.place_of_rank(*rank).is_some();
        let ranks: BTreeSet<u32> = named.filter(is_known).collect();
        let ranks: Vec<Party> = ranks.into_iter().map(Party::Rank).collect();
        if !ranks.is_empty() {
            return ranks;
        }
    }
    let pairs = places.iter().flat_map(|a| places.iter().map(move |b| [&*a.region, &*b.region]));
    let mut pairs = pairs.filter(|[a, b]| a < b);
    if let Some([a, b]) = pairs.find(|[a, b]| is_phrase_of(text, &format!("link {a}-{b}"))) {
        return vec![Party::Link([a.to_owned(), b.to_owned()])];
    }
    let mut named = places.iter().map(|place| &place.gateway);
    match named.find(|name| is_phrase_of(text, &format!("gateway {name}"))) {
        Some(name) => vec![Party::Gateway(name.clone())],
        None => vec![Party::Job(job.to_owned())],
    }
}

/// Returns whether a text has a phrase that ends where a name ends.
fn is_phrase_of(text: &str, phrase: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(phrase).any(|(at, _)| !text[at + phrase.len()..].starts_with(goes_on))
}

/// Finds gateways that have lost lines of their logs since their start.
pub(super) fn find_lost_log_lines(view: &DumpView<'_>) -> Vec<Finding> {
    let lossy = view.statuses().filter(|status| status.lost_log_lines > 0);
    let finding = |status: &gateway::observe::status::GatewayReport| {
        Finding::of_party(
            Party::Gateway(status.gateway.clone()),
            format!(
                "{} lines of its log were lost since its start: the disk of the log is full, or \
                 nobody reads the log",
                status.lost_log_lines
            ),
            "free the disk, or end whatever holds the reader of the log",
        )
    };
    lossy.map(finding).collect()
}
