//! The gateways of the fabric: which can be reached, which are in the epoch, which ask to enter.

use crate::ids::{BootId, Epoch, GatewayId, Sequence};
use crate::plan::Plan;
use crate::post::Committed;
use crate::routes::Routes;
use crate::session::action_queue::ActionQueue;
use crate::topology::{Fabric, LinkState};
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet};

/// The gateway that opens epochs and plans: the first by name.
pub(in crate::session) const FIRST: GatewayId = GatewayId(0);

/// A member's request to enter the next epoch.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct Join {
    pub boot: BootId,
    /// The last epoch it was in.
    pub last: Epoch,
    /// One past the highest sequence that it knows of.
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

/// All other gateways, and the ways to them.
#[derive(Debug)]
pub(in crate::session) struct Membership {
    routes: Routes,
    peers: BTreeMap<GatewayId, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    /// The connection to it, or to the neighbour that passes messages on to it, is up.
    up: bool,
    /// The last epoch for which it sent Ready.
    ready: Epoch,
    /// The link to it by its own fabric file, from its last Ready.
    link: Option<LinkState>,
    /// Its request to enter the next epoch; the first gateway alone keeps it.
    joined: Option<Join>,
}

impl Membership {
    pub fn new(fabric: &Fabric, me: GatewayId) -> Self {
        let others = fabric.gateway_ids().filter(|id| *id != me);
        let peers = others.map(|id| (id, Peer::default())).collect();
        Self { routes: Routes::of(fabric, me), peers }
    }

    pub fn ids(&self) -> impl Iterator<Item = GatewayId> {
        self.peers.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.peers.len()
    }

    pub fn contains(&self, peer: GatewayId) -> bool {
        self.peers.contains_key(&peer)
    }

    pub fn is_up(&self, peer: GatewayId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.up)
    }

    pub fn all_up(&self) -> bool {
        self.peers.values().all(|peer| peer.up)
    }

    /// Peers that can be reached.
    pub fn up(&self) -> impl Iterator<Item = GatewayId> {
        self.peers.iter().filter(|(_, peer)| peer.up).map(|(id, _)| *id)
    }

    /// Peers that can be reached and are in this epoch.
    pub fn ready_for(&self, epoch: Epoch) -> impl Iterator<Item = GatewayId> {
        let ready = move |(_, peer): &(&GatewayId, &Peer)| peer.up && peer.ready == epoch;
        self.peers.iter().filter(ready).map(|(id, _)| *id)
    }

    /// Whether the peer sent Ready for this epoch, whether or not it can be reached.
    pub fn sent_ready(&self, peer: GatewayId, epoch: Epoch) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.ready == epoch)
    }

    /// The link to a peer, by the peer's own fabric file.
    pub fn link_of(&self, peer: GatewayId) -> Option<LinkState> {
        self.peers.get(&peer)?.link
    }

    /// A neighbour can be reached, and with it the peers behind it.
    pub fn mark_up(&mut self, neighbour: GatewayId) {
        for id in self.routes.reached_through(neighbour) {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.up = true;
            }
        }
    }

    /// A neighbour itself cannot be reached any more; false when there is no such peer.
    pub fn mark_down(&mut self, neighbour: GatewayId) -> bool {
        let Some(peer) = self.peers.get_mut(&neighbour) else { return false };
        peer.up = false;
        true
    }

    /// Forgets a neighbour and the peers behind it.
    pub fn forget(&mut self, neighbour: GatewayId) {
        for id in self.routes.reached_through(neighbour) {
            if let Some(peer) = self.peers.get_mut(&id) {
                *peer = Peer::default();
            }
        }
    }

    /// A neighbour and the peers behind it.
    pub fn through(&self, neighbour: GatewayId) -> Vec<GatewayId> {
        self.routes.reached_through(neighbour).collect()
    }

    /// Peers without a connection to this gateway.
    pub fn distant(&self) -> Vec<GatewayId> {
        self.ids().filter(|id| !self.routes.is_direct(*id)).collect()
    }

    /// Whether some peers are reached through others.
    pub fn is_partial(&self) -> bool {
        self.routes.is_partial()
    }

    /// Asks peers on this side of a neighbour to repeat their messages: some that passed through
    /// here to the neighbour may be lost, and their senders cannot know.
    pub fn ask_to_repeat(&self, neighbour: GatewayId, actions: &mut ActionQueue) {
        if !self.is_partial() {
            return;
        }
        let behind: BTreeSet<GatewayId> = self.routes.reached_through(neighbour).collect();
        actions.broadcast(self.up().filter(|id| !behind.contains(id)), &Message::Repeat);
    }

    /// A peer is ready for an epoch. False when it has been ready for a later one.
    pub fn note_ready(&mut self, from: GatewayId, epoch: Epoch, link: Option<LinkState>) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else { return false };
        if epoch < peer.ready {
            return false;
        }
        (peer.ready, peer.link) = (epoch, link);
        true
    }

    pub fn note_join(&mut self, from: GatewayId, join: Join) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.joined = Some(join);
        }
    }

    /// The request of every peer in order; none unless all can be reached and have asked.
    pub fn all_joined(&self) -> Option<Vec<Join>> {
        self.peers.values().map(|peer| peer.joined.filter(|_| peer.up)).collect()
    }

    /// An epoch ended: requests to enter it are void.
    pub fn end_epoch(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.joined = None);
    }
}
