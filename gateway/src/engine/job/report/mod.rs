//! Logs and counts what happens in a job.

pub(super) mod flight_recorder;
pub(super) mod incidents;
mod span_offers;
pub(super) mod work_totals;

use super::groups::group_text;
use super::{Job, LoggedWait};
use crate::observe::status::IncidentKind;
use crate::warn_if_due;
use crate::warnings::WarningCause;
use flight_recorder::FlightSlots;
use hier_collectives::bound::LowerBound;
use hier_collectives::ids::{Epoch, GroupId, RankId, Sequence};
use hier_collectives::post::{Failure, FailureCode, Post};
use hier_collectives::session::{CollectiveStatus, SessionNote};
use std::collections::BTreeSet;
use tracing::{debug, info};
use units::{ByteCount, Span, TimeNs};
use work_totals::WorkTotalsEntry;

/// 10 s: a collective that has waited for posts of ranks for this time gets a log line. Another
/// line follows each time the wait has doubled. The value is chosen.
/// Tested by `cargo xtask faults --scenario rank-late`.
const WAIT_LOGGED_AFTER: Span = Span::from_secs(10);
/// 30 s: once a collective has waited for posts of ranks for this time, its log line is a warning.
/// An operator should look at the late rank then, though it may be alive. A shorter wait, as of
/// trainers that are started one after the other, needs nobody.
/// Tested by `start_orders_within_20_s_raise_no_alarm`.
const WAIT_WARNED_AFTER: Span = Span::from_secs(30);

impl Job {
    /// Logs, counts and records an event that the session noted. `bound` is the lower bound of an
    /// all-reduce, once it is known.
    pub(super) fn report_note(
        &mut self,
        note: SessionNote,
        bound: Option<&LowerBound>,
        now: TimeNs,
    ) {
        self.report_noted_incident(&note, None, now);
        if let Some((sequence, code)) = noted_flight_end(&note) {
            self.flights.record_end(sequence, code, now);
        }
        let rated = self.count_note(&note, bound, now);
        let name = &self.name;
        match note {
            SessionNote::EpochBegan { epoch, algorithm, reason, plan_hash, .. } => {
                self.metrics.epoch.set(i64::try_from(epoch.0).unwrap_or(i64::MAX));
                if let Some(suppressed) = self.epoch_lines.permit(now) {
                    info!(
                        job = %name,
                        epoch = epoch.0,
                        "job {name}: epoch {epoch} began: {algorithm} ({reason}); plan \
                         {plan_hash:016x}{suppressed}"
                    );
                }
            }
            SessionNote::PlanChanged { from, algorithm, reason, plan_hash } => {
                info!(
                    job = %name,
                    collective = from.0,
                    "job {name}: another plan from collective {from} on: {algorithm} ({reason}); \
                     plan {plan_hash:016x}"
                );
            }
            SessionNote::EpochEnded { epoch, failure } => {
                self.report_epoch_end(epoch, &failure, now)
            }
            SessionNote::Completed { sequence, descriptor, timing, .. } => {
                let (op, bytes, took) = (descriptor.name(), descriptor.bytes(), timing.took());
                self.metrics.count_completed(
                    op,
                    bytes,
                    took,
                    rated.map(WorkTotalsEntry::efficiency),
                );
                debug!(
                    job = %name,
                    collective = sequence.0,
                    op,
                    bytes,
                    seconds = took.as_secs_f64(),
                    "job {name}: collective {sequence} completed: {op}, {}",
                    ByteCount::new(bytes).rounded()
                );
            }
            SessionNote::Failed { sequence, descriptor, failure, .. } => {
                let op = descriptor.map(|posted| posted.name());
                self.metrics.count_failed(op, failure.code);
                self.report_collective_failure(sequence, &failure, now);
            }
        }
    }

    /// Adds an event that the session noted to the work done here, and hands it to the straggler
    /// detection. Returns the work of a completed collective, if its bound is known.
    fn count_note(
        &mut self,
        note: &SessionNote,
        bound: Option<&LowerBound>,
        now: TimeNs,
    ) -> Option<WorkTotalsEntry> {
        match note {
            SessionNote::EpochBegan { next, .. } => self.stragglers.handle_epoch(*next),
            SessionNote::Completed { sequence, descriptor, timing, .. } => {
                let (bytes, took) = (descriptor.bytes(), timing.took());
                let rated = WorkTotalsEntry::of_collective(bound, descriptor.pattern, bytes, took);
                self.totals.add_completed(bytes, rated);
                let plan = self.world.session.plan();
                let costly = self.stragglers.handle_completed(*sequence, plan, bytes, now);
                if let Some((straggler, lost)) = costly {
                    self.metrics.add_straggler_loss(&straggler, lost);
                }
                return rated;
            }
            SessionNote::Failed { sequence, .. } => {
                self.totals.add_failed();
                self.stragglers.detection.handle_failure(*sequence);
            }
            SessionNote::PlanChanged { .. } => self.stragglers.handle_plan_changed(),
            SessionNote::EpochEnded { .. } => {}
        }
        None
    }

