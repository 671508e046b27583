//! The engine: one task that owns the session, feeds it events and carries out its actions.
//!
//! It handles segments, never bytes, and never waits for a send: lanes pull, jobs report
//! back, ranks are told over queues that cannot fill.

mod control_channel;
mod job;
mod peers;
mod ranks;
mod status;
mod stragglers;

use crate::host::Host;
use crate::local::server::LocalEvent;
use crate::memory::arena::MemSlice;
use crate::observe::metrics::Metrics;
use crate::observe::status::{LinkStatus, StatusRequest};
use crate::wan::link::capacity::LinkCapacity;
use crate::wan::link::message::{LinkMessage, RateOverride};
use crate::wan::link::policy::Policies;
use crate::wan::link::rate_limit::LinkLimits;
pub use crate::wan::link::rate_limit::{RateChange, RateError};
use crate::wan::stream::send_queue::ConnectionId;
use crate::wan::{LaneHandle, PeerLink, PeerSeen};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::{GatewayId, GroupId, RegionId, Sequence};
use hier_collectives::plan::Plan;
use hier_collectives::session::{Discard, JobId, LeaseId, PeerError, Session, SessionConfig};
use hier_collectives::topology::{Fabric, LinkState};
use hier_collectives::wire::{Envelope, Message, SegmentHeader};
use job::{Job, Shared};
use peers::Peers;
use std::collections::BTreeMap;
use std::sync::Arc;
use stragglers::{LinkCondition, SlowLink, StragglerMonitor};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use units::{BitRate, Span, TimeNs};

/// Events that may wait for the engine; lanes and trainers wait beyond that.
pub const EVENTS_MAX: usize = 4096;

/// How often gauges are brought up to date; counters count by themselves.
const GAUGES_EVERY: Span = Span::from_secs(1);
/// How often what passes over links is looked at.
const LINKS_EVERY: Span = Span::from_ms(100);

/// However much arrives, deadlines and questions wait for no more than this.
const EVENTS_IN_A_ROW_MAX: u32 = 64;

/// When to look again.
struct Looks {
    gauges: TimeNs,
    links: TimeNs,
}

/// Where lanes and others put events.
pub type EventSender = mpsc::Sender<Event>;

/// What the engine hears of.
#[derive(Debug)]
pub enum Event {
    /// From a trainer.
    Local(LocalEvent),
    /// A lane to a peer is up.
    LaneUp {
        /// Who is at its other end.
        seen: PeerSeen,
        /// Our hold on it.
        handle: LaneHandle,
    },
    /// A lane is lost.
    LaneDown {
        /// Who was at its other end.
        peer: GatewayId,
        /// Which lane.
        lane: u16,
        /// Its connection.
        id: ConnectionId,
        /// Why.
        why: String,
    },
    /// A lane could not be brought up.
    DialFailed {
        /// The peer.
        peer: GatewayId,
        /// The lane.
        lane: u16,
        /// Why.
        why: String,
    },
    /// Close a lane; see [`Gateway::lose_lane`](crate::daemon::Gateway::lose_lane).
    LoseLane {
        /// Who is at its other end.
        peer: GatewayId,
        /// Which lane.
        lane: u16,
        /// Hears how many others are up.
        reply: oneshot::Sender<usize>,
    },
    /// A control message.
    Message {
        /// The peer.
        from: GatewayId,
        /// The connection it came on.
        id: ConnectionId,
        /// Whose it is, and for whom.
        envelope: Envelope,
        /// The message.
        message: Message,
    },
    /// A word on a link of a peer's region, or on its lanes.
    Word {
        /// The peer.
        from: GatewayId,
        /// The connection it came on.
        id: ConnectionId,
        /// What its operator wants, or that its messages come here.
        word: LinkMessage,
    },
    /// Hold a link to a rate.
    Hold {
        /// Which, and how fast.
        change: RateChange,
        /// What holds it then.
        reply: oneshot::Sender<Result<LinkStatus, RateError>>,
    },
    /// A segment's header arrived.
    Arrival {
        /// The peer.
        from: GatewayId,
        /// The connection it came on.
        id: ConnectionId,
        /// The group it is for.
        group: GroupId,
        /// The header.
        header: SegmentHeader,
        /// Where its bytes go.
        reply: oneshot::Sender<Placement>,
    },
    /// A segment's stream ended.
    ArrivalEnd {
        /// The group it is for.
        group: GroupId,
        /// Its permission to write.
        lease: LeaseId,
        /// Whether all of it is in place.
        whole: bool,
    },
    /// Bytes of a segment that takes long are arriving.
    Moving {
        /// The group it is for.
        group: GroupId,
        /// Its permission to write.
        lease: LeaseId,
    },
    /// A reduction or copy is done.
    TaskDone(GroupId, JobId),
    /// A reduction or copy is not done, and never will be.
    TaskPanicked,
    /// Nothing of a cancelled collective is being sent any more.
    Cancelled(GroupId, Sequence),
    /// A plan for links as they are found to be, if there is one.
    Planned(GroupId, Arc<Fabric>, Option<Plan>),
    /// Finish what is posted within a time, then leave the epochs; says so once it is done.
    Drain(Span, oneshot::Sender<()>),
    /// End the epochs and tell the peers.
    Shutdown(oneshot::Sender<()>),
}

