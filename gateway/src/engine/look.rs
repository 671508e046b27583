//! What the engine shows of itself.

use super::Engine;
use crate::observe::status::{
    CollectiveState, CollectiveStatus, LinkStatus, PeerState, PeerStatus, PlanStatus, RankStatus,
    Status,
};
use hier_collectives::ids::RegionId;
use hier_collectives::plan;
use hier_collectives::session::{self, SessionStatus};
use hier_collectives::topology::{Fabric, Link};

impl Engine {
    pub(super) fn look(&self) -> Status {
        let seen = self.session.status();
        let me = self.fabric.gateway(self.me);
        Status {
            gateway: me.name.clone(),
            fabric: self.fabric.name().to_owned(),
            epoch: seen.plan.is_some().then_some(seen.epoch.0),
            plan: seen.plan.as_ref().map(|plan| PlanStatus {
                algorithm: plan.algorithm.name().to_owned(),
                reason: plan.reason.clone(),
                hash: format!("{:016x}", plan.hash()),
            }),
            peers: seen.peers.iter().map(|peer| self.peer(peer)).collect(),
            links: links_of(&self.fabric, me.region),
            ranks: seen
                .ranks
                .iter()
                .map(|(rank, attached)| RankStatus { rank: rank.0, attached: *attached })
                .collect(),
            collectives: self.collectives(&seen),
        }
    }

    fn peer(&self, seen: &session::PeerStatus) -> PeerStatus {
        let lanes = plan::lanes(&self.fabric);
        let view = self.peers.look(seen.gateway);
        let state = match (view.lanes_up, seen.ready) {
            (0, _) => PeerState::Connecting,
            (_, false) => PeerState::Meeting,
            (up, true) if up == lanes => PeerState::Up,
            (_, true) => PeerState::Degraded,
        };
        PeerStatus {
            gateway: self.fabric.gateway(seen.gateway).name.clone(),
            state,
            lanes_up: view.lanes_up,
            lanes,
            rtt_ms: view.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            sent_bytes: view.sent_bytes,
            received_bytes: view.received_bytes,
            problem: view.trouble,
        }
    }

    fn collectives(&self, seen: &SessionStatus) -> Vec<CollectiveStatus> {
        let status = |c: &session::CollectiveStatus| {
            let descriptor = c.descriptor?;
            let remote = c.awaited_gateways.iter();
            let remote = remote.flat_map(|id| self.fabric.gateway(*id).ranks.clone());
            let mut awaited: Vec<u32> = c.awaited_ranks.iter().map(|rank| rank.0).collect();
            awaited.extend(remote);
            awaited.sort_unstable();
            let state = match c.state {
                "running" if awaited.is_empty() => CollectiveState::Running,
                "ready" => CollectiveState::Settling,
                _ => CollectiveState::Awaiting,
            };
            if state == CollectiveState::Settling {
                awaited.clear();
            }
            Some(CollectiveStatus {
                sequence: c.sequence.0,
                op: descriptor.op.to_string(),
                dtype: descriptor.dtype.to_string(),
                bytes: descriptor.bytes(),
                state,
                awaited,
                seconds: self.host.now().since(c.begun).as_secs_f64(),
            })
        };
        seen.collectives.iter().filter(|c| c.state != "failed").filter_map(status).collect()
    }
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