    /// Logs and counts an event that the session of a group noted.
    pub(super) fn report_group_note(&mut self, id: GroupId, note: SessionNote, now: TimeNs) {
        let membership = self.groups.get(&id).and_then(|group| group.membership.as_ref());
        let Some(text) = membership.map(|membership| group_text(&membership.facts)) else { return };
        self.report_noted_incident(&note, Some(&text), now);
        if let Some((sequence, code)) = noted_flight_end(&note) {
            self.group_flights.record_end(id, sequence, code, now);
        }
        let name = &self.name;
        match note {
            SessionNote::EpochBegan { epoch, .. } => {
                debug!(job = %name, epoch = epoch.0, "job {name}: {text} began epoch {epoch}");
            }
            SessionNote::EpochEnded { epoch, failure } => {
                if let Some(suppressed) = self.epoch_lines.permit(now) {
                    info!(
                        job = %name,
                        epoch = epoch.0,
                        "job {name}: {text}: epoch {epoch} ended: {failure}{suppressed}"
                    );
                }
            }
            SessionNote::PlanChanged { from, .. } => {
                debug!(job = %name, "job {name}: {text}: another plan from collective {from} on");
            }
            SessionNote::Completed { descriptor, timing, .. } => {
                let (op, bytes, took) = (descriptor.name(), descriptor.bytes(), timing.took());
                self.totals.add_completed(bytes, None);
                self.metrics.count_completed(op, bytes, took, None);
            }
            SessionNote::Failed { sequence, descriptor, failure, .. } => {
                let op = descriptor.map(|posted| posted.name());
                self.totals.add_failed();
                self.metrics.count_failed(op, failure.code);
                if let Some(suppressed) = self.failure_lines.permit(now) {
                    info!(
                        job = %name,
                        "job {name}: {text}: collective {sequence} failed: {failure}{suppressed}"
                    );
                }
            }
        }
    }

    /// Records the post of a local rank in a world or a group.
    pub(super) fn record_flight_post(
        &mut self,
        id: GroupId,
        rank: RankId,
        post: &Post,
        slots: FlightSlots,
        now: TimeNs,
    ) {
        if self.is_world(id) {
            return self.flights.record_post(rank, post, slots, now);
        }
        let membership = self.groups.get(&id).and_then(|group| group.membership.as_ref());
        let ranks = || membership.map(|known| known.facts.ranks.clone()).unwrap_or_default();
        self.group_flights.record_post((id, ranks), rank, post, slots, now);
    }

    /// Records a failure or the end of an epoch that a session noted; `group` describes the group's
    /// ranks, unless the session is the job's own.
    fn report_noted_incident(&mut self, note: &SessionNote, group: Option<&str>, now: TimeNs) {
        let (kind, number, failure) = match note {
            SessionNote::Failed { sequence, failure, .. } => {
                (IncidentKind::CollectiveFailed, sequence.0, failure)
            }
            SessionNote::EpochEnded { epoch, failure } => {
                (IncidentKind::EpochEnded, epoch.0, failure)
            }
            _ => return,
        };
        self.incidents.record_incident(kind, group, number, failure, now);
    }

    /// Logs and counts the end of an epoch of the job, for the reason `failure`.
    fn report_epoch_end(&mut self, epoch: Epoch, failure: &Failure, now: TimeNs) {
        self.metrics.count_epoch_end(failure.code);
        let Some(suppressed) = self.epoch_lines.permit(now) else { return };
        let (name, code) = (&self.name, failure.code as u8);
        let subject = format!("{name} {}", failure.code);
        // An operator who ends a gateway needs no warning of it.
        let is_asked_for = failure.code == FailureCode::ShuttingDown;
        warn_if_due!(
            !is_asked_for && self.warnings.is_due(WarningCause::Epoch, &subject, now),
            job = %name,
            epoch = epoch.0,
            code,
            "job {name}: epoch {epoch} ended: {failure}{suppressed}"
        );
    }

