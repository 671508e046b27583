//! The engine's handling of lanes, and of messages and segments from peers.
//!
//! The event loop calls it for the events of lanes. It hands messages and segments to their jobs,
//! and closes the connections of peers that break the protocol.

use super::engine_connections::VIOLATION_REMEDY;
use super::engine_task::Engine;
use super::job::group_membership::{PeerMember, membership_group_id};
use super::peer_jobs::PeerJob;
use crate::events::{ConnectionId, Event, SegmentPlacement};
use crate::wan::{LaneHandle, LanePeerSeen};
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::session::{Discard, PeerError};
use hier_collectives::wire::{Envelope, GroupFacts, Message, SegmentHeader};
use units::TimeNs;

/// The way that a control message or a segment came.
#[derive(Debug, Clone, Copy)]
struct PeerEventOrigin {
    /// The gateway that wrote it.
    from: GatewayId,
    /// The peer that handed it over: the sender, or a gateway on the way.
    neighbour: GatewayId,
    /// The connection to that peer.
    connection: ConnectionId,
}

impl Engine {
    /// Handles a lane that came up, went down, could not be brought up, or is to be closed. Also
    /// takes the results of a check of the path to a peer.
    pub(super) fn handle_peer_lane_event(&mut self, event: Event, now: TimeNs) {
        match event {
            Event::LaneUp { seen, handle } => self.handle_peer_lane_up(seen, handle, now),
            Event::LaneFinished { peer, id } => self.shared.peers.handle_lane_finished(peer, id),
            Event::LaneDown { peer, lane, id, why } => {
                self.handle_peer_lane_down(peer, lane, id, &why, now);
            }
            Event::DialFailed { peer, lane, why, is_unanswered } => {
                self.shared.peers.handle_dial_failed(peer, lane, why, is_unanswered);
            }
            Event::LaneRefused { peer, lane, why } => {
                self.shared.peers.handle_lane_refused(peer, lane, why);
            }
            Event::PathChecked { peer, findings } => {
                self.shared.peers.handle_path_checked(peer, findings);
            }
            Event::CloseLane { peer, lane, reply } => {
                let _ = reply.send(self.shared.peers.close_lane(peer, lane));
            }
            _ => unreachable!("an event of another kind"),
        }
    }

    /// Handles an event of an arriving segment: its header, which gets a place, its progress, or
    /// its end.
    pub(super) fn handle_peer_arrival_event(&mut self, event: Event, now: TimeNs) {
        match event {
            Event::Arrival { from, id, group, header, reply } => {
                let origin = PeerEventOrigin { from, neighbour: from, connection: id };
                let placement = self.resolve_peer_segment_destination(origin, group, &header, now);
                if let Err(
                    SegmentPlacement::Combine { lease, .. } | SegmentPlacement::Land { lease, .. },
                ) = reply.send(placement)
                {
                    self.with_job_group(group, |group| group.end_lease(lease, false, now));
                }
            }
            Event::ArrivalEnd { group, lease, whole } => {
                if whole {
                    self.metrics.segments.inc();
                }
                self.with_job_group(group, |group| group.end_lease(lease, whole, now));
            }
            Event::ArrivalProgress { group, lease } => {
                self.with_job_group(group, |group| {
                    group.session.handle_arrival_progress(lease, now);
                });
            }
            _ => unreachable!("an event of another kind"),
        }
    }

