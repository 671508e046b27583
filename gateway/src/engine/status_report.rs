//! The engine's status, for the status server and `landbridge status`.

use super::engine_task::Engine;
use super::job::Job;
use super::job::group_session::GroupSession;
use super::job::report::awaited_ranks_in_job_report;
use crate::observe::engine_status_request::StatusRequest;
use crate::observe::fabric_report::FabricReport;
use crate::observe::membership_report::MembershipReport;
use crate::observe::readiness::judge_readiness;
use crate::observe::status::{
    CollectiveReport, CollectiveState, CommitReport, DrainReport, DumpReport, EpochPlanReport,
    FlightReport, GatewayReport, JobFlightsReport, JobReport, LinkReport, MissingBytesReport,
    PeerReport, PeerState, RankReport,
};
use crate::wan::link::capacity::LinkCapacity;
use hier_collectives::ids::{GatewayId, RankId, RegionId, Sequence};
use hier_collectives::session::{self, SessionStatus};
use hier_collectives::topology::Link;
use std::collections::{BTreeMap, BTreeSet};
use units::{BitRate, Span, TimeNs};

impl Engine {
    /// Answers a request of the status server. Whoever asked may have given up.
    pub(super) fn answer_status_request(&self, request: StatusRequest) {
        match request {
            StatusRequest::Fabric(reply) => {
                drop(reply.send(FabricReport::new(&self.fabric, self.me)))
            }
            StatusRequest::Status(reply) => drop(reply.send(self.gateway_status_report())),
            StatusRequest::Dump(reply) => {
                let mut flights: Vec<JobFlightsReport> =
                    self.jobs.values().map(|job| self.job_flights_report(job)).collect();
                flights.sort_by(|a, b| a.job.cmp(&b.job));
                let status = self.gateway_status_report();
                drop(reply.send(DumpReport { status, flights }));
            }
        }
    }

    /// Returns the last collectives of a job, with the bytes that those under way miss.
    fn job_flights_report(&self, job: &Job) -> JobFlightsReport {
        let now = self.shared.host.now();
        let mut collectives = job.flights.report(now);
        self.add_missing_bytes_to_status(&mut collectives, job.current_world());
        let of_groups = job.group_flights.report(now).into_iter().map(|(id, mut flights)| {
            if let Some(group) = job.known_group(id) {
                self.add_missing_bytes_to_status(&mut flights.collectives, group);
            }
            flights
        });
        JobFlightsReport { job: job.name.clone(), collectives, groups: of_groups.collect() }
    }

    /// Adds to the collectives of a group that are under way the bytes that they miss.
    fn add_missing_bytes_to_status(&self, collectives: &mut [FlightReport], group: &GroupSession) {
        for flight in collectives.iter_mut().filter(|flight| flight.end.is_none()) {
            let missing = group.missing_bytes(Sequence(flight.sequence));
            let of_peer = missing.into_iter().map(|missing| MissingBytesReport {
                gateway: self.fabric.gateway(missing.gateway).name.clone(),
                awaited_bytes: missing.awaited,
                unreceipted_bytes: missing.unreceipted,
            });
            flight.missing = of_peer.collect();
        }
    }

