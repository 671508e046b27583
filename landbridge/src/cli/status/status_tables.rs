//! A gateway's status as text: its problems, peers, links and jobs in full.

use crate::cli::output::table::{render_field_table, render_table};
use gateway::observe::problem_cause::ProblemReport;
use gateway::observe::readiness::is_ready;
use gateway::observe::status as observed;
use units::{BitRate, ByteCount, Span, rounded_decimal, rounded_decimal_percent};

/// Returns the status of a gateway as text: its problems, its address for trainers of other hosts,
/// tables of peers and links, then each job.
pub(super) fn describe_status_tables(status: &observed::GatewayReport) -> String {
    let mut text = describe_status_table_readiness(status, usize::MAX);
    if let Some(attach) = &status.attach {
        text += &format!("trainers of other hosts attach at tls://{attach}\n");
    }
    if let Some(membership) = &status.membership {
        let field = ["members:".to_owned(), membership.to_string()];
        text.push_str(&render_field_table(&[field]));
    }
    if status.fabric_version != Default::default() {
        let field = ["fabric:".to_owned(), status.fabric_version.to_string()];
        text.push_str(&render_field_table(&[field]));
    }
    text.push('\n');
    let header = ["peer", "state", "lanes", "rtt", "loss", "sent", "received"];
    text.push_str(&render_table(
        header,
        &status.peers.iter().map(peer_status_table_row).collect::<Vec<_>>(),
    ));
    text.push('\n');
    text.push_str(&render_table(
        LINK_TABLE_HEADER,
        &status.links.iter().map(link_status_table_row).collect::<Vec<_>>(),
    ));
    for job in &status.jobs {
        text.push('\n');
        text.push_str(&describe_job_status_tables(job));
    }
    text
}

/// Returns as text whether a gateway is ready, and at most `shown` of its problems with what to do.
/// A last line has the number of its lost log lines, if there are any.
pub(super) fn describe_status_table_readiness(
    status: &observed::GatewayReport,
    shown: usize,
) -> String {
    let (gateway, fabric) = (&status.gateway, &status.fabric);
    let ready = if is_ready(&status.problems) { "ready" } else { "NOT READY" };
    let mut text = format!("gateway {gateway} of {fabric}: {ready}\n");
    let problem_row = |problem: &ProblemReport| {
        let kind = if problem.blocks { "NOT READY" } else { "WARNING" };
        [kind.to_owned(), problem.to_string()]
    };
    if !status.problems.is_empty() {
        let rows: Vec<_> = status.problems.iter().take(shown).map(problem_row).collect();
        text.push_str(&render_field_table(&rows));
    }
    if status.lost_log_lines > 0 {
        let lost = status.lost_log_lines;
        text += &format!("log: {lost} lines lost, for stderr of the gateway is full or not read\n");
    }
    text
}

/// Returns the status of a job as text: epoch, plan, ranks, straggler, collectives and commits.
fn describe_job_status_tables(job: &observed::JobReport) -> String {
    let epoch = job.epoch.map_or("no epoch".to_owned(), |epoch| format!("epoch {epoch}"));
    let mut text = format!("job {}: {epoch}\n", job.job);
    if job.removed {
        text.push_str("removed from the region file: no trainer may attach\n");
    }
    if let Some(drain) = &job.draining {
        text.push_str(&describe_drain_status_table(drain, job.commits.len()));
    }
    if let Some(plan) = &job.plan {
        let (algorithm, reason, hash) = (&plan.algorithm, &plan.reason, &plan.hash);
        let field = [format!("plan {algorithm}:"), format!("{reason} (hash {hash})")];
        text.push_str(&render_field_table(&[field]));
    }
    let rank_row = |rank: &observed::RankReport| {
        let state = if rank.attached { "attached" } else { "not attached" };
        let speed = rank.samples_per_second.map_or("-".to_owned(), |s| rounded_decimal(s) + "/s");
        [rank.rank.to_string(), state.to_owned(), speed]
    };
    let rows: Vec<_> = job.ranks.iter().map(rank_row).collect();
    text.push_str(&render_table(["rank", "trainer", "samples"], &rows));
    if let Some(straggler) = &job.straggler {
        let (kind, name) = (&straggler.kind, &straggler.name);
        let behind = rounded_status_table_seconds(straggler.behind_seconds);
        let (since, times) =
            (rounded_status_table_seconds(straggler.since_seconds), straggler.collectives);
        let line = format!(
            "straggler for {since}: {kind} {name}, {behind} behind, {times} collectives in a row\n"
        );
        text.push_str(&line);
    }
    if job.collectives.is_empty() {
        text.push_str("no collective under way");
        if let Some(seconds) = job.completed_seconds_ago {
            text.push_str(&format!(
                "; the last completed {} ago",
                rounded_status_table_seconds(seconds)
            ));
        }
        text.push('\n');
    } else {
        let header = ["collective", "op", "dtype", "size", "state", "awaited ranks", "since"];
        let rows: Vec<_> = job.collectives.iter().map(collective_status_table_row).collect();
        text.push_str(&render_table(header, &rows));
    }
    if !job.commits.is_empty() {
        let header = ["commit of step", "by rank", "awaited regions", "since"];
        let rows: Vec<_> = job.commits.iter().map(commit_status_table_row).collect();
        text.push_str(&render_table(header, &rows));
    }
    text
}

