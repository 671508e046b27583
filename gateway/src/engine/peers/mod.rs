//! The other gateways, and the lanes to them.
//!
//! The event loop reports lanes that come up and go down. Jobs send control messages and segments
//! through here. `traffic` samples the lanes' counters and limits the rates, `paths` has the paths
//! to peers with missing lanes checked. `lanes` opens lanes and takes them away as their number
//! changes. `connections` tells other gateways which peers have lanes, and
//! selects those for control messages, which `messages` sends and forwards. `port_rates` divides ports
//! among pairs.

mod connections;
mod lane_tally;
mod lanes;
mod link_estimates;
mod messages;
mod path_state;
mod paths;
mod port_flows;
mod port_rates;
mod traffic;

use super::control_channel::ControlChannel;
use crate::events::ConnectionId;
use crate::memory::mem_slice::MemSlice;
use crate::observe::status::SharedLanesReport;
use crate::wan::link::lane_number::LaneNumber;
use crate::wan::link::link_message::{LinkMessage, LinkRateOverrideMessage};
use crate::wan::link::link_traffic::LinkTraffic;
use crate::wan::link::rtt_alarm::RttAlarm;
use crate::wan::stream::segment_queue::NewSegment;
use crate::wan::{LaneHandle, LanePeerSeen, PeerLink};
use congestion_model::LossCounts;
use hier_collectives::ids::{BootId, GatewayId, GroupId, Sequence};
use hier_collectives::mesh::MeshTable;
use hier_collectives::session::SegmentPriority;
use hier_collectives::tail_fec::TailParity;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{SegmentHeader, SegmentKey, WireVersion};
use lane_tally::LaneTally;
use link_estimates::LinkEstimates;
use path_state::PathState;
use port_flows::PortFlows;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;
use tracing::info;
use units::{BitRate, Span};

/// The state of a peer and its lanes, for the status.
#[derive(Debug, Default)]
pub(super) struct PeerView {
    /// The version of the messages with the peer; `None` while no lane is up.
    pub version: Option<WireVersion>,
    /// Lanes in use that are up.
    pub lanes_up: u16,
    /// Lanes in use.
    pub lanes: u16,
    /// The most lanes that there may be.
    pub lanes_most: u16,
    /// The reason for the number of lanes in use.
    pub lanes_reason: &'static str,
    pub rtt: Option<Span>,
    /// The reason why lanes are missing, as far as known.
    pub problem: Option<String>,
    /// The action that makes missing lanes come up, if the check of the path told one.
    pub remedy: Option<String>,
    /// Ports that did not answer in the last check of the path.
    pub silent_ports: Vec<u16>,
    /// The longest IP packet in bytes that got through in the last check of the path.
    pub path_mtu: Option<u16>,
    /// The longest IP packet in bytes that all lanes send now.
    pub mtu: Option<u16>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Packets declared lost on all lanes since the start.
    pub lost_packets: u64,
    /// Measured loss, from 0 to 1.
    pub loss: f64,
    pub loss_alarm: bool,
    /// The RTT, where it is longer than the fabric says.
    pub long_rtt: Option<Span>,
    /// How long no lane has had an acknowledgement of bytes in flight.
    pub silence: Span,
    pub shared: Option<SharedLanesReport>,
}

/// The other gateways that this one has connections to, and the connections of all gateways.
pub(crate) struct Peers {
    fabric: Arc<Fabric>,
    me: GatewayId,
    connections: MeshTable,
    /// The bytes that gateways send each other, for the division of links and ports.
    flows: Mutex<PortFlows>,
    peers: BTreeMap<GatewayId, Peer>,
}

