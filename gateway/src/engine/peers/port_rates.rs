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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use crate::observe::metrics::{MetricsRegistry, PeerPlace};
    use crate::wan::connect::lane_addresses::LaneAddresses;
    use crate::wan::link::controller_policy::ControllerPolicy;
    use crate::wan::link::lane_number::{LaneNumberReason, LaneNumberTerms};
    use crate::wan::link_trace::LinkTrace;
    use crate::wan::pacing::pair_pacer::PairPacer;
    use crate::wan::stream::packet_train::PacketTrains;
    use crate::wan::stream::segment_queue::SendQueue;
    use crate::wan::{PeerLink, PeerLiveness};
    use hier_collectives::plan::PairShare;
    use hier_collectives::topology::{
        Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, Patience, WanPort,
    };
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::num::NonZeroU16;
    use std::sync::{Arc, Mutex};
    use tokio::sync::watch;
    use units::{Fraction, Span};
    use wan_sim::VirtualNet;

    const A: GatewayId = GatewayId(0);
    const B: GatewayId = GatewayId(1);
    const C: GatewayId = GatewayId(2);

    fn mbit(rate: u64) -> BitRate {
        BitRate::from_bits_per_second(rate * 1_000_000)
    }

    /// Three regions with a gateway each and ports of 600 Mbit/s, all linked.
    fn fabric() -> Fabric {
        let wan = Some(WanPort { egress: mbit(600), ingress: mbit(600) });
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
        };
        let link = |one: &str, other: &str| FabricLinkSpec {
            between: (one.to_owned(), other.to_owned()),
            rate: mbit(600),
            rtt: Span::from_ms(20),
            loss: Fraction::default(),
        };
        let links = vec![link("a", "b"), link("a", "c"), link("b", "c")];
        Fabric::new("three", 1500, ["a", "b", "c"].map(region).to_vec(), links).expect("valid")
    }

    /// Returns the link of the first gateway to a peer, which has no lane yet.
    fn link_to(fabric: &Fabric, peer: GatewayId) -> PeerLink {
        let regions = [A, peer].map(|id| fabric.gateway(id).region);
        let link = fabric.link(regions[0], regions[1]).expect("linked").clone();
        let host = Arc::new(VirtualHost::new(VirtualNet::new(), 1));
        let least_reason = LaneNumberReason::Pinned;
        let lane_terms =
            LaneNumberTerms { least: 1, least_reason, most: 1, dials: true, rtt: link.rtt };
        let place = PeerPlace { gateway: "peer", region: "peer", link: "a-peer" };
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7400);
        let share = PairShare::unshared(link.rate);
        PeerLink {
            id: peer,
            addresses: None,
            local: LaneAddresses::from_addresses(&[address]).expect("one"),
            pinned_mtu: Some(1500),
            pair_pacer: PairPacer::new(host, share, &link, 1500, NonZeroU16::MIN),
            link: Mutex::new(link),
            send_queue: SendQueue::new(BTreeMap::new()),
            controller: ControllerPolicy::default(),
            memory: Arc::default(),
            trains: PacketTrains::default(),
            lane_terms,
            lanes: watch::Sender::new(1),
            sharing: 1.into(),
            liveness: PeerLiveness::new(Patience::default(), None),
            metrics: MetricsRegistry::new().peer_metrics(place),
            trace: LinkTrace::default().of_peer("peer"),
        }
    }

    /// Runs a test of the first of three gateways. Its job sends to both others alike.
    fn with_peers(test: impl FnOnce(&Peers)) {
        crate::simulate::run_with_simulated_clock(async {
            let fabric = Arc::new(fabric());
            let links = [B, C].map(|peer| (peer, Arc::new(link_to(&fabric, peer))));
            let peers = Peers::new(fabric, A, links.into());
            let pairs = [(A, B), (A, C), (B, A), (C, A)].map(|pair| (pair, 1));
            peers.divide_port_rates(GroupId::of_job("train"), pairs.into());
            test(&peers);
        })
        .expect("runs");
    }

    /// Returns the rates to both others over links of 600 Mbit/s.
    fn rates(peers: &Peers) -> [u64; 2] {
        [B, C].map(|peer| {
            let share = peers.peers[&peer].link.pair_pacer.share();
            share.rate_over(mbit(600)).bits_per_second() / 1_000_000
        })
    }

    /// Returns the rate that both others were told last, in Mbit/s, with the number of the message.
    fn told(peers: &Peers) -> [Option<(u64, Option<u64>)>; 2] {
        let all = lock_ignoring_poison(&peers.flows);
        let rate = |rate: BitRate| rate.bits_per_second() / 1_000_000;
        [B, C].map(|peer| all.told.get(&peer).map(|told| (told.number, told.rate.map(rate))))
    }

    #[test]
    fn a_group_that_goes_leaves_the_port_to_plans() {
        with_peers(|peers| {
            assert_eq!(rates(peers), [300, 300]);
            let group = GroupId::of_job("group");
            peers.note_moving_flows(group, [((A, C), 9), ((C, A), 9)].into());
            assert_eq!(rates(peers), [300, 600], "all of the port is the group's");
            assert_eq!(told(peers), [None, Some((1, Some(600)))]);
            // All have left it, or its job is gone.
            peers.note_moving_flows(group, PayloadFlows::new());
            assert_eq!(rates(peers), [300, 300]);
            assert_eq!(told(peers), [None, Some((2, None))], "its sender hears of it");
            peers.note_moving_flows(group, PayloadFlows::new());
            assert_eq!(told(peers), [None, Some((2, None))], "once");
        });
    }

    /// A peer that was started again counts from the beginning, and a message of before comes late.
    #[test]
    fn no_rate_of_a_lost_connection_stays_in_force() {
        with_peers(|peers| {
            let heard = |number, rate| {
                peers.handle_port_rate(B, LinkPortRateMessage { number, rate });
                rates(peers)
            };
            assert_eq!(heard(5, Some(mbit(40))), [40, 300]);
            assert_eq!(heard(4, Some(mbit(90))), [40, 300], "an old one");
            assert_eq!(heard(5, Some(mbit(90))), [40, 300], "a repeated one");
            assert_eq!(heard(6, None), [300, 300], "the peer leaves it to plans");
            assert_eq!(heard(7, Some(mbit(50))), [50, 300]);
            peers.forget_port_rate(B);
            assert_eq!(rates(peers), [300, 300]);
            assert_eq!(heard(1, Some(mbit(70))), [70, 300]);
            peers.forget_port_rate(C);
            assert_eq!(rates(peers), [70, 300], "that of another peer stays");
        });
    }
}
