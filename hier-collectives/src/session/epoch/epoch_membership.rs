//! The gateways of the fabric: which can be reached, which are in the epoch, which ask to enter.

use crate::ids::{BootId, Epoch, GatewayId, Sequence};
use crate::mesh::{GatewayPair, MeshConnectionState, MeshGraph, Routes};
use crate::plan::Plan;
use crate::post::{Committed, PreparedSteps};
use crate::topology::{Fabric, LinkState};
use std::collections::{BTreeMap, BTreeSet};

/// Gateway 0, the first by name: it alone begins epochs, makes plans and decides on the failures
/// that other gateways propose.
pub(in crate::session) const FIRST_GATEWAY: GatewayId = GatewayId(0);

/// A member's request to enter the next epoch.
#[derive(Debug, Clone)]
pub(in crate::session) struct JoinRequest {
    pub boot: BootId,
    /// The last epoch that the member was in.
    pub last: Epoch,
    /// One past the highest sequence that the member knows of.
    pub next: Sequence,
    pub committed: Option<Committed>,
    pub prepared: PreparedSteps,
}

/// The first gateway's message that an epoch begins.
#[derive(Debug)]
pub(in crate::session) struct EpochStart {
    pub epoch: Epoch,
    /// The number of the first collective.
    pub next: Sequence,
    /// The boot id of every gateway, by number.
    pub boots: Vec<BootId>,
    pub plan: Plan,
    pub committed: Option<Committed>,
}

/// All other gateways, the connections between all gateways, and the routes over them.
#[derive(Debug)]
pub(in crate::session) struct EpochMembership {
    me: GatewayId,
    /// The number of each member in the graph of all gateways, ascending.
    numbers: Vec<GatewayId>,
    /// The connections between members.
    graph: MeshGraph,
    /// The routes to all gateways, by their numbers in the graph of all.
    routes: Routes,
    peers: BTreeMap<GatewayId, Peer>,
}

/// The loss of members by a change of connections, and the peers to which it matters.
#[derive(Debug, Default)]
pub(in crate::session) struct RouteChange {
    /// Peers that cannot be reached any more.
    pub lost: Vec<GatewayId>,
    /// Peers that can be reached, and whose messages from this gateway may be lost: other gateways
    /// pass them on, or did so until now.
    pub rerouted: Vec<GatewayId>,
    /// Connections that were up, and are not any more.
    pub cut: BTreeSet<GatewayPair>,
}

#[derive(Debug, Default)]
struct Peer {
    /// The last epoch for which the peer sent Ready.
    ready: Epoch,
    /// The link to the peer by the peer's own fabric file, from its last Ready.
    link: Option<LinkState>,
    /// The peer's request to enter the next epoch; the first gateway alone keeps it.
    joined: Option<JoinRequest>,
}

impl EpochMembership {
    /// Creates the members of a fabric, none of which gateway `me` can reach yet. `numbers` are
    /// their numbers in the graph of all gateways.
    pub fn new(fabric: &Fabric, me: GatewayId, numbers: Vec<GatewayId>) -> Self {
        let others = fabric.gateway_ids().filter(|id| *id != me);
        let peers = others.map(|id| (id, Peer::default())).collect();
        let graph = MeshGraph::uniform(fabric, MeshConnectionState::Awaited);
        Self { me, numbers, graph, routes: Routes::none(), peers }
    }

    /// Returns the connections between all members.
    pub fn graph(&self) -> &MeshGraph {
        &self.graph
    }

    /// Iterates over all other gateways, reachable or not.
    pub fn peer_ids(&self) -> impl Iterator<Item = GatewayId> {
        self.peers.keys().copied()
    }

    /// Returns the number of other gateways.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Whether a gateway is another member of the fabric.
    pub fn contains(&self, peer: GatewayId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Whether a peer can be reached.
    pub fn is_up(&self, peer: GatewayId) -> bool {
        self.routes.reaches(self.number(peer))
    }

    /// Whether all peers can be reached.
    pub fn all_up(&self) -> bool {
        self.peer_ids().all(|id| self.is_up(id))
    }

    /// Iterates over the peers that can be reached.
    pub fn reachable_peers(&self) -> impl Iterator<Item = GatewayId> {
        self.peer_ids().filter(|id| self.is_up(*id))
    }

    /// Iterates over the peers that cannot be reached.
    pub fn missing_peers(&self) -> impl Iterator<Item = GatewayId> {
        self.peer_ids().filter(|id| !self.is_up(*id))
    }

    /// Iterates over the peers that can be reached and sent Ready for an epoch.
    pub fn peers_ready_for(&self, epoch: Epoch) -> impl Iterator<Item = GatewayId> {
        self.reachable_peers().filter(move |id| self.sent_ready(*id, epoch))
    }

    /// Whether a peer's last Ready was for this epoch, whether or not the peer can be reached.
    pub fn sent_ready(&self, peer: GatewayId, epoch: Epoch) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.ready == epoch)
    }

    /// Returns the link to a peer by the peer's own fabric file; none before its first Ready.
    pub fn reported_link(&self, peer: GatewayId) -> Option<LinkState> {
        self.peers.get(&peer)?.link
    }

    /// Replaces the connections between all gateways, members or not. Returns the peers to which
    /// that matters.
    pub fn replace_graph(&mut self, all: &MeshGraph) -> RouteChange {
        let routes = Routes::from_gateway(all, self.number(self.me));
        let before = std::mem::replace(&mut self.routes, routes);
        let graph_before = std::mem::replace(&mut self.graph, all.restricted_to(&self.numbers));
        let cut = graph_before.pairs_lost_in(&self.graph);
        let mut change = RouteChange { cut, ..RouteChange::default() };
        for id in self.peers.keys().copied() {
            let number = self.number(id);
            if !self.routes.reaches(number) {
                change.lost.extend(before.reaches(number).then_some(id));
            } else if !before.is_direct(number) || !self.routes.is_direct(number) {
                change.rerouted.push(id);
            }
        }
        change
    }

    /// Returns the number of a member in the graph of all gateways.
    fn number(&self, member: GatewayId) -> GatewayId {
        self.numbers.get(usize::from(member.0)).copied().unwrap_or(member)
    }

    /// Resets all that is known of a peer.
    pub fn reset_peer(&mut self, peer: GatewayId) {
        if let Some(known) = self.peers.get_mut(&peer) {
            *known = Peer::default();
        }
    }

    /// Records a peer's Ready for an epoch, with the link by the peer's fabric file. Returns false
    /// when the peer was ready for a later epoch.
    pub fn note_ready(&mut self, from: GatewayId, epoch: Epoch, link: Option<LinkState>) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else { return false };
        if epoch < peer.ready {
            return false;
        }
        (peer.ready, peer.link) = (epoch, link);
        true
    }

    /// Records a peer's request to enter the next epoch.
    pub fn note_join(&mut self, from: GatewayId, join: JoinRequest) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.joined = Some(join);
        }
    }

    /// Returns the requests of all peers to enter, by gateway number; none unless all are reachable
    /// and have asked.
    pub fn all_joined(&self) -> Option<Vec<JoinRequest>> {
        let joined =
            |(id, peer): (&GatewayId, &Peer)| peer.joined.clone().filter(|_| self.is_up(*id));
        self.peers.iter().map(joined).collect()
    }

    /// Drops all requests to enter, which are void once an epoch ended.
    pub fn end_epoch(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.joined = None);
    }
}