/// `Arrival` of the session with memory in place of names.
#[derive(Debug)]
pub enum Placement {
    /// Combine with what is here.
    Combine {
        /// The permission.
        lease: LeaseId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The operand here and its weight.
        local: (MemSlice, f64),
        /// The weight of the arriving one.
        net_weight: f64,
        /// Whether the arriving one comes first.
        net_first: bool,
        /// The destination.
        out: MemSlice,
        /// Ends the permission.
        cancel: CancellationToken,
    },
    /// Write as it is.
    Land {
        /// The permission.
        lease: LeaseId,
        /// The destination.
        into: MemSlice,
        /// Ends the permission.
        cancel: CancellationToken,
    },
    /// Stop the stream.
    Discard(Discard),
}

/// See the module.
pub struct Engine {
    fabric: Arc<Fabric>,
    me: GatewayId,
    groups: BTreeMap<GroupId, Job>,
    shared: Shared,
    links: LinkLimits,
    metrics: Arc<Metrics>,
    inbox: mpsc::Receiver<Event>,
    questions: mpsc::Receiver<StatusRequest>,
    /// Who waits for the end of a drain.
    draining: Option<oneshot::Sender<()>>,
}

impl Engine {
    /// An engine for the sessions of some jobs, with the peers' links.
    pub fn new(
        host: Arc<dyn Host>,
        sessions: Vec<(String, SessionConfig)>,
        here: (Arc<Fabric>, GatewayId),
        (peers, policies): (BTreeMap<GatewayId, Arc<PeerLink>>, &Policies),
        observed: (Arc<Metrics>, mpsc::Receiver<StatusRequest>),
        channel: (EventSender, mpsc::Receiver<Event>),
    ) -> Self {
        let ((metrics, questions), (events, inbox), (fabric, me)) = (observed, channel, here);
        let groups = sessions.into_iter().map(|(name, config)| {
            let job = metrics.job(&name);
            let watch = StragglerMonitor::new(Arc::clone(&fabric), me);
            let group = Job::new(name, Session::new(config), job, watch);
            (group.id, group)
        });
        let groups = groups.collect();
        let peers = Peers::new(Arc::clone(&fabric), me, peers);
        let links = LinkLimits::new(Arc::clone(&fabric), me, policies);
        let shared = Shared { host, peers, events };
        Self { fabric, me, groups, shared, links, metrics, inbox, questions, draining: None }
    }

    /// Runs until everybody who could send an event is gone, or a shutdown.
    pub async fn run(mut self) {
        let host = Arc::clone(&self.shared.host);
        self.hold_all();
        self.each(host.now(), Session::handle_start);
        let mut looks =
            Looks { gauges: host.now() + GAUGES_EVERY, links: host.now() + LINKS_EVERY };
        let mut in_a_row = 0;
        loop {
            let due = looks.gauges.min(looks.links);
            let due = self.deadline().map_or(due, |deadline| deadline.min(due));
            let event = tokio::select! {
                biased;
                event = self.inbox.recv() => event,
                Some(question) = self.questions.recv() => {
                    let _ = question.send(self.look());
                    continue;
                }
                () = host.sleep_until(due) => {
                    self.catch_up(&mut looks);
                    continue;
                }
            };
            match event {
                Some(Event::Shutdown(done)) => {
                    self.each(host.now(), Session::handle_shutdown);
                    let _ = done.send(());
                    return;
                }
                Some(event) => self.handle(event, host.now()),
                None => return,
            }
            self.tell_if_drained();
            in_a_row += 1;
            if in_a_row == EVENTS_IN_A_ROW_MAX {
                in_a_row = 0;
                if let Ok(question) = self.questions.try_recv() {
                    let _ = question.send(self.look());
                }
                self.catch_up(&mut looks);
            }
        }
    }

    fn deadline(&self) -> Option<TimeNs> {
        self.groups.values().filter_map(|group| group.session.poll_timeout()).min()
    }

