//! The connections of all gateways, and those of this gateway's lanes.
//!
//! One connection to each peer carries control messages, which [`super::messages`] sends.

use super::{Peer, Peers};
use crate::events::ConnectionId;
use crate::wan::link::link_message::LinkMessage;
use hier_collectives::ids::GatewayId;
use hier_collectives::mesh::{InvalidReport, MeshGraph, MeshReport};
use std::sync::Arc;
use units::TimeNs;

impl Peers {
    /// Returns the graph of all gateways and of the connections between them that are up.
    pub fn connection_graph(&self) -> &Arc<MeshGraph> {
        self.connections.graph()
    }

    /// Returns whether another gateway can be reached, directly or by way of others.
    pub fn has_connection_route(&self, gateway: GatewayId) -> bool {
        self.connections.routes().reaches(gateway)
    }

    /// Adds a report of connections, which a peer made or passed on, to the table of connections.
    ///
    /// # Errors
    /// [`InvalidReport`]: the peer breaks the protocol.
    pub fn handle_connection_report(
        &mut self,
        from: GatewayId,
        report: MeshReport,
        now: TimeNs,
    ) -> Result<(), InvalidReport> {
        self.connections.handle_report(from, report, now)
    }

    /// Records that this gateway dropped a message that it was to pass on to another one.
    pub fn note_message_dropped(&mut self, now: TimeNs) {
        self.connections.handle_messages_lost(now);
    }

    /// Returns the time at which connections will have been awaited for too long, or a report is
    /// due; `None` without either.
    pub fn connection_deadline(&self) -> Option<TimeNs> {
        self.connections.poll_timeout()
    }

    /// Goes round connections that were awaited for too long, and makes reports that are due.
    pub fn handle_connection_time(&mut self, now: TimeNs) {
        self.connections.handle_time(now);
    }

    /// Sends the reports of connections that are due to the gateways that shall have them.
    pub fn send_connection_reports(&mut self) {
        while let Some((to, report)) = self.connections.poll_report() {
            if let Some(handle) = self.peers.get(&to).and_then(Peer::control_lane) {
                handle.send_link_message(&LinkMessage::Connections(report));
            }
        }
    }

    /// Returns the connections of all gateways if they, or any report, have changed since the last
    /// call. A silent peer is then lost sooner if data can go round the link to it.
    pub fn take_connections(&mut self) -> Option<Arc<MeshGraph>> {
        let graph = self.connections.take_change()?;
        let regions = self.connections.regions_with_way_round();
        for (id, peer) in &self.peers {
            let can = regions.contains(&self.fabric.gateway(*id).region);
            peer.link.liveness.set_can_go_round(can);
        }
        Some(graph)
    }

    /// Returns the number and the connection of each lane of a peer that is up.
    pub fn connections_of_lanes(&self, peer: GatewayId) -> Vec<(u16, ConnectionId)> {
        let lanes = self.peers.get(&peer).into_iter().flat_map(|peer| &peer.lanes);
        lanes.map(|(lane, handle)| (*lane, handle.id)).collect()
    }

    /// Returns the connection of the lane with this number; `None` if the lane is not up.
    pub fn connection_of_lane(&self, peer: GatewayId, lane: u16) -> Option<ConnectionId> {
        Some(self.peers.get(&peer)?.lanes.get(&lane)?.id)
    }

    /// Returns whether a connection is still that of one of the peer's lanes, also of a lane that
    /// is being taken away.
    pub fn is_current_connection(&self, peer: GatewayId, id: ConnectionId) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| peer.all_lanes().any(|handle| handle.id == id))
    }

    /// Returns whether a peer's control messages use this connection, so that none arrives late.
    pub fn is_control_connection(&self, from: GatewayId, id: ConnectionId) -> bool {
        let incoming =
            self.peers.get(&from).is_some_and(|peer| peer.control.is_incoming_connection(id));
        incoming && self.is_current_connection(from, id)
    }
}

impl Peer {
    /// Selects the connection for control messages, and announces a change on the new one.
    pub(super) fn select_control_connection(&mut self) {
        let ids = self.lanes.iter().map(|(lane, handle)| (*lane, handle.id)).collect();
        if let Some((connection, generation)) = self.control.select_connection(&ids) {
            let selected = self.lanes.values().filter(|handle| handle.id == connection);
            selected.for_each(|handle| {
                handle.send_link_message(&LinkMessage::ControlGeneration(generation))
            });
        }
    }
}
