//! What the engine shows of itself.

use super::Engine;
use super::job::Job;
use crate::observe::status::{
    CollectiveState, CollectiveStatus, CommitStatus, DrainStatus, JobStatus, LinkStatus, PeerState,
    PeerStatus, PlanStatus, RankStatus, Status,
};
use crate::wan::link::capacity::LinkCapacity;
use hier_collectives::ids::{GatewayId, RankId, RegionId};
use hier_collectives::plan;
use hier_collectives::session::{self, SessionStatus};
use hier_collectives::topology::Link;
use std::collections::{BTreeMap, BTreeSet};
use units::{BitRate, TimeNs};

impl Engine {
    pub(super) fn look(&self) -> Status {
        let me = self.fabric.gateway(self.me);
        let seen: Vec<_> = self.groups.values().map(|group| group.session.status()).collect();
        let ready = |id| {
            let in_all = |s: &SessionStatus| s.peers.iter().any(|p| p.gateway == id && p.ready);
            seen.iter().all(in_all)
        };
        let peers = self.shared.peers.ids();
        let mut jobs: Vec<JobStatus> =
            self.groups.values().zip(&seen).map(|(group, seen)| self.job(group, seen)).collect();
        jobs.sort_by(|a, b| a.job.cmp(&b.job));
        let ours = self.fabric.links().iter();
        let ours = ours.filter(|link| link.a == me.region || link.b == me.region);
        Status {
            gateway: me.name.clone(),
            fabric: self.fabric.name().to_owned(),
            peers: peers.map(|id| self.peer(id, ready(id))).collect(),
            links: ours.map(|link| self.link(link)).collect(),
            jobs,
        }
    }

    fn peer(&self, id: GatewayId, ready: bool) -> PeerStatus {
        let lanes = plan::lanes(&self.fabric);
        let view = self.shared.peers.look(id);
        let state = match (view.lanes_up, ready) {
            (0, _) => PeerState::Connecting,
            (_, false) => PeerState::Meeting,
            (up, true) if up == lanes => PeerState::Up,
            (_, true) => PeerState::Degraded,
        };
        PeerStatus {
            gateway: self.fabric.gateway(id).name.clone(),
            state,
            lanes_up: view.lanes_up,
            lanes,
            rtt_ms: view.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            sent_bytes: view.sent_bytes,
            received_bytes: view.received_bytes,
            lost_packets: view.lost_packets,
            loss: view.loss,
            loss_alarm: view.loss_alarm,
            problem: view.trouble,
        }
    }

    pub(super) fn link(&self, link: &Link) -> LinkStatus {
        let held = self.links.limit((link.a, link.b), self.shared.host.unix_seconds());
        let here = self.fabric.gateway(self.me).region;
        let there = if link.a == here { link.b } else { link.a };
        let measured = self.shared.peers.estimates(there).filter_map(LinkCapacity::reduced).min();
        let effective = held.as_ref().map_or(link.rate, |held| held.effective);
        let effective = measured.map_or(effective, |measured| measured.min(effective));
        let scheduled = held.as_ref().and_then(|held| held.scheduled);
        let operator = held.and_then(|held| held.operator);
        LinkStatus {
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

    fn job(&self, group: &Job, seen: &SessionStatus) -> JobStatus {
        let now = self.shared.host.now();
        let shown = seen.collectives.iter().filter(|c| c.state != "failed");
        let speeds: BTreeMap<RankId, f64> = group.watch.pace.speeds().collect();
        let rank = |(rank, attached): &(RankId, bool)| RankStatus {
            rank: rank.0,
            attached: *attached,
            samples_per_second: speeds.get(rank).copied(),
        };
        JobStatus {
            job: group.name.clone(),
            epoch: seen.plan.is_some().then_some(seen.epoch.0),
            plan: seen.plan.as_ref().map(|plan| PlanStatus {
                algorithm: plan.algorithm.name().to_owned(),
                reason: plan.reason.clone(),
                hash: format!("{:016x}", plan.hash()),
            }),
            ranks: seen.ranks.iter().map(rank).collect(),
            straggler: group.watch.pace.straggler().map(|seen| group.watch.status(seen)),
            collectives: shown.filter_map(|c| collective(c, now)).collect(),
            commits: seen.commits.iter().map(|commit| self.commit(commit, now)).collect(),
            draining: seen.draining.as_ref().map(|drain| draining(drain, now)),
        }
    }

    fn commit(&self, seen: &session::CommitStatus, now: TimeNs) -> CommitStatus {
        let region = |id: &GatewayId| self.fabric.gateway(*id).region;
        let regions: BTreeSet<RegionId> = seen.awaited_gateways.iter().map(region).collect();
        CommitStatus {
            rank: seen.rank.0,
            step: seen.step.0,
            awaited: regions.into_iter().map(|id| self.fabric.region(id).name.clone()).collect(),
            seconds: now.since(seen.begun).as_secs_f64(),
        }
    }
}

fn draining(seen: &session::DrainStatus, now: TimeNs) -> DrainStatus {
    DrainStatus {
        seconds_left: seen.until.since(now).as_secs_f64(),
        collectives: seen.collectives.iter().map(|sequence| sequence.0).collect(),
        uncommitted: seen.uncommitted.iter().map(|rank| rank.0).collect(),
    }
}

fn collective(seen: &session::CollectiveStatus, now: TimeNs) -> Option<CollectiveStatus> {
    let descriptor = seen.descriptor?;
    let mut awaited: Vec<u32> = awaited(seen).iter().map(|rank| rank.0).collect();
    let state = match seen.state {
        "running" if awaited.is_empty() => CollectiveState::Running,
        "ready" => CollectiveState::Settling,
        _ => CollectiveState::Awaiting,
    };
    if state == CollectiveState::Settling {
        awaited.clear();
    }
    Some(CollectiveStatus {
        sequence: seen.sequence.0,
        op: descriptor.name().to_owned(),
        dtype: descriptor.dtype.to_string(),
        bytes: descriptor.bytes(),
        state,
        awaited,
        seconds: now.since(seen.begun).as_secs_f64(),
    })
}

/// Ranks that a collective waits for, as far as is known here.
pub(super) fn awaited(seen: &session::CollectiveStatus) -> BTreeSet<RankId> {
    seen.awaited_ranks.iter().chain(&seen.awaited_elsewhere).copied().collect()
}
