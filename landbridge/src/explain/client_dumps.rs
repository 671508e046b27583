//! Dumps of ranks themselves: who has posted when, and what a rank waits for.
//!
//! A rank knows its own posts in all its groups. Gateways know more of what goes on between them, so their
//! findings come first.

use super::dump_view::DumpView;
use super::party::{Finding, Party};
use super::past::parties_of_failure;
use super::waits::WAIT_TOLD_AFTER_S;
use gateway::client::{ClientDump, DumpedCollective};
use hier_collectives::post::FailureCode;
use std::collections::{BTreeMap, BTreeSet};
use units::{ByteCount, Span};

/// 10 s: ranks that have all posted, and wait for the exchange this long, are told where no gateway was
/// dumped. The time is that of `landbridge explain` for the exchanges of gateways.
/// Tested by `an_exchange_of_clients_alone_is_told`.
const EXCHANGE_TOLD_AFTER_S: f64 = 10.0;

/// The dumps of the ranks of one job: of each rank the latest.
#[derive(Debug)]
struct JobClients<'a> {
    job: &'a str,
    dumps: BTreeMap<u32, &'a ClientDump>,
    /// The last epoch in which one of them has posted.
    epoch: u64,
}

/// A collective of a job in its last epoch, as far as ranks tell.
#[derive(Debug)]
struct SharedCollective<'a> {
    sequence: u64,
    records: BTreeMap<u32, &'a DumpedCollective>,
}

impl SharedCollective<'_> {
    /// Returns whether it failed because a rank had not posted in time.
    fn has_timed_out(&self) -> bool {
        self.records.values().any(|record| record.code == Some(FailureCode::TimedOut as u8))
    }
}

/// Returns the dumps of ranks by job.
fn clients_by_job(clients: &[ClientDump]) -> Vec<JobClients<'_>> {
    let mut jobs: BTreeMap<&str, BTreeMap<u32, &ClientDump>> = BTreeMap::new();
    for client in clients {
        let latest = jobs.entry(&client.job).or_default().entry(client.rank).or_insert(client);
        if latest.dumped_seconds < client.dumped_seconds {
            *latest = client;
        }
    }
    jobs.into_iter().map(|(job, dumps)| JobClients::new(job, dumps)).collect()
}

/// Iterates over the collectives of a rank in the job itself, in the order of their posts.
fn of_job_itself(dump: &ClientDump) -> impl DoubleEndedIterator<Item = &DumpedCollective> {
    dump.collectives.iter().filter(|record| record.group == 0)
}

impl<'a> JobClients<'a> {
    /// Makes the view of a job of these dumps of its ranks.
    fn new(job: &'a str, dumps: BTreeMap<u32, &'a ClientDump>) -> Self {
        let records = dumps.values().flat_map(|dump| of_job_itself(dump));
        let epoch = records.map(|record| record.epoch).max().unwrap_or_default();
        Self { job, dumps, epoch }
    }

