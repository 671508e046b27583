//! The engine's handling of connections between gateways, its own and those that others report.
//!
//! After each event that may change a connection the event loop calls
//! [`Engine::follow_connections`], which sends reports to peers and hands the connections to the
//! sessions.

use super::engine_task::Engine;
use super::health::link_outages::LinkOutageLine;
use crate::events::ConnectionId;
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::ids::GatewayId;
use hier_collectives::mesh::{MeshGraph, MeshReport};
use std::sync::Arc;
use tracing::{info, warn};
use units::TimeNs;

/// The advice to an operator at the end of each log line about a peer that has broken the protocol.
pub(super) const VIOLATION_REMEDY: &str =
    "run one version at both, and report it if they are of one version";

impl Engine {
    /// Handles a report of connections that a peer made or passed on. An invalid report is logged,
    /// and closes the lane's connection over which it came.
    pub(super) fn handle_connection_report(
        &mut self,
        (from, id): (GatewayId, ConnectionId),
        report: MeshReport,
        now: TimeNs,
    ) {
        let reporter = report.gateway;
        if let Err(error) = self.shared.peers.handle_connection_report(from, report, now) {
            let name = &self.fabric.gateway(from).name;
            warn_if_due!(
                self.metrics.warnings.is_due(WarningCause::Peer, name, now),
                peer = %name,
                "gateway {name}: {error}; closing its connection: {VIOLATION_REMEDY}"
            );
            return self.shared.peers.close_for_violation(from, id, &error.to_string());
        }
        let why = format!("as gateway {} reports", self.fabric.gateway(reporter).name);
        self.follow_connections(&why, now);
    }

    /// Sends the reports that are due. If connections have changed, hands them to the sessions and
    /// logs links that are gone round. `why` is the reason for which connections are lost.
    pub(super) fn follow_connections(&mut self, why: &str, now: TimeNs) {
        // Reports go first: gateways on the way then know the routes of the messages that follow.
        self.shared.peers.send_connection_reports();
        let Some(graph) = self.shared.peers.take_connections() else { return };
        self.follow_term_connections(why, now);
        for job in self.jobs.values_mut() {
            let peers = &self.shared.peers;
            let mut disbanded = Vec::new();
            job.for_each_group(|group| {
                if let Some(membership) = &mut group.membership {
                    membership.keep_reachable(|peer| peers.has_connection_route(peer));
                }
                let unmade = group.session.handle_connections(&graph, why, now);
                if let (Some(failure), Some(membership)) = (unmade, &mut group.membership)
                    && membership.disband(&failure)
                {
                    group.session.handle_disband(&failure, now);
                    disbanded.push(group.id);
                }
            });
            disbanded.into_iter().for_each(|id| job.tell_group(id, &self.shared));
            job.store.handle_connections(now);
            job.perform_actions(&self.shared);
        }
        let for_data = self.connections_for_data(&graph);
        self.jobs.values_mut().for_each(|job| job.stragglers.set_connections(&for_data));
        for line in self.outages.follow(&self.fabric, &graph, why, now) {
            let link = line.link();
            match &line {
                LinkOutageLine::Down { text, is_warning: true, .. } => warn!(link, "{text}"),
                LinkOutageLine::Down { text, .. } | LinkOutageLine::Up { text, .. } => {
                    info!(link, "{text}");
                }
            }
            let is_down = matches!(line, LinkOutageLine::Down { .. });
            self.metrics.link_down(link).set(i64::from(is_down));
        }
    }

    /// Returns the connections between gateways that exchange data: all but those of a witness.
    pub(super) fn connections_for_data(&self, graph: &Arc<MeshGraph>) -> Arc<MeshGraph> {
        let Some(witness) = self.fabric.witness() else { return Arc::clone(graph) };
        let others: Vec<GatewayId> =
            self.fabric.gateway_ids().filter(|id| *id != witness).collect();
        Arc::new(graph.restricted_to(&others))
    }
}
