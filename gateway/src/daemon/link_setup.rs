//! The links from this gateway to its peers, and the lane threads that serve them.

use super::spec::{GatewaySpec, ListenSpec};
use crate::host::Host;
use crate::observe::metrics::{MetricsRegistry, PeerPlace};
use crate::wan::connect::lane_addresses::{LaneAddresses, dials_lane_addresses};
use crate::wan::connect::peer_addresses::{PeerAddresses, PeerLocation};
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::wan::link::lane_number::{LaneNumberReason, LaneNumberTerms};
use crate::wan::link_trace::LinkTrace;
use crate::wan::pacing::pair_pacer::PairPacer;
use crate::wan::peer_link::pair_link_of_fabric;
use crate::wan::stream::packet_train::PacketTrains;
use crate::wan::stream::segment_queue::SendQueue;
use crate::wan::{LaneThreads, PeerLink, PeerLiveness};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{self, PairShare};
use hier_collectives::topology::{Fabric, Link};
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use units::{BitRate, Fraction, Span};

/// 100 Gbit/s: the rate assumed between gateways of one region, above any network card, so that the
/// pacer limits no LAN traffic. Congestion windows there are sized for this rate and [`LAN_RTT`].
const LAN_RATE: BitRate = BitRate::from_bits_per_second(100_000_000_000);
/// 0.1 ms: the round-trip time assumed between gateways of one region, for which congestion windows
/// there are sized. With [`LAN_RATE`] the BDP is 1.25 MB.
const LAN_RTT: Span = Span::from_ns(100_000);

/// The links to other gateways.
type PeerLinks = BTreeMap<GatewayId, Arc<PeerLink>>;

/// One side of a gateway, WAN or LAN: the addresses of its lanes, and the peers there.
pub(super) struct LinkSide {
    pub listen: LaneAddresses,
    /// Whether no peer there can dial this gateway.
    pub dials_only: bool,
    pub peers: PeerLinks,
}

/// Begins the trace, and makes the links to all peers, divided by side, WAN or LAN. A side without an address or without
/// peers is left out: a gateway that exchanges with nobody needs no port.
pub(super) fn set_up_link_sides(
    host: &Arc<dyn Host>,
    spec: &GatewaySpec,
    observed: (&MetricsRegistry, &LinkTrace),
) -> Vec<LinkSide> {
    observed.1.begin(&**host, &spec.fabric.gateway(spec.me).name);
    let mut wan = set_up_wan_links(host, spec, observed);
    let (lan, over_wan_port) = set_up_region_links(host, spec, observed);
    wan.extend(over_wan_port);
    let ListenSpec { wan: at_port, lan: on_lan, dials_only, .. } = &spec.listen;
    let sides = [(at_port.clone(), *dials_only, wan), (on_lan.clone(), false, lan)];
    let sides = sides.into_iter().filter_map(|(listen, dials_only, peers)| {
        let side = LinkSide { listen: listen?, dials_only, peers };
        (!side.peers.is_empty()).then_some(side)
    });
    sides.collect()
}

/// Returns the numbers of the lane threads for each of a gateway's `sides`, WAN and LAN. Gateways
/// on one host get different numbers, so that no two lanes are pinned to one core.
pub(super) fn link_setup_lane_threads(
    fabric: &Fabric,
    me: GatewayId,
    sides: usize,
) -> impl Iterator<Item = LaneThreads> {
    let each = usize::from(plan::plan_lanes_limit(fabric));
    let of = sides * each;
    let first = usize::from(me.0) * of;
    (0..sides).map(move |side| LaneThreads { first: first + side * each, of })
}

/// Makes the links to the gateways of other regions.
fn set_up_wan_links(
    host: &Arc<dyn Host>,
    spec: &GatewaySpec,
    (metrics, trace): (&MetricsRegistry, &LinkTrace),
) -> PeerLinks {
    let fabric = &spec.fabric;
    let me = fabric.gateway(spec.me);
    let weights: BTreeMap<_, _> = spec.jobs.iter().map(|job| (job.group(), job.weight)).collect();
    let mut peers = BTreeMap::new();
    let Some(local) = &spec.listen.wan else { return peers };
    let rates = spec.plan.pair_shares(fabric);
    for ((_, id), pair) in rates.iter().filter(|((from, _), _)| *from == spec.me) {
        let peer = fabric.gateway(*id);
        let Some(link) = fabric.link(me.region, peer.region) else { continue };
        let addresses = spec.addresses.get(id);
        let policy = spec.policies.get(&(link.a, link.b));
        let ends = ((spec.me, !spec.listen.dials_only), (*id, addresses.is_some()));
        let lane_terms = link_setup_lane_terms(fabric, ends, (local, addresses), link.rtt);
        let peer_link = PeerLink {
            id: *id,
            addresses: addresses.cloned().map(PeerLocation::new),
            local: local.clone(),
            pinned_mtu: spec.mtu_pinned.then(|| fabric.mtu()),
            link: Mutex::new(pair_link_of_fabric(fabric, link, (spec.me, *id))),
            send_queue: SendQueue::new(weights.clone()),
            pair_pacer: PairPacer::new(
                Arc::clone(host),
                *pair,
                link,
                fabric.mtu(),
                NonZeroU16::new(lane_terms.least).unwrap_or(NonZeroU16::MIN),
            ),
            controller: policy.map_or_else(Default::default, |policy| policy.controller),
            memory: Arc::default(),
            trains: PacketTrains::default(),
            lane_terms,
            lanes: watch::Sender::new(lane_terms.least),
            sharing: lane_terms.least.into(),
            liveness: PeerLiveness::new(fabric.patience(), fabric.silence()),
            metrics: metrics.peer_metrics(PeerPlace {
                gateway: &peer.name,
                region: &fabric.region(peer.region).name,
                link: &[link.a, link.b].map(|end| &*fabric.region(end).name).join("-"),
            }),
            trace: trace.of_peer(&peer.name),
        };
        peers.insert(*id, Arc::new(peer_link));
    }
    peers
}