    /// Does what is due by now.
    fn catch_up(&mut self, looks: &mut Looks) {
        let now = self.shared.host.now();
        if looks.gauges <= now {
            looks.gauges = now + GAUGES_EVERY;
            self.measure();
        }
        if looks.links <= now {
            looks.links = now + LINKS_EVERY;
            self.look_at_links();
        }
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.each(now, Session::handle_timeout);
            self.tell_if_drained();
        }
    }

    fn tell_if_drained(&mut self) {
        if self.draining.is_some()
            && self.groups.values().all(|group| group.session.is_drained())
            && let Some(done) = self.draining.take()
        {
            let _ = done.send(());
        }
    }

    /// Lets every session hear of something, and carries out what follows.
    fn each(&mut self, now: TimeNs, mut tell: impl FnMut(&mut Session, TimeNs)) {
        for group in self.groups.values_mut() {
            tell(&mut group.session, now);
            group.act(&self.shared);
        }
    }

    /// Lets one group hear of something, and carries out what follows; `None` when there is
    /// no such group here.
    fn with<T>(&mut self, group: GroupId, tell: impl FnOnce(&mut Job) -> T) -> Option<T> {
        let group = self.groups.get_mut(&group)?;
        let told = tell(group);
        group.act(&self.shared);
        Some(told)
    }

    fn handle(&mut self, event: Event, now: TimeNs) {
        match event {
            Event::Local(event) => {
                self.with(event.group(), |group| group.handle_local(event, now));
            }
            Event::LaneUp { seen, handle } => self.handle_lane_up(seen, handle, now),
            Event::LaneDown { peer, lane, id, why } => {
                self.handle_lane_down(peer, lane, id, &why, now)
            }
            Event::DialFailed { peer, lane, why } => {
                self.shared.peers.dial_failed(peer, lane, why);
            }
            Event::LoseLane { peer, lane, reply } => {
                let _ = reply.send(self.shared.peers.lose(peer, lane));
            }
            Event::Word { from, id, word } => {
                if self.shared.peers.is_current(from, id) {
                    match word {
                        LinkMessage::Rate(word) => self.hear(from, word),
                        LinkMessage::ControlGeneration(number) => {
                            self.shared.peers.turn(from, id, number)
                        }
                    }
                }
            }
            Event::Hold { change, reply } => {
                let _ = reply.send(self.hold(&change));
            }
            Event::Message { from, id, envelope, message } => {
                if self.shared.peers.is_in_turn(from, id) {
                    self.handle_message((from, id), envelope, message, now);
                }
            }
            Event::Arrival { from, id, group, header, reply } => {
                let placement = self.place((from, id), group, &header, now);
                if let Err(Placement::Combine { lease, .. } | Placement::Land { lease, .. }) =
                    reply.send(placement)
                {
                    self.with(group, |group| group.end_lease(lease, false, now));
                }
            }
            Event::ArrivalEnd { group, lease, whole } => {
                if whole {
                    self.metrics.segments.inc();
                }
                self.with(group, |group| group.end_lease(lease, whole, now));
            }
            Event::Moving { group, lease } => {
                self.with(group, |group| group.session.handle_moving(lease, now));
            }
            Event::TaskDone(group, job) => {
                self.with(group, |group| group.session.handle_job_done(job, now));
            }
            // No rank may take what should be there for a result: as if the panic were ours.
            Event::TaskPanicked => panic!("a reduction, copy or plan panicked"),
            Event::Planned(group, as_found, plan) => {
                self.with(group, |group| group.session.handle_planned(&as_found, plan, now));
            }
            Event::Cancelled(group, sequence) => {
                self.with(group, |group| group.session.handle_cancelled(sequence, now));
            }
            Event::Drain(bound, done) => {
                self.draining = Some(done);
                self.each(now, |session, now| session.handle_drain(bound, now));
            }
            Event::Shutdown(_) => unreachable!("taken by the loop"),
        }
    }

    fn handle_message(
        &mut self,
        (neighbour, id): (GatewayId, ConnectionId),
        envelope: Envelope,
        message: Message,
        now: TimeNs,
    ) {
        let Envelope { group, from, to } = envelope;
        if !self.shared.peers.may_pass_on(neighbour, envelope) {
            let why = format!("a message from gateway {from} to gateway {to} on a wrong way");
            return self.shared.peers.accuse(neighbour, id, &why);
        }
        if to != self.me {
            return self.shared.peers.send(envelope, &message);
        }
        match self.with(group, |group| group.hear(from, message, now)) {
            Some(Ok(())) => {}
            Some(Err(error)) => self.blame((from, neighbour, id), group, &error, now),
            None => self.shared.peers.speaks_of_strange(from, group),
        }
    }

    fn handle_lane_up(&mut self, seen: PeerSeen, handle: LaneHandle, now: TimeNs) {
        // A new boot id is a restart: whatever the old connections still say is of the past.
        if self.shared.peers.restarted(seen) {
            for (lane, id) in self.shared.peers.lanes_of(seen.peer) {
                self.handle_lane_down(seen.peer, lane, id, "the peer restarted", now);
            }
        }
        if let Some(old) = self.shared.peers.connection_on(seen.peer, seen.lane) {
            self.handle_lane_down(seen.peer, seen.lane, old, "superseded", now);
        }
        let first = self.shared.peers.lane_up(seen, handle);
        self.say_words(seen.peer);
        if first {
            // It says its word anew, and may have been started anew.
            self.links.forget_peer(seen.peer);
            self.each(now, |session, now| session.handle_peer_up(seen.peer, now));
        }
    }

    fn handle_lane_down(
        &mut self,
        peer: GatewayId,
        lane: u16,
        id: ConnectionId,
        why: &str,
        now: TimeNs,
    ) {
        let Some(lost) = self.shared.peers.lane_down(peer, lane, id, why) else { return };
        self.say_words(peer);
        if lost.all {
            self.each(now, |session, now| session.handle_peer_down(peer, why, now));
        } else if lost.messages {
            self.each(now, |session, _| session.handle_lane_lost(peer));
        }
    }

    /// What a peer's trainers can bring about ends their own job's epoch; everything else is
    /// the peer's fault.
    fn blame(
        &mut self,
        (from, neighbour, id): (GatewayId, GatewayId, ConnectionId),
        group: GroupId,
        error: &PeerError,
        now: TimeNs,
    ) {
        if error.is_of_ranks() {
            self.with(group, |group| group.session.handle_overreach(from, error, now));
            return;
        }
        let name = &self.fabric.gateway(from).name;
        if from != neighbour {
            // Who passed it on is not to blame; the sender's own neighbours may close on it.
            return warn!("gateway {name}, through others: {error}");
        }
        warn!("gateway {name}: {error}; closing its connection");
        self.shared.peers.accuse(from, id, &error.to_string());
    }

    fn place(
        &mut self,
        (from, id): (GatewayId, ConnectionId),
        group: GroupId,
        header: &SegmentHeader,
        now: TimeNs,
    ) -> Placement {
        if !self.shared.peers.is_current(from, id) {
            return Placement::Discard(Discard::Epoch);
        }
        let placement = match self.with(group, |group| group.place(from, header)) {
            Some(Ok(placement)) => placement,
            Some(Err(error)) => {
                self.blame((from, from, id), group, &error, now);
                return Placement::Discard(Discard::Failed);
            }
            None => {
                self.shared.peers.speaks_of_strange(from, group);
                Placement::Discard(Discard::Group)
            }
        };
        if let Placement::Discard(why) = placement {
            self.metrics.dropped_segments(why).inc();
        }
        placement
    }

    fn hold(&mut self, change: &RateChange) -> Result<LinkStatus, RateError> {
        let ends = self.links.set_override(change)?;
        match change.rate {
            Some(rate) => info!("link {}: held to {rate} by an operator here", change.link),
            None => info!("link {}: no longer held by an operator here", change.link),
        }
        self.shared.peers.ids().for_each(|peer| self.say_words(peer));
        self.hold_all();
        Ok(self.link(self.fabric.link(ends.0, ends.1).expect("changed just now")))
    }

    /// Says all that an operator here has said of links of a peer's region.
    fn say_words(&self, peer: GatewayId) {
        self.links.overrides_for(peer).for_each(|word| self.shared.peers.say(peer, word));
    }

    fn hear(&mut self, from: GatewayId, word: RateOverride) {
        if let Some(link) = self.links.receive_override(from, word) {
            let name = &self.fabric.gateway(from).name;
            match word.rate {
                Some(rate) => info!("link {link}: held to {rate} by an operator at {name}"),
                None => info!("link {link}: no longer held by an operator at {name}"),
            }
        }
        self.hold_all();
    }

    /// Holds every link to what it is held to by now.
    fn hold_all(&self) {
        let now = self.shared.host.unix_seconds();
        for peer in self.shared.peers.ids() {
            let held = self.links.ends_to(peer).and_then(|ends| self.links.limit(ends, now));
            if let Some(held) = held {
                let found = self.shared.peers.holds(peer).unwrap_or(held.effective);
                self.shared.peers.hold(peer, held.effective.min(found));
            }
        }
    }

    /// Looks at what links carry, holds them to that, and tells the groups and the first gateway.
    fn look_at_links(&mut self) {
        let now = self.shared.host.now();
        self.shared.peers.look_at_links(now);
        self.hold_all();
        let others = self.links.far_regions();
        let slow = others.iter().filter_map(|to| Some((*to, self.slow_link(*to)?))).collect();
        self.groups.values_mut().for_each(|group| group.watch.links_are(&slow));
        for to in others {
            let Some((state, name)) = self.find_link(to) else { continue };
            info!("link {name}: carries {} at {}, loses {}", state.rate, state.rtt, state.loss);
            self.each(now, |session, _| session.handle_link(to, state));
        }
    }

    /// What our link to a region is found to be, and its name, when that is news.
    fn find_link(&mut self, to: RegionId) -> Option<(LinkState, String)> {
        let link = self.fabric.link(self.fabric.gateway(self.me).region, to)?;
        let (held, carries) = self.rates(to)?;
        let found = || self.shared.peers.estimates(to);
        let state = LinkState {
            rate: carries.map_or(held, |carries| carries.min(held)),
            rtt: found().filter_map(LinkCapacity::min_rtt).min().unwrap_or(link.rtt),
            loss: found().filter_map(LinkCapacity::random_loss).max().unwrap_or(link.loss),
        };
        self.links.report(to, state)
    }

    /// Our link to a region, if it was found to carry less than it is held to, or to be longer
    /// than the fabric says.
    fn slow_link(&mut self, to: RegionId) -> Option<SlowLink> {
        let link = self.fabric.link(self.fabric.gateway(self.me).region, to)?;
        let (held, carries) = self.rates(to)?;
        let due = LinkCondition { rate: held, rtt: link.rtt };
        // On all pairs that measure.
        let measure = self.shared.peers.estimates(to).filter(|pair| pair.min_rtt().is_some());
        let stretched = measure.map(LinkCapacity::inflated_rtt).min().flatten();
        let rtt = self.links.rtt((link.a, link.b), stretched);
        let rtt = rtt.map_or(link.rtt, |rtt| rtt.max(link.rtt));
        let found = LinkCondition { rate: carries.map_or(held, |carries| carries.min(held)), rtt };
        (found != due).then_some(SlowLink { due, found })
    }

    /// What our link to a region is held to by those who may, and what it was found to carry when
    /// that is less than the fabric says.
    fn rates(&self, to: RegionId) -> Option<(BitRate, Option<BitRate>)> {
        let here = self.fabric.gateway(self.me).region;
        let ends = (here.min(to), here.max(to));
        let held = self.links.limit(ends, self.shared.host.unix_seconds())?.effective;
        let carries = self.shared.peers.estimates(to).filter_map(LinkCapacity::reduced).min();
        Some((held, carries))
    }

    fn measure(&mut self) {
        self.hold_all();
        self.shared.peers.measure();
        let now = self.shared.host.now();
        self.groups.values_mut().for_each(|group| group.measure(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use crate::observe::status::StatusDoor;
    use hier_collectives::topology::{GatewaySpec, RegionSpec};
    use std::pin::pin;
    use wan_sim::VirtualNet;

    #[test]
    fn a_full_inbox_keeps_no_question_waiting() {
        let alone = RegionSpec {
            name: "a".to_owned(),
            speeds: vec![1.0],
            gateways: vec![GatewaySpec::new("a-0", 1, None)],
        };
        let fabric = Arc::new(Fabric::new("alone", 1500, vec![alone], vec![]).expect("valid"));
        let answered = crate::simulate::run(async {
            let host = Arc::new(VirtualHost::new(VirtualNet::new(), 1));
            let (events, inbox) = mpsc::channel(EVENTS_MAX);
            for number in 0..EVENTS_MAX as u64 {
                let event = Event::Cancelled(GroupId::of("gone"), Sequence(number));
                events.try_send(event).expect("room");
            }
            let (door, questions) = StatusDoor::new();
            let observed = (Arc::new(Metrics::new()), questions);
            let links = (BTreeMap::new(), &Policies::new());
            let here = (fabric, GatewayId(0));
            let channel = (events.clone(), inbox);
            let engine = Engine::new(host, vec![], here, links, observed, channel);
            let mut running = pin!(engine.run());
            tokio::select! {
                biased;
                answer = door.ask() => answer.map(|_| events.capacity()),
                () = &mut running => panic!("it ended"),
            }
        });
        let handled = answered.expect("runs").expect("answered");
        assert!(handled < EVENTS_MAX / 2, "answered after {handled} events");
    }
}