struct Peer {
    link: Arc<PeerLink>,
    boot: Option<BootId>,
    /// The version of the messages, of the last hello.
    version: Option<WireVersion>,
    lanes: BTreeMap<u16, LaneHandle>,
    /// The lanes on which this gateway sends nothing more, until they are closed.
    finished: BTreeMap<ConnectionId, LaneHandle>,
    /// The connections among `lanes` on which the peer sends nothing more.
    ending: BTreeSet<ConnectionId>,
    /// How many lanes pay.
    number: LaneNumber,
    /// The number of the last wish for lanes that the peer was told.
    wish_told: u64,
    control: ControlChannel,
    /// The last reason why each lane was lost or could not be dialled, until it is up.
    problems: BTreeMap<u16, LaneProblem>,
    /// The lane of the newest problem.
    last_problem_lane: u16,
    /// Checks of the path, while lanes are missing.
    path: PathState,
    /// Measurements of each lane's connection at the last sample; at first those of its handshake.
    /// Handshakes that nobody answered are no loss of the link: the peer had not started.
    tallies: BTreeMap<ConnectionId, LaneTally>,
    /// Sum of all connections so far, and the part of it that the gauges have seen.
    total: LinkTraffic,
    total_in_gauges: LinkTraffic,
    /// Bytes of UDP payload received on all connections so far.
    received_total: u64,
    /// Bytes lost on a shared link so far, by kind.
    losses: LossCounts,
    /// The rate limit of the link without its measured capacity.
    promised: BitRate,
    estimates: LinkEstimates,
}

/// The reason why a lane is not up.
#[derive(Debug, PartialEq, Eq)]
struct LaneProblem {
    why: String,
    /// Whether the peer did not answer or the lane was lost, so that a check of the path may say
    /// more.
    is_unanswered: bool,
}

impl Peers {
    /// Makes the table of all peers, none of which has a lane yet.
    pub fn new(
        fabric: Arc<Fabric>,
        me: GatewayId,
        links: BTreeMap<GatewayId, Arc<PeerLink>>,
    ) -> Self {
        let peer = |link: Arc<PeerLink>| Peer {
            estimates: LinkEstimates::new(&fabric, &link),
            path: PathState::new(link.link().rtt),
            number: LaneNumber::new(link.lane_terms),
            promised: link.pair_pacer.link_limit(),
            link,
            boot: None,
            version: None,
            lanes: BTreeMap::new(),
            finished: BTreeMap::new(),
            ending: BTreeSet::new(),
            wish_told: 0,
            control: ControlChannel::default(),
            problems: BTreeMap::new(),
            last_problem_lane: 0,
            tallies: BTreeMap::new(),
            total: LinkTraffic::default(),
            total_in_gauges: LinkTraffic::default(),
            received_total: 0,
            losses: LossCounts::default(),
        };
        let peers = links.into_iter().map(|(id, link)| (id, peer(link))).collect();
        let connections = MeshTable::new(Arc::clone(&fabric), me);
        Self { fabric, me, connections, flows: Mutex::default(), peers }
    }

