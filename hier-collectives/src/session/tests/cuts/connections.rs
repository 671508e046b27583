//! Connections of a world that are cut and come back.

use crate::ids::*;
use crate::mesh::*;
use crate::session::tests::fabrics::pair_of;
use crate::session::tests::world::*;
use std::sync::Arc;

impl World {
    /// Loses the connection between two gateways with all that is on it, and opens it again.
    pub(in crate::session::tests) fn lose_connection(&mut self, one: GatewayId, other: GatewayId) {
        self.drop_connection(one, other);
        self.set_connection(one, other, MeshConnectionState::Up);
    }

    /// Loses the connection between two gateways, which is awaited.
    pub(in crate::session::tests) fn drop_connection(&mut self, one: GatewayId, other: GatewayId) {
        self.cut_connection(one, other, MeshConnectionState::Awaited);
    }

    /// Loses a connection with all that is on it, until it is set up again.
    pub(in crate::session::tests) fn cut_connection(
        &mut self,
        one: GatewayId,
        other: GatewayId,
        state: MeshConnectionState,
    ) {
        let between = |from, to| pair_of(from, to) == pair_of(one, other);
        self.messages.retain(|(from, to), _| !between(*from, *to));
        let dropped: Vec<Stream> =
            self.streams.extract_if(.., |stream| between(stream.from, stream.to)).collect();
        self.set_connection(one, other, state);
        for stream in dropped {
            if let Some(lease) = lease_of(&stream) {
                self.end_lease(stream.to, lease);
            }
        }
    }

    /// Changes the state of a connection. Its ends know it at once, and others some time later. That
    /// it is up, the second end also knows later: by the report of the first.
    pub(in crate::session::tests) fn set_connection(
        &mut self,
        one: GatewayId,
        other: GatewayId,
        state: MeshConnectionState,
    ) {
        match state {
            MeshConnectionState::Up => self.not_up.remove(&pair_of(one, other)),
            _ => self.not_up.insert(pair_of(one, other), state),
        };
        let graph = self.graph();
        for me in self.fabric.gateway_ids() {
            if me == one || me == other && state != MeshConnectionState::Up {
                self.unknown.remove(&me);
                self.learn(me, &graph);
            } else {
                self.unknown.entry(me).or_default().push_back(Arc::clone(&graph));
            }
        }
    }

    /// Hands a gateway the connections as they are or were.
    pub(in crate::session::tests) fn learn(&mut self, me: GatewayId, graph: &Arc<MeshGraph>) {
        let now = self.now;
        self.session(me).handle_connections(graph, "test", now);
        self.collect(me);
    }

    /// Returns the connections as they are.
    pub(in crate::session::tests) fn graph(&self) -> Arc<MeshGraph> {
        let state =
            |one, other| self.not_up.get(&(one, other)).copied().unwrap_or(MeshConnectionState::Up);
        Arc::new(MeshGraph::new(&self.fabric, state))
    }

    /// Whether messages get from one gateway to another, over others if need be.
    pub(in crate::session::tests) fn is_reached(&self, from: GatewayId, to: GatewayId) -> bool {
        self.not_up.is_empty() || Routes::from_gateway(&self.graph(), from).reaches(to)
    }
}
