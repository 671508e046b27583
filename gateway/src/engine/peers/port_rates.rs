//! The rates of ports for each pair of gateways: by plans, and by what moves now.
//!
//! The operations of all ranks of a job load pairs of gateways as their plan says, which every gateway
//! knows. So each sender takes its share of both ports from the plan. A group, or a send, is known to
//! its gateways alone. While such operations move, each gateway divides its own port by all that it
//! sends and receives, and tells each sender what its port leaves it:
//!
//! ```text
//! rate of a pair = min(what the sender's port leaves it, what the receiver's port leaves it, its link)
//!                      by what moves there               told by the receiver
//!                      by plans, where nothing is known  by plans, until the receiver tells more
//! ```

use super::port_flows::PortFlows;
use super::{Peer, Peers};
use crate::lock::lock_ignoring_poison;
use crate::wan::link::link_message::{LinkMessage, LinkPortRateMessage};
use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::{self, PayloadFlows};
use units::BitRate;

/// 16: a sender is told a higher rate if it is above the one that it knows by over a sixteenth. The
/// number is chosen.
const TOLD_INCREASE_DIVISOR: u64 = 16;

/// 128: a sender is told a lower rate if it is below the one that it knows by over a 128th, since others
/// have that part of the port. The number is chosen.
const TOLD_DECREASE_DIVISOR: u64 = 128;

impl Peers {
    /// Divides the rates of links and ports among the pairs of gateways. A job calls it when it follows
    /// a new plan or has other operations under way, which send bytes in proportion to `flows`.
    pub fn divide_port_rates(&self, job: GroupId, flows: PayloadFlows) {
        let mut all = lock_ignoring_poison(&self.flows);
        if all.jobs.get(&job) != Some(&flows) {
            all.jobs.insert(job, flows);
            all.planned = plan::pair_shares(all.jobs.values(), &self.fabric);
            self.apply_port_rates(&mut all);
        }
    }

    /// Divides the rates of links and ports by another fabric than before.
    pub(super) fn divide_port_rates_anew(&self) {
        let mut all = lock_ignoring_poison(&self.flows);
        all.planned = plan::pair_shares(all.jobs.values(), &self.fabric);
        self.apply_port_rates(&mut all);
    }

    /// Notes the bytes that large operations of a job, of a group or of a pair of ranks send between
    /// gateways now; none once they have ended.
    pub fn note_moving_flows(&self, group: GroupId, flows: PayloadFlows) {
        let mut all = lock_ignoring_poison(&self.flows);
        let before = match flows.is_empty() {
            true => all.moving.remove(&group),
            false => all.moving.insert(group, flows.clone()),
        };
        if before.unwrap_or_default() != flows {
            self.apply_port_rates(&mut all);
        }
    }

    /// Forgets the operations of a job that this gateway serves no more.
    pub fn forget_job_flows(&self, job: GroupId) {
        let mut all = lock_ignoring_poison(&self.flows);
        all.moving.remove(&job);
        if all.jobs.remove(&job).is_some() {
            all.planned = plan::pair_shares(all.jobs.values(), &self.fabric);
            self.apply_port_rates(&mut all);
        }
    }

    /// Notes the rate that a peer's port leaves this gateway.
    pub fn handle_port_rate(&self, from: GatewayId, told: LinkPortRateMessage) {
        let mut all = lock_ignoring_poison(&self.flows);
        if all.heard.get(&from).is_none_or(|known| known.number < told.number) {
            all.heard.insert(from, told);
            self.apply_port_rates(&mut all);
        }
    }

    /// Forgets what a peer told before its connection was lost.
    pub fn forget_port_rate(&self, of: GatewayId) {
        let mut all = lock_ignoring_poison(&self.flows);
        if all.heard.remove(&of).is_some() {
            self.apply_port_rates(&mut all);
        }
    }

    /// Repeats the rate that this gateway's port leaves a peer.
    pub fn repeat_port_rate(&self, to: GatewayId) {
        let all = lock_ignoring_poison(&self.flows);
        if let Some(told) = all.told.get(&to) {
            self.send_port_rate(to, *told);
        }
    }

    /// Sets the pacers of all pairs, and tells senders what this gateway's port leaves them.
    fn apply_port_rates(&self, all: &mut PortFlows) {
        let rates = all.moving_rates(&self.fabric, self.me);
        for (id, peer) in &self.peers {
            if let Some(share) = all.planned.get(&(self.me, *id)) {
                let heard = all.heard.get(id).and_then(|told| told.rate);
                let egress = rates.egress.get(id).copied();
                peer.link.pair_pacer.set_share(share.with_ports(egress, heard));
            }
            let rate = rates.ingress.get(id).copied();
            let known = all.told.get(id).copied();
            let is_news = match (known.and_then(|told| told.rate), rate) {
                (Some(known), Some(rate)) => differs(rate, known),
                (known, rate) => known.is_some() != rate.is_some(),
            };
            if is_news {
                let number = known.map_or(0, |told| told.number) + 1;
                let told = LinkPortRateMessage { number, rate };
                all.told.insert(*id, told);
                self.send_port_rate(*id, told);
            }
        }
    }

    /// Sends a peer the rate that this gateway's port leaves it, if a lane is up.
    fn send_port_rate(&self, to: GatewayId, told: LinkPortRateMessage) {
        if let Some(handle) = self.peers.get(&to).and_then(Peer::control_lane) {
            handle.send_link_message(&LinkMessage::PortRate(told));
        }
    }
}

/// Whether a sender that knows the rate `known` is to be told another one.
fn differs(rate: BitRate, known: BitRate) -> bool {
    let (rate, known) = (rate.bits_per_second(), known.bits_per_second());
    let divisor = if rate < known { TOLD_DECREASE_DIVISOR } else { TOLD_INCREASE_DIVISOR };
    rate.abs_diff(known) > known / divisor
}