    /// Logs that a collective failed and why: as a warning if one is due, and at level debug while
    /// the log throttle suppresses the line.
    fn report_collective_failure(&mut self, sequence: Sequence, failure: &Failure, now: TimeNs) {
        let (name, collective, code) = (&self.name, sequence.0, failure.code as u8);
        let Some(suppressed) = self.failure_lines.permit(now) else {
            debug!(
                job = %name,
                collective,
                code,
                "job {name}: collective {sequence} failed: {failure}"
            );
            return;
        };
        let subject = format!("{name} {}", failure.code);
        warn_if_due!(
            self.warnings.is_due(WarningCause::Collective, &subject, now),
            job = %name,
            collective,
            code,
            "job {name}: collective {sequence} failed: {failure}{suppressed}"
        );
    }

    /// Updates the job's gauges, and logs a costly straggler and a wait that is long.
    pub fn report_gauges(&mut self, now: TimeNs) {
        let status = self.current_world().status();
        if status.plan.is_none() {
            self.metrics.epoch.set(0);
        }
        self.metrics.set_straggler(self.stragglers.log_straggler(&self.name, now).as_ref());
        self.metrics.draining.set(i64::from(status.draining.is_some()));
        self.metrics.waiting_commits.set(i64::try_from(status.commits.len()).unwrap_or(i64::MAX));
        let oldest = status.commits.iter().map(|commit| commit.begun).min();
        let waited = oldest.map_or(0.0, |begun| now.since(begun).as_secs_f64());
        self.metrics.commit_awaited_seconds.set(waited);
        let posting = |c: &&CollectiveStatus| c.state != "failed";
        // Ranks post in order, so a late rank is late for the oldest collective.
        let oldest = status.collectives.iter().filter(posting).find_map(|c| {
            let ranks = awaited_ranks_in_job_report(c);
            (!ranks.is_empty()).then_some((c, ranks))
        });
        let awaited = oldest.as_ref().map(|(_, ranks)| ranks.clone()).unwrap_or_default();
        for rank in self.awaited.difference(&awaited) {
            self.metrics.set_awaited_seconds(*rank, None);
        }
        if let Some((collective, ranks)) = oldest {
            let waited = now.since(collective.begun);
            ranks.iter().for_each(|rank| {
                self.metrics.set_awaited_seconds(*rank, Some(waited.as_secs_f64()))
            });
            self.report_long_wait(collective.sequence, collective.begun, &ranks, now);
        }
        self.awaited = awaited;
    }

    /// Logs that a collective waits for ranks, if the next log line about the wait is due.
    fn report_long_wait(
        &mut self,
        sequence: Sequence,
        begun: TimeNs,
        ranks: &BTreeSet<RankId>,
        now: TimeNs,
    ) {
        let known = self.wait.filter(|wait| wait.sequence == sequence);
        let due = known.map_or(begun + WAIT_LOGGED_AFTER, |wait| wait.due);
        self.wait = Some(LoggedWait { sequence, due });
        if now >= due {
            let waited = now.since(begun);
            self.wait = Some(LoggedWait { sequence, due: now + waited });
            let ranks: Vec<String> = ranks.iter().map(RankId::to_string).collect();
            let (name, ranks) = (&self.name, ranks.join(", "));
            let line =
                format!("collective {sequence} has awaited ranks {ranks} for {}", waited.rounded());
            let is_long = waited >= WAIT_WARNED_AFTER;
            let subject = format!("{name} {ranks}");
            warn_if_due!(
                is_long && self.warnings.is_due(WarningCause::Wait, &subject, now),
                job = %name,
                collective = sequence.0,
                ranks = %ranks,
                "job {name}: {line}; look at the trainers of these ranks"
            );
        }
    }
}

/// Returns the collective whose end a session noted, and the code of its failure; `None` for other notes.
fn noted_flight_end(note: &SessionNote) -> Option<(Sequence, Option<FailureCode>)> {
    match note {
        SessionNote::Completed { sequence, .. } => Some((*sequence, None)),
        SessionNote::Failed { sequence, failure, .. } => Some((*sequence, Some(failure.code))),
        _ => None,
    }
}

/// Returns the ranks that a collective waits for, as far as this gateway knows.
pub(crate) fn awaited_ranks_in_job_report(collective: &CollectiveStatus) -> BTreeSet<RankId> {
    collective.awaited_local_ranks.iter().chain(&collective.awaited_remote_ranks).copied().collect()
}