    /// Returns the collectives of the last epoch, in their order.
    fn collectives(&self) -> Vec<SharedCollective<'a>> {
        let mut found: BTreeMap<u64, BTreeMap<u32, &DumpedCollective>> = BTreeMap::new();
        for (rank, dump) in &self.dumps {
            for record in of_job_itself(dump).filter(|record| record.epoch == self.epoch) {
                found.entry(record.sequence).or_default().insert(*rank, record);
            }
        }
        let collective = |(sequence, records)| SharedCollective { sequence, records };
        found.into_iter().map(collective).collect()
    }

    /// Returns the ranks of the job that gave no dump.
    fn ranks_without_dump(&self) -> Vec<u32> {
        let ranks = self.dumps.values().map(|dump| dump.world_size).max().unwrap_or_default();
        (0..ranks).filter(|rank| !self.dumps.contains_key(rank)).collect()
    }

    /// Returns for how long the collective is awaited at a rank that has posted it and whose dump shows no end;
    /// the longest of all ranks. `None` where no rank waits long enough to tell.
    fn longest_wait(&self, collective: &SharedCollective<'_>) -> Option<f64> {
        let wait = |(rank, record): (&u32, &&DumpedCollective)| {
            let dump = self.dumps.get(rank).filter(|_| record.ended_seconds.is_none())?;
            Some(dump.dumped_seconds - record.posted_seconds)
        };
        let longest = collective.records.iter().filter_map(wait).reduce(f64::max);
        longest.filter(|seconds| *seconds >= WAIT_TOLD_AFTER_S)
    }

    /// Finds the ranks that have kept others waiting in a collective: those that had not posted it by the
    /// time of their dump, and those that posted it late if it failed for that.
    fn find_late_ranks(&self, collective: &SharedCollective<'_>) -> Vec<Finding> {
        let first = collective.records.iter().map(|(rank, record)| (record.posted_seconds, *rank));
        let Some((begun, first_rank)) = first.min_by(|a, b| a.0.total_cmp(&b.0)) else {
            return Vec::new();
        };
        let record = collective.records[&first_rank];
        let what = describe_collective(record);
        let finding = |(rank, dump): (&u32, &&ClientDump)| {
            let posted = collective.records.get(rank).map(|record| record.posted_seconds);
            let mut of_epoch = of_job_itself(dump).filter(|record| record.epoch == self.epoch);
            // Its recorder has forgotten what it posted.
            let is_past =
                of_epoch.next_back().is_some_and(|last| last.sequence > collective.sequence);
            let is_innocent = if posted.is_some() { !collective.has_timed_out() } else { is_past };
            let late = posted.unwrap_or(dump.dumped_seconds) - begun;
            if is_innocent || late < WAIT_TOLD_AFTER_S {
                return None;
            }
            let late = Span::from_secs_f64(late).rounded();
            let how = match posted {
                Some(_) => format!("it posted {what} of job {} {late} after", self.job),
                None => format!("it had not posted {what} of job {} {late} after", self.job),
            };
            Some(Finding::of_party(
                Party::Rank(*rank),
                format!("{how} rank {first_rank}, as the ranks' own dumps say"),
                "look at its trainer: it may be stopped, slow, or in another part of the script",
            ))
        };
        self.dumps.iter().filter_map(finding).collect()
    }
}

/// Finds the scripts of jobs whose ranks heard last that their posts contradict each other.
pub(super) fn find_contradicting_posts_of_clients(clients: &[ClientDump]) -> Vec<Finding> {
    let finding = |job: JobClients<'_>| {
        let by_posts = |record: &&DumpedCollective| {
            let code = record.code.and_then(FailureCode::from_code);
            code.is_some_and(FailureCode::is_fault_of_posts)
        };
        let lasts = job.dumps.values().filter_map(|dump| last_end(dump));
        let text = lasts.filter(by_posts).find_map(|record| record.error_text.clone())?;
        Some(Finding::of_party(
            Party::Script(job.job.to_owned()),
            text,
            "let all ranks post the same collectives in one order",
        ))
    };
    clients_by_job(clients).into_iter().filter_map(finding).collect()
}

/// Returns the collective of the job itself that ended last on a rank.
fn last_end(dump: &ClientDump) -> Option<&DumpedCollective> {
    of_job_itself(dump).rfind(|record| record.ended_seconds.is_some())
}

/// Finds the ranks for which others have waited in the oldest collective of a job in its last epoch that
/// is under way somewhere, or failed by its timeout. Where no gateway was dumped, jobs are named that wait for
/// ranks without a dump, or for the exchange.
pub(super) fn find_waits_of_clients(view: &DumpView<'_>, clients: &[ClientDump]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in clients_by_job(clients) {
        let collectives = job.collectives();
        let waits = |collective: &&SharedCollective<'_>| {
            collective.has_timed_out() || job.longest_wait(collective).is_some()
        };
        let Some(oldest) = collectives.iter().find(waits) else { continue };
        let late = job.find_late_ranks(oldest);
        if late.is_empty() && view.gateways().next().is_none() {
            findings.extend(find_wait_of_job(&job, oldest));
        }
        findings.extend(late);
    }
    findings
}

