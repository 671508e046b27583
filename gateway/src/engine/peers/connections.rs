//! The connections of all gateways, and control messages over them: this gateway's own, and those
//! that it forwards.
//!
//! A message goes over one lane of the next hop, so that messages arrive in order. When connections
//! or lanes are lost, the sessions repeat what may be lost.

use super::{Peer, Peers};
use crate::wan::link::link_message::LinkMessage;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::mesh::{InvalidReport, MeshGraph, MeshReport};
use hier_collectives::wire::{Envelope, Message};
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

    /// Returns the time at which connections were awaited for too long, or a report is due.
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

    /// Returns the connections of all gateways if the sessions have to know. A silent peer is then
    /// lost sooner if data can go round the link to it.
    pub fn take_connections(&mut self) -> Option<Arc<MeshGraph>> {
        let graph = self.connections.take_change()?;
        let regions = self.connections.regions_with_way_round();
        for (id, peer) in &self.peers {
            let can = regions.contains(&self.fabric.gateway(*id).region);
            peer.link.liveness.set_can_go_round(can);
        }
        Some(graph)
    }

    /// Sends a control message of one of this gateway's jobs. Where no route leads, it is dropped:
    /// the session repeats it once one does.
    pub fn send_job_message(&self, to: GatewayId, job: GroupId, message: &Message) {
        self.send_group_message(to, (job, job), message);
    }

    /// Sends gateway `to` a control message of `group` of `job`; of the job itself where the two are
    /// equal. Without a route to the gateway nothing is sent.
    pub fn send_group_message(
        &self,
        to: GatewayId,
        (job, group): (GroupId, GroupId),
        message: &Message,
    ) {
        if let Some(hops) = self.connections.routes().hops(to) {
            self.send_message(Envelope { group, from: self.me, to, hops }, job, message);
        }
    }

    /// Returns whether the addresses of a message from a peer are those of other gateways, or of
    /// this one as the recipient.
    pub fn has_known_message_addresses(&self, envelope: Envelope) -> bool {
        let known = |id: GatewayId| usize::from(id.0) < self.fabric.gateways().len();
        known(envelope.from) && envelope.from != self.me && known(envelope.to)
    }

    /// Forwards a message to its recipient. Returns false if it is dropped: no route leads there,
    /// or none is as short as the sender reckoned. So it comes nearer with each hop.
    pub fn forward_message(&self, envelope: Envelope, message: &Message) -> bool {
        let hops = envelope.hops.saturating_sub(1);
        let route = self.connections.routes().hops(envelope.to);
        route.is_some_and(|needed| needed <= hops)
            && self.send_message(Envelope { hops, ..envelope }, envelope.group, message)
    }

    /// Sends a control message to the next hop on the route to its recipient, on the account of
    /// `job`. Returns whether it was sent.
    fn send_message(&self, envelope: Envelope, job: GroupId, message: &Message) -> bool {
        let next = self.connections.routes().next_hop(envelope.to);
        let Some(next) = next.and_then(|id| self.peers.get(&id)) else { return false };
        let Some(handle) = next.control_lane() else { return false };
        let bytes = handle.send_message(envelope, message);
        next.link.pair_pacer.pacer().charge_debt(bytes);
        next.link.send_queue.charge_control_bytes(job, bytes);
        true
    }
}