    /// Hands a control message to its job, or passes it on to its recipient. A message with unknown
    /// addresses, or one that breaks the protocol, closes the connection.
    pub(super) fn handle_peer_message(
        &mut self,
        (neighbour, connection): (GatewayId, ConnectionId),
        envelope: Envelope,
        message: Message,
        now: TimeNs,
    ) {
        let Envelope { group, from, to, .. } = envelope;
        if !self.shared.peers.has_known_message_addresses(envelope) {
            let why = format!("a message from gateway {from} to gateway {to} of unknown addresses");
            return self.shared.peers.close_for_violation(neighbour, connection, &why);
        }
        if to != self.me {
            if !self.shared.peers.forward_message(envelope, &message) {
                self.shared.peers.note_message_dropped(now);
                self.follow_connections("", now);
            }
            return;
        }
        let handled = match message {
            Message::Term(message) => Some(self.handle_term_message(from, message, now)),
            // A witness has no job, and is no gateway of theirs.
            _ if self.fabric.witness() == Some(from) => None,
            Message::Serves { boot, job } => Some(self.handle_job_change(from, boot, group, job)),
            Message::Unserved { boot } => {
                self.peer_jobs.note_job(from, boot, group, PeerJob::Unserved);
                None
            }
            Message::Member { boot, facts, takes_part } => {
                let said = PeerMember { boot, takes_part };
                Some(self.handle_peer_member(from, (group, facts), said, now))
            }
            Message::Disband { failure } => self
                .with_job_of(group, |job, _| job.handle_group_disband(from, group, &failure, now)),
            // A gateway introduces each job, so that one that is not served here is known by name.
            message => self
                .with_job_of(group, |job, _| job.handle_message(from, group, message, now))
                .flatten(),
        };
        if let Some(Err(error)) = handled {
            let origin = PeerEventOrigin { from, neighbour, connection };
            self.handle_peer_error(origin, group, &error, now);
        }
    }

    /// Notes what another gateway says about a group of a job that both serve.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the facts are not those of the group, or not of a group with ranks
    /// of that gateway.
    fn handle_peer_member(
        &mut self,
        from: GatewayId,
        (id, facts): (GroupId, GroupFacts),
        said: PeerMember,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if membership_group_id(&facts) != id || self.jobs.contains_key(&id) {
            return Err(PeerError::NotYours("the facts of another group"));
        }
        // The id of a group is that of no job.
        let Some(job) = self.jobs.get_mut(&facts.job) else { return Ok(()) };
        let handled = job.handle_group_member(from, (id, facts), said, &self.shared, now);
        job.perform_actions(&self.shared);
        handled
    }

    /// Repeats all messages of sessions and stores to a neighbour that may have been lost with a
    /// lane.
    pub(super) fn repeat_messages_to_peer(&mut self, peer: GatewayId, now: TimeNs) {
        for job in self.jobs.values_mut() {
            job.for_each_group(|group| {
                if let Some(member) = group.member(peer) {
                    group.session.handle_connection_lane_lost(member);
                }
            });
            job.store.handle_connections(now);
            job.perform_actions(&self.shared);
        }
    }

    /// Adds a lane. It replaces an older connection of the same lane, and all connections of a peer
    /// that has restarted. Sends the peer the rate limits of operators here, and how many lanes are
    /// wanted. With the first lane, limits that the peer sent earlier are forgotten.
    fn handle_peer_lane_up(&mut self, seen: LanePeerSeen, handle: LaneHandle, now: TimeNs) {
        // A new boot id is a restart: messages on the old connections are void.
        if self.shared.peers.has_restarted(seen) {
            for (lane, id) in self.shared.peers.connections_of_lanes(seen.peer) {
                self.handle_peer_lane_down(seen.peer, lane, id, "the peer restarted", now);
            }
        }
        if let Some(old) = self.shared.peers.connection_of_lane(seen.peer, seen.lane) {
            self.handle_peer_lane_down(seen.peer, seen.lane, old, "superseded", now);
        }
        let first = self.shared.peers.handle_lane_up(seen, handle, now);
        self.send_link_rate_overrides(seen.peer);
        self.shared.peers.send_lane_wish(seen.peer);
        if first {
            self.shared.peers.forget_port_rate(seen.peer);
        }
        self.shared.peers.repeat_port_rate(seen.peer);
        if first {
            // The peer may have restarted, and sends its rate overrides anew.
            self.links.forget_peer(seen.peer);
        }
        self.follow_connections("", now);
    }

