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
    /// When the first local rank posted.
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
                Phase::Ready => "ready",
                Phase::Failing | Phase::Failed => "failed",
            },
            awaited_ranks: self.awaited_ranks(c),
            awaited_gateways: self.awaited_gateways(c),
            begun: c.begun,
        };
        SessionStatus {
            epoch: self.epoch,
            plan: self.active.as_ref().map(|active| active.plan.clone()),
            peers: self.peers.iter().map(peer).collect(),
            ranks: self.ranks.iter().map(|(rank, local)| (*rank, local.attached)).collect(),
            collectives: self.live.iter().map(collective).collect(),
        }
    }

    fn awaited_ranks(&self, collective: &Collective) -> Vec<RankId> {
        let missing = self.ranks.keys().filter(|rank| !collective.posts.contains_key(rank));
        missing.copied().collect()
    }

    /// Peers grant once all their ranks have posted, so a peer without a grant is awaited.
    fn awaited_gateways(&self, collective: &Collective) -> Vec<GatewayId> {
        let peers = self.peers.keys().filter(|peer| {
            let granted = collective.grants.keys().any(|(from, _)| from == *peer);
            let owes = collective.parts.is_empty()
                || collective.parts.iter().any(|part| part.out.contains_key(peer));
            owes && !granted
        });
        peers.copied().collect()
    }

    pub(super) fn everybody_posted(&self, collective: &Collective) -> bool {
        collective.posts.len() == self.ranks.len() && self.awaited_gateways(collective).is_empty()
    }

    /// How long nothing may move once everybody has posted: 10 RTT and 20 segments at the
    /// slowest link's rate, at least 5 s.
    pub(super) fn stall_span(&self) -> Span {
        let segment = self.active.as_ref().map_or(0, |active| active.plan.segment.get());
        let links = self.config.fabric.links().iter();
        let spans = links.map(|link| {
            let bits = u128::from(segment) * 8 * 20 * 1_000_000_000;
            let twenty = bits / u128::from(link.rate.bits_per_second().max(1));
            10 * link.rtt.ns() + u64::try_from(twenty).unwrap_or(u64::MAX / 2)
        });
        Span::from_ns(spans.max().unwrap_or(0)).max(Span::from_secs(5))
    }

    pub(super) fn stall_failure(&self, sequence: Sequence, collective: &Collective) -> Failure {
        let done: u32 = collective.parts.iter().map(|part| part.result_prefix).sum();
        let all: u32 = collective.parts.iter().map(|part| part.count()).sum();
        let text = format!(
            "collective {sequence}: everybody posted, but nothing moved for {} \
             ({done} of {all} segments done); contributions intact, see the link",
            self.stall_span()
        );
        Failure::new(FailureCode::Stalled, text)
    }

    pub(super) fn expiry_failure(&self, sequence: Sequence, collective: &Collective) -> Failure {
        let ranks = self.awaited_ranks(collective);
        let mut names: Vec<String> = ranks.iter().map(|rank| self.rank_name(*rank)).collect();
        for gateway in self.awaited_gateways(collective) {
            names.push(format!("ranks of gateway {}", self.gateway_name(gateway)));
        }
        let text = format!(
            "collective {sequence}: the timeout passed waiting for {}; contributions intact",
            names.join(", ")
        );
        Failure::new(FailureCode::TimedOut, text)
    }
}