/// Makes the links to the other gateways of the region: over the LAN, else from WAN port to WAN
/// port. Gateways that have neither in common get no link.
fn set_up_region_links(
    host: &Arc<dyn Host>,
    spec: &GatewaySpec,
    (metrics, trace): (&MetricsRegistry, &LinkTrace),
) -> (PeerLinks, PeerLinks) {
    let fabric = &spec.fabric;
    let region = fabric.gateway(spec.me).region;
    let weights: BTreeMap<_, _> = spec.jobs.iter().map(|job| (job.group(), job.weight)).collect();
    let (mut over_lan, mut over_wan_port) = (PeerLinks::new(), PeerLinks::new());
    let link =
        Link { a: region, b: region, rate: LAN_RATE, rtt: LAN_RTT, loss: Fraction::default() };
    for id in fabric.region(region).gateways.clone().map(GatewayId).filter(|id| *id != spec.me) {
        let lan = spec.lan_addresses.get(&id).zip(spec.listen.lan.as_ref());
        let dialled = spec.listen.wan.as_ref().filter(|_| !spec.listen.dials_only);
        let port = spec.addresses.get(&id).zip(dialled);
        let Some((addresses, local)) = lan.or(port) else { continue };
        let pair = PairShare::unshared(LAN_RATE);
        let ends = ((spec.me, true), (id, true));
        let lane_terms = link_setup_lane_terms(fabric, ends, (local, Some(addresses)), LAN_RTT);
        let peer_link = PeerLink {
            id,
            addresses: Some(PeerLocation::new(addresses.clone())),
            local: local.clone(),
            pinned_mtu: spec.mtu_pinned.then(|| fabric.mtu()),
            link: Mutex::new(link.clone()),
            send_queue: SendQueue::new(weights.clone()),
            pair_pacer: PairPacer::new(
                Arc::clone(host),
                pair,
                &link,
                fabric.mtu(),
                NonZeroU16::new(lane_terms.least).unwrap_or(NonZeroU16::MIN),
            ),
            controller: ControllerPolicy::default(),
            memory: Arc::default(),
            trains: PacketTrains::default(),
            lane_terms,
            lanes: watch::Sender::new(lane_terms.least),
            sharing: lane_terms.least.into(),
            liveness: PeerLiveness::new(fabric.patience(), fabric.silence()),
            metrics: metrics.peer_metrics(PeerPlace {
                gateway: &fabric.gateway(id).name,
                region: &fabric.region(region).name,
                link: "",
            }),
            trace: trace.of_peer(&fabric.gateway(id).name),
        };
        let side = if lan.is_some() { &mut over_lan } else { &mut over_wan_port };
        side.insert(id, Arc::new(peer_link));
    }
    (over_lan, over_wan_port)
}

/// Returns the bounds of the lanes from `me` to `peer`, with one lane at least for each address of
/// either end. The flag of an end says whether the other can dial it.
fn link_setup_lane_terms(
    fabric: &Fabric,
    (me, peer): ((GatewayId, bool), (GatewayId, bool)),
    (local, addresses): (&LaneAddresses, Option<&PeerAddresses>),
    rtt: Span,
) -> LaneNumberTerms {
    let (most, pinned) = (plan::plan_lanes_limit(fabric), fabric.lanes_min());
    let of_addresses = local.count().max(addresses.map_or(1, PeerAddresses::count));
    let least_reason =
        if of_addresses > pinned { LaneNumberReason::Addresses } else { LaneNumberReason::Pinned };
    let least = pinned.max(of_addresses).min(most);
    LaneNumberTerms { least, least_reason, most, dials: dials_lane_addresses(me, peer), rtt }
}