    /// Returns the status of the gateway at this moment, with all peers, links and jobs.
    pub(super) fn gateway_status_report(&self) -> GatewayReport {
        let me = self.fabric.gateway(self.me);
        let sessions: Vec<_> = self.jobs.values().map(|job| job.current_world().status()).collect();
        let ready = |id| {
            if self.fabric.witness() == Some(id) {
                // It is in no epoch.
                return true;
            }
            let in_all = |s: &SessionStatus| s.peers.iter().any(|p| p.gateway == id && p.ready);
            let mut served = self.jobs.values().zip(&sessions).filter(|(job, _)| !job.removed);
            served.all(|(_, status)| in_all(status))
        };
        let peers = self.shared.peers.peer_ids();
        let mut jobs: Vec<JobReport> = self
            .jobs
            .values()
            .zip(&sessions)
            .map(|(job, status)| self.job_status_report(job, status))
            .collect();
        jobs.sort_by(|a, b| a.job.cmp(&b.job));
        let ours = self.fabric.links().iter();
        let ours = ours.filter(|link| link.a == me.region || link.b == me.region);
        let mut report = GatewayReport {
            gateway: me.name.clone(),
            region: self.fabric.region(me.region).name.clone(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.shared.host.now().since(self.started).as_secs_f64(),
            fabric: self.fabric.name().to_owned(),
            fabric_identity: self.identity.iter().map(|byte| format!("{byte:02x}")).collect(),
            problems: Vec::new(),
            attach: None,
            peers: peers.map(|id| self.peer_status_report(id, ready(id))).collect(),
            links: ours.map(|link| self.link_status_report(link)).collect(),
            links_down: self.outages.reports(
                &self.fabric,
                self.shared.peers.connection_graph(),
                self.shared.host.now(),
            ),
            membership: Some(self.membership_report()),
            fabric_version: self.fabric_version_report(),
            jobs,
            job_differences: self.job_differences(),
            lost_log_lines: self.metrics.lost_log_lines.get(),
            socket_problem: None,
            processor_problem: None,
            restart_needed: self.restart_needed.clone(),
            file_faults: self.file_faults.values().flatten().cloned().collect(),
        };
        report.problems = judge_readiness(&report);
        report
    }

    /// Returns who goes on together, as this gateway sees it.
    pub(super) fn membership_report(&self) -> MembershipReport {
        if let Some(witness) = &self.witness {
            let region = self.fabric.gateway(self.me).region;
            return MembershipReport::of_witness(&self.fabric, region, witness);
        }
        let peers = &self.shared.peers;
        let is_reached = |id| id == self.me || peers.has_connection_route(id);
        MembershipReport::of_member(&self.fabric, self.terms.as_ref(), is_reached)
    }

    /// Returns the state of a peer and its lanes; `ready` says whether all jobs that are served
    /// here have the peer in their epoch.
    fn peer_status_report(&self, id: GatewayId, ready: bool) -> PeerReport {
        let view = self.shared.peers.peer_view(id);
        let state = match (view.lanes_up, ready) {
            (0, _) => PeerState::Connecting,
            (_, false) => PeerState::Meeting,
            (up, true) if up == view.lanes => PeerState::Up,
            (_, true) => PeerState::Degraded,
        };
        let gateway = self.fabric.gateway(id);
        PeerReport {
            gateway: gateway.name.clone(),
            region: self.fabric.region(gateway.region).name.clone(),
            state,
            wire_version: view.version.map(|version| version.0),
            lanes_up: view.lanes_up,
            lanes: view.lanes,
            lanes_most: view.lanes_most,
            lanes_reason: view.lanes_reason.to_owned(),
            rtt_ms: view.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            sent_bytes: view.sent_bytes,
            received_bytes: view.received_bytes,
            lost_packets: view.lost_packets,
            loss: view.loss,
            loss_alarm: view.loss_alarm,
            long_rtt_seconds: view.long_rtt.map(Span::as_secs_f64),
            silent_seconds: view.silence.as_secs_f64(),
            problem: view.problem,
            remedy: view.remedy,
            silent_ports: view.silent_ports,
            path_mtu: view.path_mtu,
            mtu: view.mtu,
            shared: view.shared,
        }
    }

    /// Returns a link of this region as configured, limited and measured.
    pub(super) fn link_status_report(&self, link: &Link) -> LinkReport {
        let limits = self.links.effective_limit((link.a, link.b), self.shared.host.unix_seconds());
        let here = self.fabric.gateway(self.me).region;
        let there = if link.a == here { link.b } else { link.a };
        let measured = self
            .shared
            .peers
            .traffic_link_capacities(there)
            .filter_map(LinkCapacity::reduced_rate)
            .min();
        let effective = limits.as_ref().map_or(link.rate, |limits| limits.effective);
        let effective = measured.map_or(effective, |measured| measured.min(effective));
        let scheduled = limits.as_ref().and_then(|limits| limits.scheduled);
        let operator = limits.and_then(|limits| limits.operator);
        LinkReport {
            between: [link.a, link.b].map(|region| self.fabric.region(region).name.clone()),
            rate_bits_per_second: link.rate.bits_per_second(),
            scheduled_bits_per_second: scheduled.map(BitRate::bits_per_second),
            operator_bits_per_second: operator.map(|(rate, _)| rate.bits_per_second()),
            operator_gateway: operator.map(|(_, at)| self.fabric.gateway(at).name.clone()),
            measured_bits_per_second: measured.map(BitRate::bits_per_second),
            effective_bits_per_second: effective.bits_per_second(),
            rtt_ms: link.rtt.as_secs_f64() * 1000.0,
            loss: link.loss.as_f64(),
        }
    }

    /// Returns the state of a job: epoch, plan, ranks, collectives and commits.
    fn job_status_report(&self, job: &Job, session: &SessionStatus) -> JobReport {
        let now = self.shared.host.now();
        let shown = session.collectives.iter().filter(|c| c.state != "failed");
        let speeds: BTreeMap<RankId, f64> = job.stragglers.detection.speeds().collect();
        let rank = |(rank, attached): &(RankId, bool)| RankReport {
            rank: rank.0,
            attached: *attached,
            samples_per_second: speeds.get(rank).copied(),
        };
        JobReport {
            job: job.name.clone(),
            epoch: session.plan.is_some().then_some(session.epoch.0),
            plan: session.plan.as_ref().map(|plan| EpochPlanReport {
                algorithm: plan.algorithm.name().to_owned(),
                reason: plan.reason.clone(),
                hash: format!("{:016x}", plan.encoding_hash()),
            }),
            ranks: session.ranks.iter().map(rank).collect(),
            straggler: job.stragglers.current_straggler(now),
            completed_seconds_ago: job.stragglers.seconds_since_completed(now),
            totals: job.totals.report(),
            incidents: job.incidents.report(now),
            groups: job.group_count() as u64,
            collectives: shown.filter_map(|c| collective_status_report(c, now)).collect(),
            commits: session
                .commits
                .iter()
                .map(|commit| self.commit_status_report(commit, now))
                .collect(),
            removed: job.removed,
            draining: session.draining.as_ref().map(|drain| drain_status_report(drain, now)),
        }
    }

    /// Returns the status of a commit that has no answer yet.
    fn commit_status_report(&self, commit: &session::CommitStatus, now: TimeNs) -> CommitReport {
        let region = |id: &GatewayId| self.fabric.gateway(*id).region;
        let regions: BTreeSet<RegionId> = commit.awaited_gateways.iter().map(region).collect();
        CommitReport {
            rank: commit.rank.0,
            step: commit.step.0,
            awaited: regions.into_iter().map(|id| self.fabric.region(id).name.clone()).collect(),
            seconds: now.since(commit.begun).as_secs_f64(),
        }
    }
}

/// Reports a session's drain for the status: what the gateway still finishes, and the time left.
fn drain_status_report(drain: &session::DrainStatus, now: TimeNs) -> DrainReport {
    DrainReport {
        seconds_left: drain.until.since(now).as_secs_f64(),
        collectives: drain.collectives.iter().map(|sequence| sequence.0).collect(),
        uncommitted: drain.uncommitted.iter().map(|rank| rank.0).collect(),
    }
}

/// Returns the state of a collective under way; `None` while its operation is unknown.
fn collective_status_report(
    collective: &session::CollectiveStatus,
    now: TimeNs,
) -> Option<CollectiveReport> {
    let descriptor = collective.descriptor?;
    let mut awaited: Vec<u32> =
        awaited_ranks_in_job_report(collective).iter().map(|rank| rank.0).collect();
    let state = match collective.state {
        "running" if awaited.is_empty() => CollectiveState::Running,
        "ready" => CollectiveState::Settling,
        _ => CollectiveState::Awaiting,
    };
    if state == CollectiveState::Settling {
        awaited.clear();
    }
    Some(CollectiveReport {
        sequence: collective.sequence.0,
        op: descriptor.name().to_owned(),
        dtype: descriptor.dtype.to_string(),
        bytes: descriptor.bytes(),
        state,
        awaited,
        seconds: now.since(collective.begun).as_secs_f64(),
    })
}
