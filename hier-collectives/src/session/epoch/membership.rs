//! The gateways of the fabric: which can be reached, which are in the epoch, which ask to enter.

use crate::ids::{BootId, Epoch, GatewayId, Sequence};
use crate::plan::Plan;
use crate::post::Committed;
use crate::routes::Routes;
use crate::session::action_queue::ActionQueue;
use crate::topology::{Fabric, LinkState};
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Gateway 0, the first by name, which begins epochs and makes plans.
pub(in crate::session) const FIRST_GATEWAY: GatewayId = GatewayId(0);

/// A member's request to enter the next epoch.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct JoinRequest {
    pub boot: BootId,
    /// The last epoch that the member was in.
    pub last: Epoch,
    /// One past the highest sequence that the member knows of.
    pub next: Sequence,
    pub committed: Option<Committed>,
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

/// All other gateways, and the routes to them.
#[derive(Debug)]
pub(in crate::session) struct Membership {
    routes: Routes,
    peers: BTreeMap<GatewayId, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    /// The connection to the peer, or to the neighbour that passes messages on to it, is up.
    up: bool,
    /// The last epoch for which the peer sent Ready.
    ready: Epoch,
    /// The link to the peer by the peer's own fabric file, from its last Ready.
    link: Option<LinkState>,
    /// The peer's request to enter the next epoch; the first gateway alone keeps it.
    joined: Option<JoinRequest>,
}

impl Membership {
    /// Creates the members of a fabric, none of which gateway `me` can reach yet.
    pub fn new(fabric: &Fabric, me: GatewayId) -> Self {
        let others = fabric.gateway_ids().filter(|id| *id != me);
        let peers = others.map(|id| (id, Peer::default())).collect();
        Self { routes: Routes::from_gateway(fabric, me), peers }
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
        self.peers.get(&peer).is_some_and(|peer| peer.up)
    }

    /// Whether all peers can be reached.
    pub fn all_up(&self) -> bool {
        self.peers.values().all(|peer| peer.up)
    }

    /// Iterates over the peers that can be reached.
    pub fn reachable_peers(&self) -> impl Iterator<Item = GatewayId> {
        self.peers.iter().filter(|(_, peer)| peer.up).map(|(id, _)| *id)
    }

    /// Iterates over the peers that can be reached and sent Ready for an epoch.
    pub fn peers_ready_for(&self, epoch: Epoch) -> impl Iterator<Item = GatewayId> {
        let ready = move |(_, peer): &(&GatewayId, &Peer)| peer.up && peer.ready == epoch;
        self.peers.iter().filter(ready).map(|(id, _)| *id)
    }

    /// Whether a peer's last Ready was for this epoch, whether or not the peer can be reached.
    pub fn sent_ready(&self, peer: GatewayId, epoch: Epoch) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.ready == epoch)
    }

    /// Returns the link to a peer by the peer's own fabric file; none before its first Ready.
    pub fn reported_link(&self, peer: GatewayId) -> Option<LinkState> {
        self.peers.get(&peer)?.link
    }

    /// Marks a neighbour and the peers behind it as reachable.
    pub fn mark_up(&mut self, neighbour: GatewayId) {
        for id in self.routes.reached_through(neighbour) {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.up = true;
            }
        }
    }

    /// Marks a neighbour, but not the peers behind it, as unreachable. Returns false when there is
    /// no such peer.
    pub fn mark_down(&mut self, neighbour: GatewayId) -> bool {
        let Some(peer) = self.peers.get_mut(&neighbour) else { return false };
        peer.up = false;
        true
    }

    /// Resets all that is known of a neighbour and of the peers behind it.
    pub fn reset_peers_through(&mut self, neighbour: GatewayId) {
        for id in self.routes.reached_through(neighbour) {
            if let Some(peer) = self.peers.get_mut(&id) {
                *peer = Peer::default();
            }
        }
    }

    /// Returns a neighbour and the peers behind it.
    pub fn peers_through(&self, neighbour: GatewayId) -> Vec<GatewayId> {
        self.routes.reached_through(neighbour).collect()
    }

    /// Returns the peers without a connection to this gateway, which are reached through others.
    pub fn indirect_peers(&self) -> Vec<GatewayId> {
        self.peer_ids().filter(|id| !self.routes.is_direct(*id)).collect()
    }

    /// Whether some peers are reached through others.
    pub fn has_indirect_peers(&self) -> bool {
        self.routes.is_partial()
    }

    /// Sends Repeat to the reachable peers that are not behind a neighbour. Their messages through
    /// this gateway to that neighbour may be lost, and they cannot know.
    pub fn ask_to_repeat(&self, neighbour: GatewayId, actions: &mut ActionQueue) {
        if !self.has_indirect_peers() {
            return;
        }
        let behind: BTreeSet<GatewayId> = self.routes.reached_through(neighbour).collect();
        actions
            .broadcast(self.reachable_peers().filter(|id| !behind.contains(id)), &Message::Repeat);
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
        self.peers.values().map(|peer| peer.joined.filter(|_| peer.up)).collect()
    }

    /// Drops all requests to enter, which are void once an epoch ended.
    pub fn end_epoch(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.joined = None);
    }
}
