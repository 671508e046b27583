//! Control messages: this gateway's own, and those that it forwards.
//!
//! A message goes over one lane of the next hop, so that messages arrive in order. Where a
//! connection or a lane is lost, the sessions repeat what may be lost.

use crate::engine::peers::Peers;
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::wire::{Envelope, Message};

impl Peers {
    /// Sends a control message of one of this gateway's jobs. Where no route leads, it is dropped:
    /// the session repeats it once one does.
    pub fn send_job_message(&self, to: GatewayId, job: GroupId, message: &Message) {
        self.send_group_message(to, (job, job), message);
    }

    /// Sends gateway `to` a control message of `group` of `job`; of the job itself where the two
    /// are equal. Without a route to the gateway nothing is sent.
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

    /// Forwards a message to its recipient, with one hop less to go. Returns false if the message
    /// is dropped: no route leads there, or the shortest takes more hops than are left. So each
    /// message comes nearer with each hop.
    pub fn forward_message(&self, envelope: Envelope, message: &Message) -> bool {
        let hops = envelope.hops.saturating_sub(1);
        let route = self.connections.routes().hops(envelope.to);
        route.is_some_and(|needed| needed <= hops)
            && self.send_message(Envelope { hops, ..envelope }, envelope.group, message)
    }

    /// Sends a control message to the next hop on the route to its recipient, if a lane is up. The
    /// bytes are charged to `job` and to the pacer. Returns whether the message was sent.
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