    /// Removes a lost lane. After the last one the connection to the peer is lost. The sessions
    /// also learn that control messages may be lost if the lane carried them.
    fn handle_peer_lane_down(
        &mut self,
        peer: GatewayId,
        lane: u16,
        id: ConnectionId,
        why: &str,
        now: TimeNs,
    ) {
        let lost = self.shared.peers.handle_lane_down(peer, lane, id, why, now);
        let Some(lost) = lost else { return };
        self.send_link_rate_overrides(peer);
        self.shared.peers.send_lane_wish(peer);
        self.shared.peers.repeat_port_rate(peer);
        self.follow_connections(why, now);
        if !lost.last_lane && lost.control_messages {
            self.repeat_messages_to_peer(peer, now);
        }
    }

    /// Ends the group's epoch if trainers of the sender can cause the error. Otherwise closes the
    /// connection to the sender, or only logs the error where it came through other gateways.
    fn handle_peer_error(
        &mut self,
        origin: PeerEventOrigin,
        group: GroupId,
        error: &PeerError,
        now: TimeNs,
    ) {
        let PeerEventOrigin { from, neighbour, connection } = origin;
        if error.is_caused_by_ranks() {
            self.with_job_group(group, |group| {
                if let Some(member) = group.member(from) {
                    group.session.handle_overreach(member, error, now);
                }
            });
            return;
        }
        let name = &self.fabric.gateway(from).name;
        if from != neighbour {
            // The gateways on the way are not at fault. The sender's own neighbours may close.
            return warn_if_due!(
                self.metrics.warnings.is_due(WarningCause::Peer, name, now),
                peer = %name,
                "gateway {name}, through others: {error}: {VIOLATION_REMEDY}"
            );
        }
        warn_if_due!(
            self.metrics.warnings.is_due(WarningCause::Peer, name, now),
            peer = %name,
            "gateway {name}: {error}; closing its connection: {VIOLATION_REMEDY}"
        );
        self.shared.peers.close_for_violation(from, connection, &error.to_string());
    }

