//! Connections between gateways come and go: routes change, epochs end, and messages are repeated.

use super::epoch::epoch_membership::RouteChange;
use super::session_events::Session;
use crate::ids::GatewayId;
use crate::mesh::MeshGraph;
use crate::post::Failure;
use crate::wire::Message;
use std::sync::Arc;
use units::TimeNs;

/// Connections.
impl Session {
    /// Adopts the graph of connections, repeats messages that may be lost, and ends the epoch if it
    /// was cut. The engine calls it whenever a connection has changed, or messages through other
    /// gateways may be lost. `why` is the reason for which connections were lost, for the text of a
    /// failure.
    ///
    /// The epoch ends if a gateway cannot be reached any more, or if data need a connection that is
    /// lost. The next epoch begins once all gateways can be reached, over the links that are up.
    ///
    /// Returns the failure of a group that its ranks make just now, if a gateway was lost before
    /// the group's first epoch.
    pub fn handle_connections(
        &mut self,
        graph: &Arc<MeshGraph>,
        why: &str,
        now: TimeNs,
    ) -> Option<Failure> {
        let change = self.epoch.members_mut().replace_graph(graph);
        let unmade = self.epoch.failure_before_first_epoch(&change.lost, why);
        self.end_epoch_if_connections_cut(&change, why, now);
        change.lost.into_iter().for_each(|peer| self.epoch.members_mut().reset_peer(peer));
        change.rerouted.into_iter().for_each(|peer| self.repeat_epoch_to(peer));
        self.request_epoch_entry();
        self.open_epoch_if_all_joined(now);
        unmade
    }

    /// Adopts the connections that were up before this session began. Asks all gateways to repeat
    /// their messages: no session received them until now.
    pub fn handle_connections_before_start(&mut self, graph: &Arc<MeshGraph>, now: TimeNs) {
        self.handle_connections(graph, "", now);
        let peers: Vec<GatewayId> = self.epoch.members().reachable_peers().collect();
        self.actions.broadcast(peers, &Message::Repeat);
    }

    /// Repeats all messages that may have been lost with a lane to a neighbour, while other lanes
    /// to it live. Messages only add to what a peer knows, so a repeated one changes nothing.
    pub fn handle_connection_lane_lost(&mut self, peer: GatewayId) {
        self.repeat_epoch_to(peer);
    }

    /// Ends the epoch if a gateway cannot be reached, or if data need a connection that is not up.
    /// Returns whether the epoch ended. `change` is the change of connections that is the occasion,
    /// `why` the reason for which connections are not up.
    pub(super) fn end_epoch_if_connections_cut(
        &mut self,
        change: &RouteChange,
        why: &str,
        now: TimeNs,
    ) -> bool {
        let oldest = self.collectives.iter().next().map(|(sequence, _)| sequence);
        let Some(failure) = self.epoch.cut_failure(change, oldest, why) else { return false };
        self.end_epoch(failure, None, now);
        true
    }
}