    /// Takes over the links of another fabric, which has the same gateways: rates, shares and windows
    /// follow, and what was measured is measured anew.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>) {
        for peer in self.peers.values_mut() {
            peer.link.replace_link(&fabric, self.me);
            peer.estimates = LinkEstimates::new(&fabric, &peer.link);
            peer.promised = peer.link.pair_pacer.link_limit();
            peer.link.metrics.loss_alarm.set(0);
        }
        self.connections.replace_fabric(Arc::clone(&fabric));
        self.fabric = fabric;
        self.divide_port_rates_anew();
    }

    /// Iterates over the ids of the gateways that this one may have lanes to.
    pub fn peer_ids(&self) -> impl Iterator<Item = GatewayId> {
        self.peers.keys().copied()
    }

    /// Returns whether a hello shows that the peer restarted since its lanes came up.
    pub fn has_restarted(&self, seen: LanePeerSeen) -> bool {
        let peer = self.peers.get(&seen.peer);
        peer.is_some_and(|peer| !peer.lanes.is_empty() && peer.boot != Some(seen.boot))
    }

    /// Records that a peer's control messages use this connection from now on, unless a later
    /// `generation` is known.
    pub fn handle_generation(&mut self, from: GatewayId, id: ConnectionId, generation: u64) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.control.handle_generation(generation, id);
        }
    }

    /// Records why a lane could not be dialled, and logs a new reason. `is_unanswered` means that
    /// nothing was heard of the peer.
    pub fn handle_dial_failed(
        &mut self,
        id: GatewayId,
        lane: u16,
        why: String,
        is_unanswered: bool,
    ) {
        let [name, region] = self.peer_names(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Dials go on while the peer is away, so each lane logs a reason only once.
        let problem = LaneProblem { why, is_unanswered };
        if peer.problems.get(&lane) != Some(&problem) && lane < peer.number.in_use() {
            info!(
                peer = %name,
                region = %region,
                lane,
                "lane {lane} to gateway {name} is not up yet: {}",
                problem.why
            );
        }
        peer.note_lane_problem(lane, problem);
    }

    /// Returns the names of a gateway and of its region, for the log.
    fn peer_names(&self, id: GatewayId) -> [String; 2] {
        let gateway = self.fabric.gateway(id);
        [gateway.name.clone(), self.fabric.region(gateway.region).name.clone()]
    }

    /// Closes a lane's connection whose peer broke the protocol; the peer gets the reason `why`.
    pub fn close_for_violation(&self, peer: GatewayId, id: ConnectionId, why: &str) {
        let lanes = self.peers.get(&peer).into_iter().flat_map(Peer::all_lanes);
        lanes.filter(|handle| handle.id == id).for_each(|handle| handle.close_for_violation(why));
    }

    /// Sends a peer the limit that an operator here has set on a link.
    pub fn send_rate_override(&self, to: GatewayId, message: LinkRateOverrideMessage) {
        if let Some(handle) = self.peers.get(&to).and_then(Peer::control_lane) {
            handle.send_link_message(&LinkMessage::Rate(message));
        }
    }

    /// Queues a segment in the send queue of a peer, from which the peer's lanes pull.
    pub fn queue_segment(
        &self,
        to: GatewayId,
        (job, group): (GroupId, GroupId),
        (header, priority, tail): (SegmentHeader, SegmentPriority, TailParity),
        payload: MemSlice,
    ) {
        if let Some(peer) = self.peers.get(&to) {
            let segment = NewSegment { job, group, header, priority, tail, payload };
            peer.link.send_queue.push(segment);
        }
    }

    /// Records that a peer has a whole segment, which is not requeued after a lost lane then.
    pub fn handle_receipt(&self, from: GatewayId, group: GroupId, key: SegmentKey) {
        if let Some(peer) = self.peers.get(&from) {
            peer.link.send_queue.handle_receipt((group, key));
        }
    }

    /// Stops sending a collective's segments; returns tokens that fire when no lane writes them.
    pub fn cancel_segments(&self, group: GroupId, sequence: Sequence) -> Vec<CancellationToken> {
        let peers = self.peers.values();
        peers.flat_map(|peer| peer.link.send_queue.cancel_collective(group, sequence)).collect()
    }

    /// Returns the state of a peer's lanes for the status.
    pub fn peer_view(&self, peer: GatewayId) -> PeerView {
        let Some(peer) = self.peers.get(&peer) else { return PeerView::default() };
        PeerView {
            version: peer.version.filter(|_| !peer.lanes.is_empty()),
            lanes_up: peer.lanes_up(),
            lanes: peer.number.in_use(),
            lanes_most: peer.link.lane_terms.most,
            lanes_reason: peer.number.reason().text(),
            rtt: peer.lanes.values().next().map(LaneHandle::smoothed_rtt),
            problem: peer.shown_path_problem(),
            remedy: peer.shown_path_remedy(),
            silent_ports: peer.path.silent_ports(),
            path_mtu: peer.path.mtu(),
            mtu: peer.lanes.values().map(LaneHandle::mtu).min(),
            sent_bytes: peer.link.metrics.sent_bytes.get(),
            received_bytes: peer.link.metrics.received_bytes.get(),
            lost_packets: peer.link.metrics.lost_packets.get(),
            loss: peer.estimates.loss_alarm.loss_ratio(),
            loss_alarm: peer.estimates.loss_alarm.is_active(),
            long_rtt: peer.estimates.rtt_alarm.as_ref().and_then(RttAlarm::long_rtt),
            silence: peer.silence_of_all_lanes(),
            shared: peer.shared_traffic_report(),
        }
    }
}