    /// Decides into which memory the payload of an arriving segment goes, or that it is discarded.
    fn resolve_peer_segment_destination(
        &mut self,
        origin: PeerEventOrigin,
        group: GroupId,
        header: &SegmentHeader,
        now: TimeNs,
    ) -> SegmentPlacement {
        let from = origin.from;
        if !self.shared.peers.is_current_connection(from, origin.connection) {
            return SegmentPlacement::Discard(Discard::Epoch);
        }
        let placement = match self
            .with_job_group(group, |group| group.resolve_segment_destination(from, header))
        {
            Some(Ok(placement)) => placement,
            Some(Err(error)) => {
                self.handle_peer_error(origin, group, &error, now);
                return SegmentPlacement::Discard(Discard::Failed);
            }
            None => SegmentPlacement::Discard(Discard::Group),
        };
        if let SegmentPlacement::Discard(why) = placement {
            self.metrics.dropped_segments(why).inc();
        }
        placement
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engine_task::EngineSpec;
    use crate::engine::terms::engine_fabric_set::testing::NoFabrics;
    use crate::events::{ENGINE_QUEUE_MAX, JobSession};
    use crate::host::VirtualHost;
    use crate::observe::engine_status_request::EngineStatusHandle;
    use crate::observe::metrics::MetricsRegistry;
    use crate::observe::spans::span_queue::SpanSink;
    use crate::wan::link::controller_policy::LinkPolicies;
    use hier_collectives::ids::{BootId, Epoch, RankId};
    use hier_collectives::membership::FabricVersion;
    use hier_collectives::plan::make_plan;
    use hier_collectives::post::{Failure, FailureCode};
    use hier_collectives::session::{PartialsPool, SessionConfig};
    use hier_collectives::topology::{Fabric, FabricGatewaySpec, FabricRegionSpec};
    use hier_collectives::wire::JobFacts;
    use std::collections::BTreeMap;
    use std::num::NonZeroU64;
    use std::sync::Arc;
    use tokio::sync::mpsc;
    use units::ByteCount;
    use wan_sim::VirtualNet;

    /// Makes the engine of the first of three gateways with a rank each, and its job `train`.
    fn engine_of_three() -> (Engine, GroupId) {
        let gateway = |name: &str| FabricGatewaySpec::new(name, 1, None);
        let region = FabricRegionSpec {
            name: "a".to_owned(),
            speeds: vec![1.0; 3],
            gateways: vec![gateway("a-0"), gateway("a-1"), gateway("a-2")],
        };
        let fabric = Arc::new(Fabric::new("three", 1500, vec![region], vec![]).expect("valid"));
        let config = SessionConfig {
            leaves_doubt: false,
            fabric: Arc::clone(&fabric),
            me: GatewayId(0),
            gateways: fabric.gateway_ids().collect(),
            boot: BootId(1),
            plan: make_plan(&fabric).expect("a plan"),
            partials: PartialsPool::new(ByteCount::new(1 << 20)),
            one_in: NonZeroU64::MIN,
            last_epoch: Epoch(0),
            unsolicited_max: ByteCount::new(u64::MAX),
        };
        let name = "train".to_owned();
        let facts = JobFacts { name: name.clone(), weight: 1, token_digest: [7; 16] };
        let (events, inbox) = mpsc::channel(ENGINE_QUEUE_MAX);
        let engine = Engine::new(EngineSpec {
            host: Arc::new(VirtualHost::new(VirtualNet::new(), 1)),
            spans: SpanSink::default(),
            fabric,
            identity: [1; 32],
            version: FabricVersion::default(),
            judge: Arc::new(NoFabrics),
            me: GatewayId(0),
            boot: BootId(1),
            jobs: vec![JobSession { name, facts, config }],
            peers: BTreeMap::new(),
            policies: LinkPolicies::new(),
            metrics: Arc::new(MetricsRegistry::new()),
            status_requests: EngineStatusHandle::new().1,
            events,
            inbox,
        });
        (engine, GroupId::of_job("train"))
    }

    #[test]
    fn gateways_without_ranks_have_no_say_in_a_group() {
        let runs = crate::simulate::run_with_simulated_clock(async {
            let (mut engine, job) = engine_of_three();
            let now = TimeNs::default();
            let said = PeerMember { boot: BootId(2), takes_part: true };
            let facts = |job, ranks: [u32; 2]| {
                let facts = GroupFacts {
                    job,
                    parent: job,
                    place: 1 << 32 | 1,
                    ranks: ranks.map(RankId).into(),
                };
                (membership_group_id(&facts), facts)
            };
            let (pair, group) = (facts(job, [0, 1]), facts(job, [0, 1]).0);
            let groups = |engine: &Engine| engine.jobs[&job].group_count();
            let say = |engine: &mut Engine, from, facts| {
                engine.handle_peer_member(GatewayId(from), facts, said, now)
            };
            let not_yours = |handled| matches!(handled, Err(PeerError::NotYours(_)));
            assert!(not_yours(say(&mut engine, 2, pair.clone())));
            assert_eq!(groups(&engine), 0, "the third gateway has no rank of it");
            say(&mut engine, 1, pair.clone()).expect("one of it");
            assert_eq!(groups(&engine), 1);
            assert!(not_yours(say(&mut engine, 2, pair)), "known or not");
            // A group is no job, in which a group could be made.
            say(&mut engine, 1, facts(group, [0, 1])).expect("no effect");
            assert_eq!(groups(&engine), 1);
            let over = Failure::new(FailureCode::BadPost, "over".to_owned());
            let mut end = |from| {
                let disband = |job: &mut crate::engine::job::Job, _: &_| {
                    job.handle_group_disband(GatewayId(from), group, &over, now)
                };
                engine.with_job_of(group, disband).expect("known")
            };
            assert!(not_yours(end(2)));
            end(1).expect("one of it");
        });
        runs.expect("runs");
    }
}