/// Returns one line on a gateway that shuts down: the time left, and the collectives and commits
/// that it waits for.
fn describe_drain_status_table(drain: &observed::DrainReport, commits: usize) -> String {
    let mut awaited = Vec::new();
    match drain.collectives.len() {
        0 => {}
        1 => awaited.push("1 collective".to_owned()),
        more => awaited.push(format!("{more} collectives")),
    }
    match commits {
        0 => {}
        1 => awaited.push("1 commit".to_owned()),
        more => awaited.push(format!("{more} commits")),
    }
    if !drain.uncommitted.is_empty() {
        let ranks: Vec<String> = drain.uncommitted.iter().map(u32::to_string).collect();
        awaited.push(format!("the last commit of rank {}", ranks.join(", ")));
    }
    if awaited.is_empty() {
        return "shutting down: waiting for nothing\n".to_owned();
    }
    let (awaited, left) = (awaited.join(", "), rounded_status_table_seconds(drain.seconds_left));
    format!("shutting down within {left}: waiting for {awaited}\n")
}

/// Returns the table row of a commit: step, rank, regions that are awaited, seconds since the rank
/// asked.
fn commit_status_table_row(commit: &observed::CommitReport) -> [String; 4] {
    let regions = commit.awaited.join(", ");
    [
        commit.step.to_string(),
        commit.rank.to_string(),
        if regions.is_empty() { "-".to_owned() } else { regions },
        rounded_status_table_seconds(commit.seconds),
    ]
}

/// Returns the table row of a peer gateway: state, lanes, RTT, loss, bytes sent and received.
fn peer_status_table_row(peer: &observed::PeerReport) -> [String; 7] {
    let state = match peer.state {
        observed::PeerState::Connecting => "connecting",
        observed::PeerState::Meeting => "meeting",
        observed::PeerState::Up => "up",
        observed::PeerState::Degraded => "degraded",
    };
    [
        peer.gateway.clone(),
        state.to_owned(),
        format!("{}/{}", peer.lanes_up, peer.lanes),
        peer.rtt_ms.map_or("-".to_owned(), |rtt| rounded_status_table_seconds(rtt / 1e3)),
        rounded_decimal_percent(peer.loss) + if peer.loss_alarm { " ALARM" } else { "" },
        ByteCount::new(peer.sent_bytes).rounded(),
        ByteCount::new(peer.received_bytes).rounded(),
    ]
}

/// Column headers of the table of links in `landbridge status`, in the order of
/// [`link_status_table_row`].
pub(in crate::cli) const LINK_TABLE_HEADER: [&str; 6] =
    ["link", "fabric rate", "limit", "set by", "fabric rtt", "fabric loss"];

