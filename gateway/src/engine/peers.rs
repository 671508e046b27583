//! Peers and the lanes to them.

use super::control_channel::ControlChannel;
use crate::memory::arena::MemSlice;
use crate::wan::link::capacity::{LinkCapacity, Observation};
use crate::wan::link::loss_alarm::{AlarmChange, LossAlarm, PacketCounts};
use crate::wan::link::message::{LinkMessage, RateOverride};
use crate::wan::link::traffic::LinkTraffic;
use crate::wan::stream::send_queue::ConnectionId;
use crate::wan::stream::send_queue::NewSegment;
use crate::wan::{LaneHandle, LaneMeasurement, PeerLink, PeerSeen};
use hier_collectives::ids::{BootId, GatewayId, GroupId, RegionId, Sequence};
use hier_collectives::plan::{self, Plan};
use hier_collectives::routes::Routes;
use hier_collectives::session::{Tail, Turn};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{Envelope, Message, SegmentHeader, SegmentKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use units::{BitRate, Span, TimeNs};

/// Strange groups remembered per peer.
const STRANGE_MAX: usize = 64;

/// A peer and its lanes, to be shown.
#[derive(Debug, Default)]
pub(super) struct PeerView {
    pub lanes_up: u16,
    pub rtt: Option<Span>,
    /// Why a lane that is not up was lost or could not be had.
    pub trouble: Option<String>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Packets declared lost, all lanes, since the start.
    pub lost_packets: u64,
    /// Measured loss, from 0 to 1.
    pub loss: f64,
    pub loss_alarm: bool,
}

/// See the module.
pub(super) struct Peers {
    fabric: Arc<Fabric>,
    me: GatewayId,
    routes: Routes,
    /// What the jobs follow, each since its last epoch began: all share links and ports.
    plans: Mutex<BTreeMap<GroupId, Plan>>,
    /// Those that we have connections to.
    peers: BTreeMap<GatewayId, Peer>,
}

struct Peer {
    link: Arc<PeerLink>,
    boot: Option<BootId>,
    lanes: BTreeMap<u16, LaneHandle>,
    /// Which of them carries the control messages.
    order: ControlChannel,
    /// Why each lane was lost or could not be had, until it is up.
    trouble: BTreeMap<u16, String>,
    /// The last of them that was heard of.
    last_trouble: u16,
    /// Groups it spoke of that are not served here.
    strange: BTreeSet<GroupId>,
    /// What has passed over each connection, as far as it is counted.
    counted: BTreeMap<ConnectionId, LinkTraffic>,
    /// What has passed over all that there were, and what of it is measured already.
    passed: LinkTraffic,
    measured: LinkTraffic,
    loss_alarm: LossAlarm,
    /// Of a peer in another region.
    capacity: Option<LinkCapacity>,
}

impl Peer {
    fn has_trouble(&mut self, lane: u16, why: String) {
        self.trouble.insert(lane, why);
        self.last_trouble = lane;
    }

    /// Control messages go over the same connection as before if it lives.
    fn choose(&mut self) {
        let ids = self.lanes.iter().map(|(lane, handle)| (*lane, handle.id)).collect();
        if let Some((over, turn)) = self.order.choose(&ids) {
            let chosen = self.lanes.values().filter(|handle| handle.id == over);
            chosen
                .for_each(|handle| handle.send_link_message(LinkMessage::ControlGeneration(turn)));
        }
    }

    /// The lane that control messages go over.
    fn control(&self) -> Option<&LaneHandle> {
        self.lanes.values().find(|handle| Some(handle.id) == self.order.over())
    }

    /// Why a lane is not up: the last thing heard of, if that lane is still not up.
    fn trouble(&self) -> Option<&String> {
        self.trouble.get(&self.last_trouble).or_else(|| self.trouble.values().next())
    }
}

/// What went with a lane.
pub(super) struct Lost {
    /// Whether it was the last one.
    pub all: bool,
    /// Whether messages of either side may be lost.
    pub messages: bool,
}

impl Peers {
    pub fn new(
        fabric: Arc<Fabric>,
        me: GatewayId,
        links: BTreeMap<GatewayId, Arc<PeerLink>>,
    ) -> Self {
        let peer = |link: Arc<PeerLink>| Peer {
            loss_alarm: LossAlarm::new(link.link.loss),
            capacity: fabric.link(link.link.a, link.link.b).cloned().map(LinkCapacity::new),
            link,
            boot: None,
            lanes: BTreeMap::new(),
            order: ControlChannel::default(),
            trouble: BTreeMap::new(),
            last_trouble: 0,
            strange: BTreeSet::new(),
            counted: BTreeMap::new(),
            passed: LinkTraffic::default(),
            measured: LinkTraffic::default(),
        };
        let peers = links.into_iter().map(|(id, link)| (id, peer(link))).collect();
        let routes = Routes::of(&fabric, me);
        Self { fabric, me, routes, plans: Mutex::default(), peers }
    }

    pub fn ids(&self) -> impl Iterator<Item = GatewayId> {
        self.peers.keys().copied()
    }

    /// Whether a hello shows that the peer was started anew since its lanes came up.
    pub fn restarted(&self, seen: PeerSeen) -> bool {
        let peer = self.peers.get(&seen.peer);
        peer.is_some_and(|peer| !peer.lanes.is_empty() && peer.boot != Some(seen.boot))
    }

    pub fn lanes_of(&self, peer: GatewayId) -> Vec<(u16, ConnectionId)> {
        let lanes = self.peers.get(&peer).into_iter().flat_map(|peer| &peer.lanes);
        lanes.map(|(lane, handle)| (*lane, handle.id)).collect()
    }

    pub fn connection_on(&self, peer: GatewayId, lane: u16) -> Option<ConnectionId> {
        Some(self.peers.get(&peer)?.lanes.get(&lane)?.id)
    }

    pub fn is_current(&self, peer: GatewayId, id: ConnectionId) -> bool {
        let peer = self.peers.get(&peer);
        peer.is_some_and(|peer| peer.lanes.values().any(|handle| handle.id == id))
    }

    /// A peer says that its control messages come over this connection from now on.
    pub fn turn(&mut self, from: GatewayId, id: ConnectionId, number: u64) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.order.hear(number, id);
        }
    }

    /// Whether a peer's control messages come over this connection.
    pub fn is_in_turn(&self, from: GatewayId, id: ConnectionId) -> bool {
        let in_turn = self.peers.get(&from).is_some_and(|peer| peer.order.is_heard(id));
        in_turn && self.is_current(from, id)
    }

    /// True when it is the peer's first lane.
    pub fn lane_up(&mut self, seen: PeerSeen, handle: LaneHandle) -> bool {
        let Some(peer) = self.peers.get_mut(&seen.peer) else { return false };
        let first = peer.lanes.is_empty();
        peer.boot = Some(seen.boot);
        peer.trouble.remove(&seen.lane);
        peer.lanes.insert(seen.lane, handle);
        peer.choose();
        first
    }

    /// `None` when the connection had been replaced.
    pub fn lane_down(
        &mut self,
        id: GatewayId,
        lane: u16,
        connection: ConnectionId,
        why: &str,
    ) -> Option<Lost> {
        let name = self.fabric.gateway(id).name.clone();
        let peer = self.peers.get_mut(&id)?;
        let Some(handle) = peer.lanes.get(&lane).filter(|handle| handle.id == connection) else {
            // Its thread may have pulled once more when the other had come already.
            peer.link.send_queue.requeue(connection);
            return None;
        };
        handle.close_replaced(why);
        peer.lanes.remove(&lane);
        let messages = peer.order.carries(connection);
        peer.choose();
        peer.has_trouble(lane, why.to_owned());
        let bytes = peer.link.send_queue.requeue(connection);
        if peer.lanes.is_empty() {
            peer.link.send_queue.clear();
        }
        warn!("lane {lane} to gateway {name} lost: {why}; {bytes} bytes to send again");
        Some(Lost { all: peer.lanes.is_empty(), messages })
    }

    pub fn dial_failed(&mut self, id: GatewayId, lane: u16, why: String) {
        let name = self.fabric.gateway(id).name.clone();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Each reason once a lane: dials go on for as long as the peer is away.
        if peer.trouble.get(&lane) != Some(&why) {
            info!("lane {lane} to gateway {name} is not up yet: {why}");
        }
        peer.has_trouble(lane, why);
    }

    pub fn accuse(&self, peer: GatewayId, id: ConnectionId, why: &str) {
        let lanes = self.peers.get(&peer).into_iter().flat_map(|peer| peer.lanes.values());
        lanes.filter(|handle| handle.id == id).for_each(|handle| handle.close_for_violation(why));
    }

    /// Closes a lane; returns how many others are up.
    pub fn lose(&self, peer: GatewayId, lane: u16) -> usize {
        let Some(peer) = self.peers.get(&peer) else { return 0 };
        if let Some(handle) = peer.lanes.get(&lane) {
            handle.close_replaced("lost on purpose");
        }
        peer.lanes.keys().filter(|other| **other != lane).count()
    }

    /// Tells a peer what an operator here holds a link to.
    pub fn say(&self, to: GatewayId, word: RateOverride) {
        if let Some(handle) = self.peers.get(&to).and_then(Peer::control) {
            handle.send_link_message(LinkMessage::Rate(word));
        }
    }

    /// Holds what goes to a peer to its part of a link's rate.
    pub fn hold(&self, peer: GatewayId, rate: BitRate) {
        if let Some(peer) = self.peers.get(&peer) {
            peer.link.pair_pacer.set_link_limit(rate);
        }
    }

    /// Control goes over one lane at a time, so that it arrives in order; to the neighbour that
    /// is nearer to the receiver, if there is no connection to itself.
    pub fn send(&self, envelope: Envelope, message: &Message) {
        let Some(next) = self.peers.get(&self.routes.next(envelope.to)) else { return };
        if let Some(handle) = next.control() {
            let bytes = handle.send(envelope, message);
            next.link.pair_pacer.pacer().charge(bytes);
            next.link.send_queue.charge(envelope.group, bytes);
        }
    }

    /// Says something to a peer of a group's.
    pub fn tell(&self, to: GatewayId, group: GroupId, message: &Message) {
        self.send(Envelope { group, from: self.me, to }, message);
    }

    /// Whether a neighbour may hand us this: its own word, or what it passes on of somebody to
    /// whom we have no connection; for us, or for somebody nearer to us than to it.
    pub fn may_pass_on(&self, neighbour: GatewayId, envelope: Envelope) -> bool {
        let Envelope { from, to, .. } = envelope;
        let known = |id: GatewayId| usize::from(id.0) < self.fabric.gateways().len();
        let of_its_own = from == neighbour;
        let of_others = known(from) && from != self.me && !self.routes.is_direct(from);
        let onward = known(to) && (to == self.me || self.routes.next(to) != neighbour);
        (of_its_own || of_others) && onward
    }

    pub fn push(
        &self,
        to: GatewayId,
        group: GroupId,
        (header, turn, tail): (SegmentHeader, Turn, Tail),
        payload: MemSlice,
    ) {
        if let Some(peer) = self.peers.get(&to) {
            let segment = NewSegment { group, header, turn, tail, payload };
            peer.link.send_queue.push(segment);
        }
    }

    pub fn receipted(&self, from: GatewayId, group: GroupId, key: SegmentKey) {
        if let Some(peer) = self.peers.get(&from) {
            peer.link.send_queue.receipt((group, key));
        }
    }

    /// Stops what is being sent of a collective; returns what fires once nobody writes it.
    pub fn cancel(&self, group: GroupId, sequence: Sequence) -> Vec<CancellationToken> {
        let peers = self.peers.values();
        peers.flat_map(|peer| peer.link.send_queue.cancel(group, sequence)).collect()
    }

    /// A peer speaks of a group that is not served here: said once.
    pub fn speaks_of_strange(&mut self, id: GatewayId, group: GroupId) {
        let name = self.fabric.gateway(id).name.clone();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.strange.len() < STRANGE_MAX && peer.strange.insert(group) {
            warn!(
                "gateway {name} serves a job (group {group}) that this region's file does not \
                 have; name the same jobs in every region"
            );
        }
    }

    pub fn look(&self, peer: GatewayId) -> PeerView {
        let Some(peer) = self.peers.get(&peer) else { return PeerView::default() };
        PeerView {
            lanes_up: u16::try_from(peer.lanes.len()).unwrap_or(u16::MAX),
            rtt: peer.lanes.values().next().map(LaneHandle::smoothed_rtt),
            trouble: peer.trouble().cloned(),
            sent_bytes: peer.link.metrics.sent_bytes.get(),
            received_bytes: peer.link.metrics.received_bytes.get(),
            lost_packets: peer.link.metrics.lost_packets.get(),
            loss: peer.loss_alarm.ratio(),
            loss_alarm: peer.loss_alarm.is_active(),
        }
    }

    /// Gives each pair its part of links and ports, where a job follows another plan.
    pub fn divide(&self, group: GroupId, plan: &Plan) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.insert(group, plan.clone());
        let rates = plan::pair_shares(plans.values(), &self.fabric);
        for (id, peer) in &self.peers {
            if let Some(rate) = rates.get(&(self.me, *id)) {
                peer.link.pair_pacer.set_share(*rate);
            }
        }
    }

    /// Looks at what passed over all lanes.
    pub fn look_at_links(&mut self, now: TimeNs) {
        for peer in self.peers.values_mut() {
            let mut least = None;
            for handle in peer.lanes.values() {
                let LaneMeasurement { traffic, min_rtt } = handle.measure();
                let before = peer.counted.insert(handle.id, traffic).unwrap_or_default();
                let passed = &mut peer.passed;
                passed.sent_packets += traffic.sent_packets.saturating_sub(before.sent_packets);
                passed.lost_packets += traffic.lost_packets.saturating_sub(before.lost_packets);
                let delivered = traffic.delivered_bytes.saturating_sub(before.delivered_bytes);
                passed.delivered_bytes += delivered;
                least = least.into_iter().chain(min_rtt).min();
            }
            peer.counted.retain(|id, _| peer.lanes.values().any(|lane| lane.id == *id));
            let pair_pacer = &peer.link.pair_pacer;
            if let Some(capacity) = &mut peer.capacity {
                capacity.observe(&Observation {
                    now,
                    traffic: peer.passed,
                    min_rtt: least,
                    share: pair_pacer.share(),
                    limit: pair_pacer.link_limit(),
                });
            }
        }
    }

    /// What the pairs of the link to a region find.
    pub fn estimates(&self, to: RegionId) -> impl Iterator<Item = &LinkCapacity> {
        let there = move |id: &GatewayId| self.fabric.gateway(*id).region == to;
        let peers = self.peers.iter().filter(move |(id, _)| there(id));
        peers.filter_map(|(_, peer)| peer.capacity.as_ref())
    }

    /// What the link to a peer is to be held to by what was found of it.
    pub fn holds(&self, peer: GatewayId) -> Option<BitRate> {
        self.peers.get(&peer)?.capacity.as_ref()?.limit()
    }

    /// Brings gauges up to date.
    pub fn measure(&mut self) {
        for (id, peer) in &mut self.peers {
            let metrics = &peer.link.metrics;
            let before = std::mem::replace(&mut peer.measured, peer.passed);
            let packets = PacketCounts {
                sent: peer.passed.sent_packets - before.sent_packets,
                lost: peer.passed.lost_packets - before.lost_packets,
            };
            metrics.lost_packets.inc_by(packets.lost);
            let change = peer.loss_alarm.sample(packets);
            metrics.loss_ratio.set(peer.loss_alarm.ratio());
            if let Some(change) = change {
                tell_loss(&self.fabric.gateway(*id).name, &peer.link, &peer.loss_alarm, change);
            }
            let metrics = &peer.link.metrics;
            metrics.lanes_up.set(i64::try_from(peer.lanes.len()).unwrap_or(i64::MAX));
            if let Some(rtt) = peer.lanes.values().map(LaneHandle::smoothed_rtt).min() {
                metrics.rtt_seconds.set(rtt.as_secs_f64());
            }
        }
    }
}

fn tell_loss(name: &str, link: &PeerLink, alarm: &LossAlarm, change: AlarmChange) {
    let (PacketCounts { sent, lost }, expected) = (alarm.packets(), link.link.loss);
    let percent = alarm.ratio() * 100.0;
    link.metrics.loss_alarm.set(i64::from(change == AlarmChange::Begun));
    match change {
        AlarmChange::Begun => {
            link.metrics.loss_alarms.inc();
            warn!(
                "the way to gateway {name} loses {percent:.3} % ({lost} of {sent} packets), the \
                 fabric expects {expected}; ask whoever runs the link, or give it less with \
                 `landbridge rate`"
            );
        }
        AlarmChange::Ended => info!(
            "the way to gateway {name} loses no more than the fabric expects again: \
             {percent:.3} % ({lost} of {sent} packets)"
        ),
    }
}
