//! What the session is doing and whom it waits for.

use super::collective::{Collective, Phase};
use super::*;

/// A snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStatus {
    /// The last epoch this gateway was in.
    pub epoch: Epoch,
    /// The plan, while the epoch lives.
    pub plan: Option<Plan>,
    /// Every other gateway.
    pub peers: Vec<PeerStatus>,
    /// Local ranks, and whether each is attached.
    pub ranks: Vec<(RankId, bool)>,
    /// Collectives under way, oldest first.
    pub collectives: Vec<CollectiveStatus>,
    /// Commits that wait.
    pub commits: Vec<CommitStatus>,
    /// Set while this gateway shuts down in order.
    pub draining: Option<DrainStatus>,
}

/// What a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainStatus {
    /// When it ends at the latest.
    pub until: TimeNs,
    /// Collectives that are to be finished.
    pub collectives: Vec<Sequence>,
    /// Ranks that commit their steps and have not committed the last one.
    pub uncommitted: Vec<RankId>,
}

/// A peer, as the session sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which.
    pub gateway: GatewayId,
    /// Whether some lane to it is up.
    pub up: bool,
    /// Whether it is in our epoch.
    pub ready: bool,
}

/// A collective under way.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveStatus {
    /// Its number.
    pub sequence: Sequence,
    /// Its shape, once somebody posted it.
    pub descriptor: Option<Descriptor>,
    /// `waiting`, `running`, `ready` or `failed`.
    pub state: &'static str,
    /// Local ranks that have not posted.
    pub awaited_ranks: Vec<RankId>,
    /// Gateways some of whose ranks have not posted, as far as is known.
    pub awaited_gateways: Vec<GatewayId>,
    /// Their ranks that are not known to have posted.
    pub awaited_elsewhere: Vec<RankId>,
    /// The first post here, or the first that a peer told of: since then the rest is awaited.
    pub begun: TimeNs,
}

/// A commit that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// Whose.
    pub rank: RankId,
    /// The step.
    pub step: Step,
    /// Gateways that have not said that they have the step's collectives.
    pub awaited_gateways: Vec<GatewayId>,
    /// When the rank asked: since then they are awaited.
    pub begun: TimeNs,
}

impl Session {
    /// A snapshot for people.
    pub fn status(&self) -> SessionStatus {
        let peer = |(id, peer): (&GatewayId, &Peer)| PeerStatus {
            gateway: *id,
            up: peer.up,
            ready: self.active.is_some() && peer.ready == self.epoch,
        };
        let collective = |(sequence, c): (&Sequence, &Collective)| CollectiveStatus {
            sequence: *sequence,
            descriptor: c.descriptor.map(|(_, descriptor)| descriptor),
            state: match c.phase {
                Phase::Waiting => "waiting",
                Phase::Running => "running",
                Phase::Ready | Phase::Leaving => "ready",
                Phase::Failing | Phase::Failed => "failed",
            },
            awaited_ranks: self.awaited_ranks(c),
            awaited_gateways: self.awaited_gateways(c),
            awaited_elsewhere: self.awaited_elsewhere(c),
            begun: c.begun.unwrap_or_default(),
        };
        SessionStatus {
            epoch: self.epoch,
            plan: self.active.as_ref().map(|active| active.plan.clone()),
            peers: self.peers.iter().map(peer).collect(),
            ranks: self.ranks.iter().map(|(rank, local)| (*rank, local.attached)).collect(),
            collectives: self.live.iter().map(collective).collect(),
            commits: self.commits(),
            draining: self.drain_status(),
        }
    }

    fn commits(&self) -> Vec<CommitStatus> {
        let of_rank = |(rank, local): (&RankId, &LocalRank)| {
            let rank = *rank;
            let pending = local.commits.iter().map(move |pending| CommitStatus {
                rank,
                step: pending.step,
                awaited_gateways: self.uncommitted(&pending.range),
                begun: pending.begun,
            });
            pending.collect::<Vec<_>>()
        };
        self.ranks.iter().flat_map(of_rank).collect()
    }

    pub(super) fn awaited_ranks(&self, collective: &Collective) -> Vec<RankId> {
        let missing = self.ranks.keys().filter(|rank| !collective.posts.contains_key(rank));
        missing.copied().collect()
    }

    pub(super) fn awaited_elsewhere(&self, collective: &Collective) -> Vec<RankId> {
        let gateways = self.awaited_gateways(collective).into_iter();
        let ranks =
            gateways.flat_map(|id| self.config.fabric.gateway(id).ranks.clone()).map(RankId);
        ranks.filter(|rank| !collective.announced.contains(rank)).collect()
    }

    pub(super) fn awaited_gateways(&self, collective: &Collective) -> Vec<GatewayId> {
        let has_ranks = |peer: &GatewayId| !self.config.fabric.gateway(*peer).ranks.is_empty();
        let peers =
            self.peers.keys().filter(|peer| has_ranks(peer) && !collective.posted.contains(*peer));
        peers.copied().collect()
    }
}
