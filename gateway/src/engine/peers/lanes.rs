//! The lanes to each peer: which of them are up, and why others are not.
//!
//! Lanes are opened and taken away as [`LaneNumber`](crate::wan::link::lane_number) decides.
//!
//! The dialler's tasks follow the number in use. A lane beyond it, or one that the peer has ended,
//! is taken away in steps, and nothing is lost or sent twice:
//!
//! ```text
//! UP -- not in use, or ended by the peer --> RETIRING: pulls no segment, reads on
//!    <-- in use again --------------------     |
//!                                              | all its segments are receipted, other lanes are heard
//!                                              v
//! closed <-- both ends have finished -- FINISHED: no control message either; reads on
//! ```

use super::lane_tally::LaneTally;
use super::{LaneProblem, Peer, Peers};
use crate::events::ConnectionId;
use crate::wan::connect::liveness::liveness_dead_path_time;
use crate::wan::link::lane_number::LaneSample;
use crate::wan::link::link_message::{LinkLaneWishMessage, LinkMessage};
use crate::wan::{LaneHandle, LanePeerSeen};
use hier_collectives::ids::GatewayId;
use tracing::info;
use units::{ByteCount, Span, TimeNs};

impl Peers {
    /// Records how many lanes a peer wants, which decides with this gateway's wish how many are in
    /// use.
    pub fn handle_lane_wish(&mut self, from: GatewayId, wish: LinkLaneWishMessage) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.number.note_wish(wish);
        }
    }

    /// Tells a peer how many lanes this gateway wants.
    pub fn send_lane_wish(&mut self, to: GatewayId) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.tell_lane_wish();
        }
    }

    /// Records that a peer sends nothing more on a lane, which then may be closed.
    pub fn handle_lane_finished(&mut self, from: GatewayId, id: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(&from)
            && peer.lanes.values().any(|handle| handle.id == id)
        {
            peer.ending.insert(id);
        }
    }

    /// Brings the lanes to each peer towards the number in use. Returns the peers whose control
    /// messages have moved to another lane, so that some may be lost.
    pub fn follow_lane_numbers(&mut self, now: TimeNs) -> Vec<GatewayId> {
        let mut moved = Vec::new();
        for (id, peer) in &mut self.peers {
            let (before, in_use) = (peer.link.lanes_in_use(), peer.number.in_use());
            if before != in_use {
                peer.link.set_lanes_in_use(in_use);
                peer.problems.retain(|lane, _| *lane < in_use);
                let (name, why) = (&self.fabric.gateway(*id).name, peer.number.reason().text());
                info!("lanes to gateway {name}: {in_use} in place of {before}; {why}");
            }
            peer.link.set_lanes_up(peer.lanes_up());
            if peer.wish_told != peer.number.wish().number {
                peer.tell_lane_wish();
            }
            if peer.retire_lanes() {
                moved.push(*id);
            }
        }
        for id in &moved {
            self.connections.send_all_to(*id);
            self.connections.handle_messages_lost(now);
        }
        moved
    }

    /// Returns whether a lane to any peer is being tried, or waits to be taken away.
    pub fn are_lanes_changing(&self) -> bool {
        self.peers.values().any(Peer::are_lanes_changing)
    }

    /// Adds a lane. Returns true if the peer had no lane up before.
    pub fn handle_lane_up(&mut self, seen: LanePeerSeen, handle: LaneHandle, now: TimeNs) -> bool {
        let Some(peer) = self.peers.get_mut(&seen.peer) else { return false };
        let first = peer.lanes.is_empty();
        peer.boot = Some(seen.boot);
        peer.version = Some(seen.version);
        peer.problems.remove(&seen.lane);
        peer.tallies.insert(handle.id, LaneTally::begin(&handle));
        peer.lanes.insert(seen.lane, handle);
        peer.select_control_connection();
        if first {
            peer.number.forget_wishes();
            self.connections.handle_up(seen.peer, now);
        }
        first
    }

    /// Removes a lane and requeues its segments. Returns `None` if its connection was replaced, or
    /// if the lane was taken away on purpose.
    pub fn handle_lane_down(
        &mut self,
        id: GatewayId,
        lane: u16,
        connection: ConnectionId,
        why: &str,
        now: TimeNs,
    ) -> Option<LostLane> {
        let [name, region] = self.peer_names(id);
        let peer = self.peers.get_mut(&id)?;
        peer.ending.remove(&connection);
        if peer.finished.remove(&connection).is_some() {
            peer.link.send_queue.requeue_connection(connection);
            info!("lane {lane} to gateway {name} is taken away");
            return None;
        }
        let Some(handle) = peer.lanes.get(&lane).filter(|handle| handle.id == connection) else {
            // The lane's thread may have pulled once more after the new connection came up.
            peer.link.send_queue.requeue_connection(connection);
            return None;
        };
        handle.close_replaced(why);
        peer.lanes.remove(&lane);
        let control_messages = peer.control.uses_connection(connection);
        peer.select_control_connection();
        peer.note_lane_problem(lane, LaneProblem { why: why.to_owned(), is_unanswered: true });
        let bytes = peer.link.send_queue.requeue_connection(connection);
        if peer.lanes.is_empty() {
            peer.link.send_queue.clear();
            // The connection is over, and what the peer still sends is of no use.
            peer.finished.values().for_each(|handle| handle.close_replaced(why));
        }
        // Lanes come back by themselves; the health of the gateway warns of those that stay away.
        info!(
            peer = %name,
            region = %region,
            lane,
            "lane {lane} to gateway {name} lost: {why}; {} requeued",
            ByteCount::new(bytes).rounded()
        );
        let last_lane = peer.lanes.is_empty();
        if last_lane {
            self.connections.handle_down(id, peer.link.liveness.has_ended_silent(now), now);
        } else if control_messages {
            self.connections.send_all_to(id);
            self.connections.handle_messages_lost(now);
        }
        Some(LostLane { last_lane, control_messages })
    }

    /// Records why a lane that a peer dialled was refused, unless another connection of it is up.
    pub fn handle_lane_refused(&mut self, id: GatewayId, lane: u16, why: String) {
        if let Some(peer) = self.peers.get_mut(&id)
            && !peer.lanes.contains_key(&lane)
        {
            peer.note_lane_problem(lane, LaneProblem { why, is_unanswered: false });
        }
    }

    /// Returns how long each peer has acknowledged nothing on any lane, zero for one that is heard.
    pub fn silences(&self) -> Vec<(GatewayId, Span)> {
        self.peers.iter().map(|(id, peer)| (*id, peer.silence_of_all_lanes())).collect()
    }

    /// Closes a lane on request of a simulation; returns the number of other lanes that are up.
    pub fn close_lane(&self, peer: GatewayId, lane: u16) -> usize {
        let Some(peer) = self.peers.get(&peer) else { return 0 };
        if let Some(handle) = peer.lanes.get(&lane) {
            handle.close_replaced("lost on purpose");
        }
        peer.lanes.keys().filter(|other| **other != lane).count()
    }
}