/// Returns the table row of a link: the rate, RTT and loss that the fabric states, and between them
/// the limit in force and its origin.
pub(in crate::cli) fn link_status_table_row(link: &observed::LinkReport) -> [String; 6] {
    let limit = link.effective_bits_per_second;
    let set_by = match (&link.operator_gateway, link.scheduled_bits_per_second) {
        _ if link.measured_bits_per_second == Some(limit) => "measurement".to_owned(),
        (Some(gateway), _) => format!("operator at {gateway}"),
        (None, Some(_)) => "schedule".to_owned(),
        (None, None) => "fabric".to_owned(),
    };
    [
        link.between.join("-"),
        BitRate::from_bits_per_second(link.rate_bits_per_second).to_string(),
        BitRate::from_bits_per_second(limit).rounded(),
        set_by,
        rounded_status_table_seconds(link.rtt_ms / 1e3),
        rounded_decimal_percent(link.loss),
    ]
}

/// Returns the table row of a collective under way: sequence, type, size, state, ranks that are
/// awaited, age.
fn collective_status_table_row(collective: &observed::CollectiveReport) -> [String; 7] {
    let state = match collective.state {
        observed::CollectiveState::Awaiting => "awaiting posts",
        observed::CollectiveState::Running => "running",
        observed::CollectiveState::Settling => "settling",
    };
    let awaited: Vec<String> = collective.awaited.iter().map(u32::to_string).collect();
    let awaited = if awaited.is_empty() { "-".to_owned() } else { awaited.join(", ") };
    [
        collective.sequence.to_string(),
        collective.op.clone(),
        collective.dtype.clone(),
        ByteCount::new(collective.bytes).rounded(),
        state.to_owned(),
        awaited,
        rounded_status_table_seconds(collective.seconds),
    ]
}

/// Returns a time given in seconds in three significant digits, such as `1.25 s`.
pub(super) fn rounded_status_table_seconds(seconds: f64) -> String {
    Span::from_secs_f64(seconds).rounded()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway::observe::status::{CommitReport, DrainReport, JobReport, TotalsReport};

    #[test]
    fn a_draining_job_lists_what_it_waits_for() {
        let mut job = JobReport {
            job: "train".to_owned(),
            epoch: Some(3),
            plan: None,
            ranks: vec![],
            straggler: None,
            collectives: vec![],
            completed_seconds_ago: Some(90.0),
            totals: TotalsReport::default(),
            incidents: vec![],
            groups: 0,
            commits: vec![CommitReport {
                rank: 1,
                step: 7,
                awaited: vec!["east".to_owned(), "west".to_owned()],
                seconds: 2.25,
            }],
            removed: false,
            draining: Some(DrainReport {
                seconds_left: 12.34,
                collectives: vec![8, 9],
                uncommitted: vec![0, 2],
            }),
        };
        let text = describe_job_status_tables(&job);
        let line = "shutting down within 12.3 s: waiting for 2 collectives, 1 commit, the last commit \
                    of rank 0, 2\n";
        assert!(text.contains(line), "{text}");
        let row = text.lines().last().unwrap_or_default();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["7", "1", "east,", "west", "2.25", "s"], "{text}");
        assert!(text.contains("no collective under way; the last completed 1.5 min ago"), "{text}");
        job.commits.clear();
        job.draining =
            Some(DrainReport { seconds_left: 1.0, collectives: vec![], uncommitted: vec![] });
        assert!(describe_job_status_tables(&job).contains("shutting down: waiting for nothing\n"));
    }
    #[test]
    fn problems_stand_above_the_tables() {
        let report = serde_json::json!({
            "gateway": "east-0",
            "fabric": "two",
            "problems": [
                {
                    "cause": "peer",
                    "blocks": true,
                    "subject": "gateway west-0",
                    "found": "no lane is connected",
                    "remedy": "start it",
                },
                {
                    "cause": "restart",
                    "blocks": false,
                    "subject": "gateway east-0",
                    "found": "its files have other values",
                    "remedy": null,
                },
            ],
            "peers": [],
            "links": [],
            "jobs": [],
        });
        let report = serde_json::from_value(report).expect("a report");
        let text = describe_status_tables(&report);
        let expected = "gateway east-0 of two: NOT READY\n\
                        NOT READY  gateway west-0: no lane is connected; start it\n\
                        WARNING    gateway east-0: its files have other values\n";
        assert!(text.starts_with(expected), "{text}");
    }
}
