//! What the engine shows of itself.

use super::Engine;
use super::group::Group;
use crate::observe::status::{
    CollectiveState, CollectiveStatus, JobStatus, LinkStatus, PeerState, PeerStatus, PlanStatus,
    RankStatus, Status,
};
use hier_collectives::ids::{GatewayId, RankId, RegionId};
use hier_collectives::plan;
use hier_collectives::session::{self, SessionStatus};
use hier_collectives::topology::{Fabric, Link};
use std::collections::{BTreeMap, BTreeSet};
use units::TimeNs;

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
        Status {
            gateway: me.name.clone(),
            fabric: self.fabric.name().to_owned(),
            peers: peers.map(|id| self.peer(id, ready(id))).collect(),
            links: links_of(&self.fabric, me.region),
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
            problem: view.trouble,
        }
    }

    fn job(&self, group: &Group, seen: &SessionStatus) -> JobStatus {
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
            collectives: shown.filter_map(|c| collective(&self.fabric, c, now)).collect(),
        }
    }
}

fn collective(
    fabric: &Fabric,
    seen: &session::CollectiveStatus,
    now: TimeNs,
) -> Option<CollectiveStatus> {
    let descriptor = seen.descriptor?;
    let mut awaited: Vec<u32> = awaited(fabric, seen).iter().map(|rank| rank.0).collect();
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

/// Ranks that a collective waits for, as far as is known here: of another region, all ranks
/// of a gateway that has not said that its ranks have posted.
pub(super) fn awaited(fabric: &Fabric, seen: &session::CollectiveStatus) -> BTreeSet<RankId> {
    let remote = seen.awaited_gateways.iter();
    let remote = remote.flat_map(|id| fabric.gateway(*id).ranks.clone().map(RankId));
    seen.awaited_ranks.iter().copied().chain(remote).collect()
}

fn links_of(fabric: &Fabric, region: RegionId) -> Vec<LinkStatus> {
    let ours = fabric.links().iter().filter(|link| link.a == region || link.b == region);
    let status = |link: &Link| LinkStatus {
        between: [fabric.region(link.a).name.clone(), fabric.region(link.b).name.clone()],
        rate_bits_per_second: link.rate.bits_per_second(),
        rtt_ms: link.rtt.as_secs_f64() * 1000.0,
        loss: link.loss.as_f64(),
    };
    ours.map(status).collect()
}