impl Peer {
    /// Stores the reason why a lane is not up, for the status. A lane beyond those in use is
    /// ignored.
    pub(super) fn note_lane_problem(&mut self, lane: u16, problem: LaneProblem) {
        if lane < self.number.in_use() {
            self.problems.insert(lane, problem);
            self.last_problem_lane = lane;
        }
    }

    /// Returns the number of lanes in use that are up.
    pub(super) fn lanes_up(&self) -> u16 {
        let up = self.lanes.range(..self.number.in_use()).count();
        u16::try_from(up).unwrap_or(u16::MAX)
    }

    /// Iterates over the lanes that are up, also those that are being taken away.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = &LaneHandle> {
        self.lanes.values().chain(self.finished.values())
    }

    /// Returns why the lane that failed last is not up; if it is up again, the reason of the
    /// lowest-numbered lane that is not. `None` when no lane has a problem.
    pub(super) fn lane_problem(&self) -> Option<&LaneProblem> {
        self.problems.get(&self.last_problem_lane).or_else(|| self.problems.values().next())
    }

    /// Tells the peer how many lanes this gateway wants, if a lane is up.
    fn tell_lane_wish(&mut self) {
        let wish = self.number.wish();
        if let Some(handle) = self.control_lane() {
            handle.send_link_message(&LinkMessage::Lanes(wish));
            self.wish_told = wish.number;
        }
    }

    /// Ends lanes that are not in use, or that the peer has ended, one step further. Returns
    /// whether the control messages to the peer have moved to another lane.
    fn retire_lanes(&mut self) -> bool {
        let kept = self.lanes.iter().filter(|(lane, handle)| self.is_lane_kept(**lane, handle.id));
        let kept: Vec<&LaneHandle> = kept.map(|(_, handle)| handle).collect();
        let has_others = !kept.is_empty();
        let others_heard = has_others && kept.iter().all(|handle| self.is_lane_heard(handle));
        let queue = &self.link.send_queue;
        let mut done = Vec::new();
        for (lane, handle) in &self.lanes {
            let is_retiring = has_others && !self.is_lane_kept(*lane, handle.id);
            queue.set_retiring(handle.id, is_retiring);
            if is_retiring && others_heard && !queue.has_pulled(handle.id) {
                done.push(*lane);
            }
        }
        let mut has_moved = false;
        for lane in &done {
            let Some(handle) = self.lanes.remove(lane) else { continue };
            has_moved |= self.control.outgoing_connection() == Some(handle.id);
            handle.finish_control();
            self.ending.remove(&handle.id);
            self.finished.insert(handle.id, handle);
        }
        if !done.is_empty() {
            self.select_control_connection();
        }
        has_moved
    }

    /// Returns whether a lane is in use, and the peer has not ended it.
    fn is_lane_kept(&self, lane: u16, id: ConnectionId) -> bool {
        lane < self.number.in_use() && !self.ending.contains(&id)
    }

    /// Returns whether a lane is being tried, or waits to be taken away.
    fn are_lanes_changing(&self) -> bool {
        let kept = self.lanes.iter().filter(|(lane, handle)| self.is_lane_kept(**lane, handle.id));
        // Where none is kept, the others stay until one is.
        let has_retiring = (1..self.lanes.len()).contains(&kept.count());
        has_retiring || self.number.is_trying()
    }

    /// Returns whether a lane has been silent for less than the time after which its path counts as
    /// dead.
    fn is_lane_heard(&self, handle: &LaneHandle) -> bool {
        self.lane_silence(handle) < self.lane_dead_path_time(handle)
    }

    /// Returns how long no lane has been heard by now; zero without a lane.
    pub(super) fn silence_of_all_lanes(&self) -> Span {
        self.lanes.values().map(|handle| self.lane_silence(handle)).min().unwrap_or_default()
    }

    /// Returns how long a lane has been silent by now, zero if it is heard.
    fn lane_silence(&self, handle: &LaneHandle) -> Span {
        self.tallies.get(&handle.id).map_or(Span::ZERO, |tally| tally.silence)
    }

    /// Returns the silence after which the path of a lane counts as dead.
    fn lane_dead_path_time(&self, handle: &LaneHandle) -> Span {
        liveness_dead_path_time(handle.smoothed_rtt(), self.link.link().rtt)
    }

    /// Hands the state of the lanes at `now` to the peer's lane number, which may change how many
    /// are in use. `idle_time` is the idle time of the machine's cores so far.
    pub(super) fn judge_lanes(&mut self, now: TimeNs, idle_time: Option<Span>) {
        let in_use = self.number.in_use();
        let least_silent = self.lanes.values().min_by_key(|handle| self.lane_silence(handle));
        let (silence, dead_path_time) = least_silent.map_or((Span::ZERO, Span::ZERO), |handle| {
            (self.lane_silence(handle), self.lane_dead_path_time(handle))
        });
        let last = in_use.saturating_sub(1);
        let lower_heard =
            self.lanes.range(..last).filter(|(_, handle)| self.is_lane_heard(handle)).count();
        let busy = self.lanes.values().filter_map(|handle| self.tallies.get(&handle.id));
        let sample = LaneSample {
            now,
            waiting: self.link.send_queue.has_waiting(),
            carried_bytes: self.total.delivered_bytes + self.received_total,
            delivered_bytes: self.total.delivered_bytes,
            promised_rate: self.link.promised_rate(self.promised),
            busiest: busy.map(|tally| tally.busy).fold(0.0, f64::max),
            idle_time,
            is_connected: !self.lanes.is_empty(),
            up: self.lanes_up(),
            lower_heard: u16::try_from(lower_heard).unwrap_or(u16::MAX),
            last_up: self.lanes.contains_key(&last),
            silence,
            dead_path_time,
        };
        let was_trying = self.number.is_trying_path();
        self.number.note_sample(&sample);
        if !was_trying
            && self.number.is_trying_path()
            && let Some(capacity) = &mut self.estimates.capacity
        {
            capacity.probe_soon();
        }
    }

    /// Returns the lane whose connection carries control messages to the peer; `None` while no lane
    /// is up.
    pub(super) fn control_lane(&self) -> Option<&LaneHandle> {
        self.lanes.values().find(|handle| Some(handle.id) == self.control.outgoing_connection())
    }
}

/// The consequences of a lost lane.
pub(crate) struct LostLane {
    /// Whether it was the last lane to the peer.
    pub last_lane: bool,
    /// Whether control messages of either side may be lost.
    pub control_messages: bool,
}