/// Finds that a job waits for ranks that gave no dump, or for an exchange that has begun. `None` while that
/// is no trouble.
fn find_wait_of_job(job: &JobClients<'_>, collective: &SharedCollective<'_>) -> Option<Finding> {
    let record = collective.records.values().next()?;
    let what = describe_collective(record);
    let waited = job.longest_wait(collective)?;
    let lasted = Span::from_secs_f64(waited).rounded();
    let without = job.ranks_without_dump();
    let (found, remedy) = if !without.is_empty() {
        let ranks = list_of_ranks(&without);
        (
            format!("{what} has waited {lasted}, and no dump tells of {ranks}"),
            "dump these ranks too",
        )
    } else if waited >= EXCHANGE_TOLD_AFTER_S {
        (
            format!("all ranks have posted {what}, and it has run for {lasted}"),
            "dump all gateways too",
        )
    } else {
        return None;
    };
    Some(Finding::of_party(Party::Job(job.job.to_owned()), found, remedy))
}

/// Finds what the text of the first failure names, of the jobs whose ranks have failed last.
pub(super) fn find_failures_of_clients(
    view: &DumpView<'_>,
    clients: &[ClientDump],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in clients_by_job(clients) {
        let failed = job.dumps.iter().filter_map(|(rank, dump)| {
            let record = last_end(dump).filter(|record| record.code.is_some())?;
            Some((record.ended_seconds?, *rank, record))
        });
        let first = failed.min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, rank, record)) = first else { continue };
        let text = record.error_text.as_deref().unwrap_or_default();
        let code = record.code.and_then(FailureCode::from_code);
        let parties = match (code, view.place_of_rank(rank)) {
            (Some(FailureCode::GatewayLost), Some(place)) => {
                vec![Party::Gateway(place.gateway.clone())]
            }
            _ => parties_of_failure(view, job.job, code, text),
        };
        let what = describe_collective(record);
        let found = format!("{what} of job {} failed first on rank {rank}: {text}", job.job);
        let finding = |party| Finding { party, found: found.clone(), remedy: None };
        findings.extend(parties.into_iter().map(finding));
    }
    findings
}

/// Adds to what was found of ranks where they stand by their own dumps.
pub(super) fn add_places_of_clients(findings: &mut [Finding], clients: &[ClientDump]) {
    for finding in findings {
        let Party::Rank(rank) = finding.party else { continue };
        let own = clients.iter().filter(|client| client.rank == rank);
        if let Some(dump) = own.max_by(|a, b| a.dumped_seconds.total_cmp(&b.dumped_seconds)) {
            finding.found += &format!("; by its own dump {}", place_of_client(dump));
        }
    }
}

/// Returns what a rank waits for at the time of its dump, or what ended there last.
fn place_of_client(dump: &ClientDump) -> String {
    let ago =
        |seconds: f64| Span::from_secs_f64((dump.dumped_seconds - seconds).max(0.0)).rounded();
    let of = |record: &DumpedCollective| match record.group {
        0 => describe_collective(record),
        _ => format!("{} of a group", describe_collective(record)),
    };
    let mut under_way = dump.collectives.iter().filter(|record| record.ended_seconds.is_none());
    if let Some(record) = under_way.next() {
        return format!("it had waited {} for {}", ago(record.posted_seconds), of(record));
    }
    let ended = dump.collectives.iter().filter_map(|record| Some((record.ended_seconds?, record)));
    match ended.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((at, record)) => {
            format!("nothing was under way, and {} had ended {} before", of(record), ago(at))
        }
        None => "it had posted nothing".to_owned(),
    }
}

/// Returns the ranks of jobs of which others gave dumps and these did not, each once.
pub(crate) fn ranks_without_dump(clients: &[ClientDump]) -> BTreeSet<u32> {
    clients_by_job(clients).iter().flat_map(JobClients::ranks_without_dump).collect()
}

/// Returns number, operation and size of a collective in words.
fn describe_collective(record: &DumpedCollective) -> String {
    let bytes = record.contribution_bytes.max(record.result_bytes);
    format!(
        "collective {} ({}, {}, {})",
        record.sequence,
        record.operation.replace('_', "-"),
        record.dtype,
        ByteCount::new(bytes).rounded()
    )
}

/// Returns the numbers of ranks in words.
fn list_of_ranks(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("ranks {}", numbers.join(", "))
}
